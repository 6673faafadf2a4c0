"""The driver in this process, and rules of the loop with both."""
