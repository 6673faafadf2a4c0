"""Loads the agents and pipelines of a Python file or module, with its store and model."""

import asyncio
import concurrent.futures
import importlib
import importlib.util
import inspect
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from traceback import StackSummary, TracebackException
from types import ModuleType
from typing import Any

from standfast.agents import Agent
from standfast.agents.foreign_agents import integration_of
from standfast.errors import InputError
from standfast.pipelines import Pipeline
from standfast.pipelines.builders import PipelineBuilder
from standfast.stores import open_store, sqlite_store

# Files whose frames are useless to users.
_OTHERS = ("<frozen", "<string>", str(Path(__file__).parents[1]), str(Path(concurrent.futures.__file__).parent))


@dataclass(frozen=True)
class Application:
    """The definitions of a module.

    Args:
        agents, pipelines: by name: the module's top-level ones, alone or in lists, and the agents that those use.
        store, llm, tools, webhooks, fill_context: the module's values of these names, if any.
    """

    agents: dict[str, Agent] = field(default_factory=dict)
    pipelines: dict[str, Pipeline] = field(default_factory=dict)
    store: Any = None
    llm: Any = None
    tools: Any = None
    webhooks: Any = ()
    fill_context: Any = None

    def agent(self, name: str) -> Agent:
        """Return an agent.

        Raises:
            InputError: there is none of that name.
        """
        if name not in self.agents:
            raise InputError(f"No agent {name!r} here; there is {', '.join(self.agents) or 'none'}")
        return self.agents[name]


class BrokenApplicationError(InputError):
    """A file or module raised an error when it was loaded; its last line names the error."""


def _foreign_in(module: ModuleType) -> str:
    """Return advice on another framework's agents, which may be parts of each other, if there are any."""
    for name, value in vars(module).items():
        if (integration := integration_of(value)) is not None:
            return (
                f"; {name} is an agent of another framework ({type(value).__name__}): write "
                f"`agent = as_agent({name})`, with `as_agent` from `standfast.integrations.{integration}`"
            )
    return ""


def _unfinished_in(module: ModuleType) -> str:
    """Return how to make an agent or a pipeline from an uncalled function, or a builder, if there is one."""
    for name, value in vars(module).items():
        if isinstance(value, PipelineBuilder):
            return f"; {name} is not built: write `{name} = {name}.build()`"
        if inspect.isfunction(value) and value.__module__ == module.__name__ and _needs_nothing(value):
            return f"; {name} is a function: if it makes an agent or a pipeline, call it, as in `app = {name}()`"
    return ""


def _needs_nothing(function: Any) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return all(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)


def load_application(where: str, store: str | None) -> Application:
    """Load a file (`app.py`) or a module (`package.module`).

    Args:
        store: address of a store, instead of the module's own.

    Raises:
        InputError: the file or module does not exist, or defines neither an agent nor a pipeline.
        BrokenApplicationError: it raises an error when it is loaded.
    """
    try:
        module = _loaded_outside_of_loops(where)
    except InputError:
        raise
    except Exception as error:
        raise _broken(where, error) from error
    found = Application(
        store=open_store(store)
        if store is not None
        else getattr(module, "store", None) or sqlite_store("standfast.db"),
        llm=getattr(module, "llm", None),
        tools=getattr(module, "tools", None) if isinstance(getattr(module, "tools", None), dict) else None,
        webhooks=getattr(module, "webhooks", ()),
        fill_context=getattr(module, "fill_context", None),
    )
    for value in vars(module).values():
        for item in value if isinstance(value, list | tuple) else (value,):
            _take(found, item)
    if not found.agents and not found.pipelines:
        hint = _foreign_in(module) or _unfinished_in(module)
        raise InputError(f"{where} has neither an Agent nor a Pipeline at its top level{hint}")
    return found


def _broken(where: str, error: Exception) -> BrokenApplicationError:
    """Return an error that names the fault's place in a file, with only the user's own files in its traceback."""
    told = TracebackException.from_exception(error, compact=True)
    told.stack = StackSummary.from_list(frame for frame in told.stack if not frame.filename.startswith(_OTHERS))
    lines = [line for line in told.format(chain=False) if not line.startswith("Traceback")]
    return BrokenApplicationError(f"{where} cannot be loaded:\n{''.join(lines).rstrip()}")


def _take(found: Application, item: Any) -> None:
    match item:
        case Agent() if item.name not in found.agents:
            found.agents[item.name] = item
            for used in (*item.tools, *(one for toolset in item.toolsets for one in toolset.agents)):
                _take(found, used)
        case Pipeline() if item.name not in found.pipelines:
            found.pipelines[item.name] = item
            for step in item.every_step():
                _take(found, step.agent)


def _loaded_outside_of_loops(where: str) -> ModuleType:
    """Load a file as Python would, so that it may use `asyncio.run`, for example to read a server's tools."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _load(where)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(_load, where).result()


def _load(where: str) -> ModuleType:
    path = Path(where)
    if path.suffix != ".py" and len(path.parts) == 1 and not path.exists():
        sys.path.append(str(Path.cwd()))  # last: a file there must not replace an installed module
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is not None and not (where == error.name or where.startswith(f"{error.name}.")):
                raise
            raise InputError(f"There is neither a file nor a module {where!r}") from error
    if not path.is_file():
        raise InputError(f"There is no file {where!r}")
    if path.suffix != ".py":
        raise InputError(f"{where!r} is not a Python file: its name must end with .py")
    name = path.stem if not _is_installed(path.stem) else f"standfast_app_{path.stem}"
    sys.path.append(str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as `python app.py` would find it
    spec.loader.exec_module(module)
    return module


def _is_installed(name: str) -> bool:
    """Whether Python or an installed package has a module of this name, which an application must not replace."""
    if name in sys.stdlib_module_names:
        return True
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    roots = {*_OTHERS, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return spec is not None and spec.origin is not None and spec.origin.startswith(tuple(roots))
