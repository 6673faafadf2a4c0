"""Reads a function: the schema of its arguments, what its docstring says of them, where it takes the context."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, get_type_hints

from pydantic import Field
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from holdfast.errors import DefinitionError
from holdfast.tools.attempts import ToolContext


@functools.lru_cache(maxsize=1_024)
def parameters_of(handler: Callable[..., Any]) -> tuple[tuple[str, ...], str | None]:
    """Return the names of a handler's positional parameters, and of the one that takes the context."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return (), None
    hints = _hints(handler)
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return names, next((p.name for p in parameters if _is_context(hints.get(p.name))), None)


def _is_context(annotation: Any) -> bool:
    return annotation is ToolContext or ToolContext in getattr(annotation, "__args__", ())


def _hints(function: Callable[..., Any], names: Mapping[str, Any] | None = None) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(inspect.unwrap(target), localns=dict(names or {}), include_extras=True)
    except (NameError, TypeError):
        if names is None:
            return dict(getattr(function, "__annotations__", {}))
        raise


def read_signature(
    name: str, function: Callable[..., Any], docs: Mapping[str, str], names: Mapping[str, Any]
) -> tuple[Any, Any]:
    try:
        hints = _hints(function, names)
    except (NameError, TypeError) as error:
        raise DefinitionError(f"Tool '{name}': an annotation cannot be resolved: {error}") from error
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        annotation = hints.get(parameter.name, Any)
        if _is_context(annotation):
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(f"Tool '{name}': parameter '{parameter.name}' must be passable by its name")
        if isinstance(parameter.default, type(Field())):
            raise DefinitionError(
                f"Tool '{name}': parameter '{parameter.name}' has a Field as its default; "
                "write Annotated[<type>, Field(…)] and a plain default"
            )
        if parameter.name in docs:
            # First, so that a description inside the user's own Annotated wins.
            annotation = Annotated[annotation, Field(description=docs[parameter.name])]
        if parameter.default is not parameter.empty:
            annotation = NotRequired[Annotated[annotation, Field(json_schema_extra=_default(parameter.default))]]
        fields[parameter.name] = annotation
    # A TypedDict, not a model: parameters may be called "schema" or "_x", and the function keeps its own defaults.
    arguments = TypedDict(f"{name}_arguments", fields) if fields else None  # type: ignore[operator]
    return arguments, hints.get("return", Any)


def _default(value: Any) -> dict[str, Any]:
    try:
        return {"default": to_jsonable_python(value)}
    except (PydanticSerializationError, ValueError):
        return {}


_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
_PARAMETER = re.compile(r"^(\s+)(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a Google-style docstring into what it says of the function and of each parameter."""
    parts = _SECTION.split(text)
    docs: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        if title not in ("Args", "Arguments", "Parameters"):
            continue
        name, indent = "", ""
        for line in body.splitlines():
            match = _PARAMETER.match(line)
            if match and (not indent or match[1] == indent):
                indent, name = match[1], match[2]
                docs[name] = match[3].strip()
            elif name and line.strip():
                docs[name] = f"{docs[name]} {line.strip()}".strip()
    return parts[0].strip(), docs
