"""Activities that ask models."""
