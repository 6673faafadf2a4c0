"""What the tools read from the environment. They read it when they are called, so that importing them needs nothing."""

import os

from standfast import TerminalError


def required(name: str, example: str) -> str:
    """Return a setting.

    Raises:
        TerminalError: it is missing; no second attempt finds it.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        raise TerminalError(f"{name} is not set. Nothing was sent. Set it for the worker, for example {name}={example}")
    return value
