"""The driver on Temporal."""
