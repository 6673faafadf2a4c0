"""Checks the names of agents and pipelines."""

import re
from collections.abc import Iterable

from standfast.errors import DefinitionError

NAME = re.compile(r"[a-z][a-z0-9_-]*")


def check_name(name: object, what: str) -> None:
    """Refuse a name that does not match `[a-z][a-z0-9_-]*` as a whole; a final newline is also refused."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise DefinitionError(f"{what} name must match ^{NAME.pattern}$, got {name!r}")


def check_former_names(name: str, formerly: object, what: str) -> tuple[str, ...]:
    """Return former names; they must differ from the current name and from each other."""
    if isinstance(formerly, str) or not isinstance(formerly, Iterable):
        raise DefinitionError(f"{what}: formerly must be a list of names, got {formerly!r}")
    names = tuple(formerly)
    for one in names:
        check_name(one, f"{what}: formerly: a")
    if len({name, *names}) <= len(names):
        raise DefinitionError(f"{what}: formerly: a name is given twice: {', '.join([name, *names])}")
    return names
