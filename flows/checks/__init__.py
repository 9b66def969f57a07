"""What `tributary check` refuses or warns of, one file a subject."""
