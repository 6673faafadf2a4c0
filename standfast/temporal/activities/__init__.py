"""What workers do for workflows: models, tools, stores, hooks, webhooks."""
