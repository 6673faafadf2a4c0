"""Pipelines and their gates, with both drivers."""
