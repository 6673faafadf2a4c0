"""Calls of models, tools and agents from workflows."""
