"""What the API shows and does, a subject a file."""
