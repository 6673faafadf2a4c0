"""Tests without I/O and without waiting."""
