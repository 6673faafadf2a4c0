"""Stores, and the sessions in them."""
