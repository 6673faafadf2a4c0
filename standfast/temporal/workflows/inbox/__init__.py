"""Messages and answers that reach a run, and the questions that it asks."""
