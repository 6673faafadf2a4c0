"""Activities, which do everything that needs I/O for workflows: models, tools, stores, hooks, webhooks."""
