"""Activities, which do all I/O for workflows: models, tools, stores, hooks, webhooks."""
