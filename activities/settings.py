"""Reads the tools' settings from the environment, at each call, so that the tools can be imported without them."""

import os

from standfast import TerminalError


def required(name: str, example: str) -> str:
    """Return a setting.

    Raises:
        TerminalError: it is missing; a retry would not help.
    """
    value = os.environ.get(name, "").strip()
    if not value:
        raise TerminalError(f"{name} is not set. Nothing was sent. Set it for the worker, for example {name}={example}")
    return value
