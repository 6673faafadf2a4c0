"""The client side: starts runs, reads their state and sends them messages; any process may use it."""
