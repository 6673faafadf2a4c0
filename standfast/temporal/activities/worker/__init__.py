"""Shared by a worker's activities: its agents and store, its name, its guard, and the search for dead workers."""
