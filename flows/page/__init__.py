"""What Prefect's page shows of a flow: its form, the names of its runs, what became of them."""
