"""The arguments of a call as data: by name, and as a hash that is the same in every process."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import to_jsonable_python


def bound(function: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, with defaults; the object of a method is not an argument.

    Raises:
        TypeError: they do not fit the function; Python's own message.
    """
    found = inspect.signature(function).bind(*arguments, **options)
    found.apply_defaults()
    return {name: value for name, value in found.arguments.items() if name not in ("self", "cls")}


def hash_of(arguments: Mapping[str, Any]) -> str:
    """Return a hash of arguments, the same in every process; of values that are not data, only the type counts."""
    text = json.dumps(plain(dict(arguments)), sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, set | frozenset):  # their order differs between processes
        return sorted((plain(one) for one in value), key=lambda one: json.dumps(one, sort_keys=True))
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return to_jsonable_python(
        value, fallback=lambda one: f"{type(one).__module__}.{type(one).__qualname__}", bytes_mode="base64"
    )


def approved_id(gate: str, arguments: str) -> str:
    """Return the id of the activity that runs an approved call, from the hash of its arguments."""
    return f"{gate} approved {arguments}"


def is_approved(activity_id: str, arguments: str) -> bool:
    """Whether an activity has an `approved_id` for these arguments."""
    return activity_id.endswith(f" approved {arguments}")
