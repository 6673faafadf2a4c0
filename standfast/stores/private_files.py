"""Creates files that only their owner can read; an existing file keeps its permissions."""

import os


def private(path: str, flags: int) -> int:
    """Open a file as `open(…, opener=private)` does it."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)
