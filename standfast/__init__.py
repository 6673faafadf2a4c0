"""standfast: durable agents and pipelines. A tool with effects runs at most once, whatever dies.

Public are the names in the `__all__` of `standfast`, `standfast.effects`, `standfast.llm`, `standfast.mcp`,
`standfast.stores`, `standfast.temporal`, `standfast.testing` and `standfast.web`, and of the modules in
`standfast.integrations`, one for each framework. All other modules and names are internal and may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from standfast.exports import *  # noqa: F403
else:  # they take 0.3 s to load, which importing a part of the library must not cost

    def __getattr__(name: str) -> Any:
        exports = import_module("standfast.exports")
        if name == "__all__" or name in exports.__all__:
            return getattr(exports, name)
        raise AttributeError(f"module 'standfast' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return import_module("standfast.exports").__all__
