"""Explains how to install an extra, under the name by which this package was really installed."""

from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from standfast.errors import StandfastError

_HERE = Path(__file__).parent


class MissingExtraError(StandfastError, ImportError):
    """A package that an extra installs is missing; the text says which command installs it."""


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{distribution()}[{extra}]'"


def install_package(requirement: str) -> str:
    """Return the command that installs somebody else's package, for instance with an extra of its own."""
    return f"pip install '{requirement}'"


def distribution() -> str:
    """Return under which name this package was installed."""
    return distribution_in(_HERE.parent)


@cache
def distribution_in(folder: Path) -> str:
    """Return which distribution brought the package into a folder: a fork or a mirror has a name of its own.

    One that is not copied there, as in a clone, has the package's name.
    """
    for found in distributions(path=[str(folder)]):
        if f"{_HERE.name}/{Path(__file__).name}," in (found.read_text("RECORD") or ""):
            return found.metadata["Name"]
    return _HERE.name
