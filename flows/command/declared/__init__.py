"""What the command `tributary` takes, by what one does with it; what each does is beside."""
