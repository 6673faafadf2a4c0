"""Explains how to install an extra, under the name with which this package was installed."""

from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from standfast.errors import StandfastError

_HERE = Path(__file__).parent


class MissingExtraError(StandfastError, ImportError):
    """A package from an extra is missing; the text names the command that installs it."""


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{distribution()}[{extra}]'"


def install_package(requirement: str) -> str:
    """Return the command that installs a third-party package, for example with one of its extras."""
    return f"pip install '{requirement}'"


def distribution() -> str:
    """Return the name under which this package was installed."""
    return distribution_in(_HERE.parent)


@cache
def distribution_in(folder: Path) -> str:
    """Return the distribution that installed the package into a folder: a fork or a mirror has a different name.

    If it was not installed there, as in a clone, the package's name is used.
    """
    for found in distributions(path=[str(folder)]):
        if f"{_HERE.name}/{Path(__file__).name}," in (found.read_text("RECORD") or ""):
            return found.metadata["Name"]
    return _HERE.name
