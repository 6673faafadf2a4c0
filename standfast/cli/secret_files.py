"""Reads secrets from files, as in containers: NAME_FILE names the file with the value of NAME."""

import os
from pathlib import Path

from standfast.errors import InputError

NAMES = (
    "STANDFAST_STORE",
    "STANDFAST_SECRET",
    "STANDFAST_LINK_SECRET",
    "STANDFAST_MCP_KEY",
    "STANDFAST_SLACK_SIGNING_SECRET",
    "STANDFAST_SLACK_TOKEN",
    "TEMPORAL_API_KEY",
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "CLOUDFLARE_API_TOKEN",
    "MINIMAX_API_KEY",
)


def read_secret_files() -> None:
    """Put each secret from a file into the environment of this process.

    Raises:
        InputError: a file cannot be read or is empty, or its variable is also set.
    """
    for name in NAMES:
        if not (path := os.environ.get(f"{name}_FILE")):
            continue
        if os.environ.get(name):
            raise InputError(f"{name} and {name}_FILE are both set: set one of them")
        try:
            value = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name}_FILE: {path} cannot be read: {error}") from error
        if not value:
            raise InputError(f"{name}_FILE: {path} is empty")
        os.environ[name] = value
