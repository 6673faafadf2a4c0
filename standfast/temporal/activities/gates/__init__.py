"""Activities at gates: decisions, and the messages to people about them."""
