"""What is decided without I/O, tested without I/O and without waiting."""
