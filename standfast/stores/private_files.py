"""Files that are for their owner alone, from the moment at which they are made; one that is there keeps its rights."""

import os


def private(path: str, flags: int) -> int:
    """Open a file as `open(…, opener=private)` does it."""
    return os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o600)
