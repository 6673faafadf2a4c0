"""Slack and Teams: their buttons and forms, and who sent them."""
