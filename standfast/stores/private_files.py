"""Creates files that only their owner can read. An existing file keeps its permissions."""

import os


def private(path: str, flags: int) -> int:
    """Open a file as an `open(…, opener=private)` does."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)
