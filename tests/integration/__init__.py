"""Whole runs of agents, on stores that are real files."""
