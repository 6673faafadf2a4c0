"""Data that crosses Temporal, or is kept beside it, as plain JSON; all sides read and write it with this package."""
