"""Agents and pipelines as tools of the Model Context Protocol."""
