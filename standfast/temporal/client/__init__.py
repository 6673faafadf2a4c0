"""What any process does with runs: starts them, looks at them, speaks to them."""
