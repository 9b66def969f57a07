"""What `tributary init` writes: real files, which our own checks and tests read as they are."""
