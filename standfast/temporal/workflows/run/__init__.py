"""Runs of agents and pipelines as workflows: their state, parts, lifetime, pauses and missing workers."""
