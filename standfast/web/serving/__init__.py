"""Serves the applications over HTTP: addresses, middleware, statuses, bounds for slow clients."""
