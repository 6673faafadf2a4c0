"""Activities on a session: opening it, its transcript, its messages, and what its store has of them."""
