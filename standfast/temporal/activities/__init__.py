"""Activities, which do for workflows all that needs I/O: models, tools, stores, hooks, webhooks."""
