"""Reads people's texts, JSON and images, from arguments, files or standard input."""

import getpass
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from standfast.errors import InputError
from standfast.messages import Image

PORT = click.IntRange(0, 65_535)


def who(by: str | None) -> str:
    """Return the name of the person who runs a command: the given one, or else the login name."""
    return by or os.environ.get("STANDFAST_USER") or getpass.getuser()


def agent_name(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    """Return the name of an agent or a pipeline, without which a run would wait for a worker for ever.

    Raises:
        BadParameter: it cannot be one.
    """
    from standfast.tools.checks import NAME  # which `--help` need not wait for

    if NAME.fullmatch(name):
        return name
    file = f"; for a file: `standfast worker {name}`, or `standfast chat AGENT --app {name}`" * name.endswith(".py")
    raise click.BadParameter(
        f"{name!r} cannot be the name of an agent or a pipeline: it must match {NAME.pattern}{file}."
    )


def read_text(given: str) -> str:
    """Return an argument, or standard input for -.

    Raises:
        InputError: it is empty.
    """
    text = sys.stdin.read().removesuffix("\n") if given == "-" else given
    if not text.strip():
        raise InputError("There is no text: nothing was sent")
    return text


def _raw(given: str) -> str:
    return sys.stdin.read() if given == "-" else given


def image_of(given: str) -> Image:
    """Return the image at a URL or in a file."""
    if "://" in given:
        return Image(url=given)
    import mimetypes

    kind, _ = mimetypes.guess_type(given)
    if kind is None or not kind.startswith("image/"):
        raise click.UsageError(f"--image {given}: neither a URL nor a file whose name ends like an image's")
    if not Path(given).exists():
        raise click.UsageError(f"--image {given}: there is no such file")
    return Image(data=Path(given).read_bytes(), media_type=kind)  # type: ignore[arg-type]  # bytes are written in base64


def read_json_option(name: str, given: str) -> Any:
    """Read an option's JSON: the text itself, a file (@FILE), or standard input (-).

    Raises:
        UsageError: it is not JSON.
    """
    if given.startswith("@") and not Path(given[1:]).exists():  # /dev/stdin and <(…) are not regular files
        raise click.UsageError(f"{name}: there is no file {given[1:]!r}")
    text = Path(given[1:]).read_text() if given.startswith("@") else _raw(given)
    try:
        return json.loads(text)
    except ValueError as error:
        if given == "-" or given.startswith("@"):
            raise click.UsageError(
                f"{name}: {'standard input' if given == '-' else given[1:]} is not JSON: {error}"
            ) from error
        raise click.UsageError(
            f"{name} is not JSON: {error}. Quote it for the shell, as in {name} '{{\"a\": 1}}'"
        ) from error
