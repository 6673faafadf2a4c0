"""What crosses Temporal, or is kept beside it, as plain JSON: read and written here, by all sides."""
