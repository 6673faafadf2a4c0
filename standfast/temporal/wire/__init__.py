"""Data that crosses Temporal, or is stored beside it, as plain JSON; all sides read and write it with this package."""
