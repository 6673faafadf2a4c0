"""Shared test helpers: agents, tools, drivers, servers, and readers of a run's results."""
