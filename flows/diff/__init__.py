"""What differs between two recipes or runs, and what runs again because of it."""
