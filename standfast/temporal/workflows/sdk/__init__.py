"""Works around faults of Temporal's SDK that reach into its internals, one module per fault."""
