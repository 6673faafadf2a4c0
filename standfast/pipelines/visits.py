"""The names of stages, and their parts of paths when a stage is visited again."""

import re

from standfast.agents import check_name
from standfast.errors import DefinitionError

_VISITED = re.compile(r"([a-z][a-z0-9_-]*)_[1-9][0-9]*")


def check_step_name(name: object) -> None:
    """Refuse an invalid step name, and one that equals the path part of another stage's second visit."""
    check_name(name, "Step")
    if _VISITED.fullmatch(str(name)):
        number = str(name).rpartition("_")[2]
        raise DefinitionError(
            f"Step name must not end in _{number}, which marks the {number}. visit of a stage, got {name!r}; "
            f"name it {name_of(str(name))}-{number}"
        )


def visited(name: str, times: int) -> str:
    """Return a stage's part of a path for its first visit, its second, and so on."""
    return name if times == 1 else f"{name}_{times}"


def name_of(part: str) -> str:
    """Return the name of a stage, from its part of a path."""
    found = _VISITED.fullmatch(part)
    return part if found is None else found[1]
