"""The client side: starts runs, looks at them and sends them messages; any process may use it."""
