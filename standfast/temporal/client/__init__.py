"""The client side: starts runs, looks at them, speaks to them; any process may use it."""
