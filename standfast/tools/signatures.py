"""Reads a function's signature (the schema of its arguments, the place of the context), and arguments as data."""

import contextlib
import copy
import functools
import hashlib
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypeVar, get_args, get_origin, get_type_hints

from pydantic import Field, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict

from standfast.errors import DefinitionError
from standfast.messages import JSONObject, clean_text, json_problem
from standfast.tools.calls import ToolContext


class Takes(NamedTuple):
    """The parameters of a handler: the required positional ones, and the one for the context."""

    needed: tuple[str, ...] = ()
    context: str | None = None


def parameters_of(handler: Callable[..., Any] | None) -> Takes:
    """Return a handler's known parameters."""
    try:
        parameters = inspect.signature(handler).parameters.values()  # type: ignore[arg-type]  # None is a TypeError
    except (TypeError, ValueError):
        return Takes()
    hints = _hints_as_far_as_known(handler)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = tuple(p.name for p in parameters if p.kind in positional and p.default is p.empty)
    return Takes(needed, next((p.name for p in parameters if _is_context(hints.get(p.name))), None))


def bind_arguments(
    handler: Callable[..., Any], takes: Takes, given: Mapping[str, Any] | tuple[Any, ...], context: ToolContext
) -> Callable[[], Any]:
    """Bind a handler's arguments, by name or position, and the context to its parameter."""
    extra = {takes.context: context} if takes.context is not None else {}
    if isinstance(given, Mapping):
        return functools.partial(handler, **given, **extra)
    if takes.context is None:
        # An untyped second required parameter can only be the context.
        also = (context,) if len(takes.needed) > len(given) else ()
        return functools.partial(handler, *given, *also)
    if takes.needed[:1] == (takes.context,):
        return functools.partial(handler, context, *given)
    return functools.partial(handler, *given, **extra)


def read_summary(function: Callable[..., Any]) -> tuple[str, str]:
    """Return a function's name, and the part of its docstring before its sections."""
    named = _unwrapped(function)
    return getattr(named, "__name__", type(named).__name__), read_docstring(inspect.getdoc(named) or "").summary


def read_signature(name: str, function: Callable[..., Any], names: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the type of a function's arguments (None if it has none), and of its result.

    Args:
        name: the tool's name, for errors.
        names: further names that annotations may refer to besides the function's globals.

    Raises:
        DefinitionError: naming the parameter that a model cannot fill.
    """
    try:
        hints = get_type_hints(_annotated(function), localns=dict(names), include_extras=True)
    except (NameError, TypeError) as error:
        raise DefinitionError(f"Tool '{name}': an annotation cannot be resolved: {error}") from error
    docs = read_docstring(inspect.getdoc(_unwrapped(function)) or "").parameters
    fields: dict[str, Any] = {}
    parameters = inspect.signature(function).parameters.values()
    if sum(_is_context(hints.get(parameter.name)) for parameter in parameters) > 1:
        raise DefinitionError(f"Tool '{name}': only one parameter can be the ToolContext")
    for place, parameter in enumerate(parameters):
        if place == 0 and parameter.name in ("self", "cls") and parameter.name not in hints:
            raise DefinitionError(
                f"Tool '{name}': parameter '{parameter.name}' is for an object, which a model cannot give: declare the "
                f"bound method, as in tool(shop.{name})"
            )
        annotation = hints.get(parameter.name, Any)
        if _is_context(annotation) and parameter.kind is not parameter.POSITIONAL_ONLY:
            continue
        if problem := _problem(parameter, annotation):
            raise DefinitionError(f"Tool '{name}': parameter '{parameter.name}' {problem}")
        if docs.get(parameter.name):
            annotation = _described(annotation, docs[parameter.name])
        if parameter.default is not parameter.empty:
            annotation = NotRequired[Annotated[annotation, Field(json_schema_extra=_shown(parameter.default))]]
        fields[parameter.name] = annotation
    # A TypedDict, not a model: parameters may be called "schema" or "_x", and the function keeps its own defaults.
    arguments = TypedDict(f"{name}_arguments", fields) if fields else None  # type: ignore[operator]
    return arguments, hints.get("return", Any)


def schema_type(annotation: Any, owner: str, what: str) -> TypeAdapter[Any]:
    """Return the adapter that reads and writes values of a type.

    Raises:
        DefinitionError: the type is unusable; the error names the place.
    """
    try:
        adapter = TypeAdapter(annotation)
        adapter.rebuild(raise_errors=True)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError, SyntaxError) as error:
        first = str(error).splitlines()[0]
        raise DefinitionError(f"{owner}: {what} {annotation!r} cannot become a schema: {first}") from error
    return adapter


def json_schema(adapter: TypeAdapter[Any], owner: str, what: str) -> JSONObject:
    """Return the JSON schema of the values that an adapter reads.

    Raises:
        DefinitionError: there is none; the error names the type.
    """
    try:
        return adapter.json_schema()
    except PydanticUserError as error:
        raise DefinitionError(f"{owner}: {what} has no JSON schema: {str(error).splitlines()[0]}") from error


def arguments_schema(annotation: Any, adapter: TypeAdapter[Any], owner: str) -> JSONObject:
    """Return the JSON schema of a tool's arguments, with the type at the top, as providers require.

    Args:
        annotation: the type, possibly with its own schema.

    Raises:
        DefinitionError: there is none, or it does not describe an object.
    """
    # Used unchanged: pydantic cannot include a schema with its own references.
    said = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, WithJsonSchema)]
    given = copy.deepcopy(said[-1].json_schema) if said else None
    schema = given or json_schema(adapter, owner, "input")
    if isinstance(schema.get("$ref"), str):  # a recursive model
        beside = {key: part for key, part in schema.items() if key not in ("$ref", "type") and part != {}}
        schema = {**_referred(schema, owner), **beside}
    if schema.get("type") != "object":
        raise DefinitionError(f"{owner}: input must describe a JSON object, not {schema.get('type', 'a union')!r}")
    schema.pop("title", None)
    schema.pop("description", None)
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        raise DefinitionError(f"{owner}: the properties of its input must be an object, not {properties!r:.80}")
    for part in properties.values():
        if isinstance(part, dict):  # True and False are also schemas
            part.pop("title", None)
    return schema


def _referred(schema: Mapping[str, Any], owner: str) -> Mapping[str, Any]:
    """Return the part of a schema that its top refers to."""
    found: Any = schema
    for name in schema["$ref"].removeprefix("#").split("/")[1:]:
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    if not isinstance(found, dict) or found is schema:
        raise DefinitionError(f"{owner}: its input refers to {schema['$ref']!r:.80}, which does not exist")
    return found


# pydantic's core schema types that call no functions, and stay short however they are nested.
_PLAIN = {
    "any",
    "none",
    "bool",
    "int",
    "float",
    "decimal",
    "str",
    "bytes",
    "date",
    "time",
    "datetime",
    "timedelta",
    "uuid",
    "literal",
    "nullable",
    "union",
    "list",
    "tuple",
    "set",
    "dict",
    "typed-dict",
    "typed-dict-field",
    "default",
}


def is_plain(schema: Any) -> bool:
    """Whether only pydantic reads and writes values of a type: without validators, serializers or classes.

    Args:
        schema: pydantic's core schema, or a part of it.
    """
    if isinstance(schema, list | tuple):
        return all(map(is_plain, schema))
    if not isinstance(schema, dict):
        return True
    kind = schema.get("type")
    is_node = isinstance(kind, str)  # otherwise the fields of a type by name
    if is_node and (kind not in _PLAIN or schema.keys() & {"serialization", "default_factory"}):
        return False
    return all(is_plain(part) for key, part in schema.items() if not (is_node and key == "metadata"))


def _problem(parameter: inspect.Parameter, annotation: Any) -> str | None:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        return "must be passable by its name"
    if isinstance(parameter.default, type(Field())):
        return "has a Field as its default; write Annotated[<type>, Field(…)] and a plain default"
    try:
        TypeAdapter(TypedDict("one", {parameter.name: annotation})).json_schema()  # type: ignore[operator]
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
        return f"cannot become a JSON schema: {str(error).splitlines()[0]}"
    return None


def _described(annotation: Any, text: str) -> Any:
    """Add a description before the user's own metadata, so that the user's description takes precedence."""
    if get_origin(annotation) is Annotated:
        bare, *metadata = get_args(annotation)
        return Annotated[(bare, Field(description=text), *metadata)]
    return Annotated[annotation, Field(description=text)]


def _shown(default: Any) -> JSONObject:
    try:
        shown = to_jsonable_python(default)
    except (PydanticSerializationError, ValueError):
        return {}
    return {"default": shown} if json_problem(shown) is None else {}


# --- annotations --------------------------------------------------------------------------------------------------


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _annotated(function: Any) -> Any:
    """Return the function with the annotations of a callable."""
    function = _unwrapped(function)
    return inspect.unwrap(function if inspect.isroutine(function) else type(function).__call__)


def _is_context(annotation: Any) -> bool:
    kinds = (annotation, *getattr(annotation, "__args__", ()))  # even in a union, and with the type of its deps
    return any(kind is ToolContext or get_origin(kind) is ToolContext for kind in kinds)


def wanted_deps(handler: Callable[..., Any] | None) -> str | None:
    """Return the type of the dependencies that a handler's context must have; None if it does not need any."""
    for annotation in _hints_as_far_as_known(handler).values():
        for kind in (annotation, *getattr(annotation, "__args__", ())):
            if get_origin(kind) is ToolContext:
                (wanted,) = get_args(kind)
                is_free = wanted in (Any, object) or isinstance(wanted, TypeVar) or _takes_none(wanted)
                return None if is_free else getattr(wanted, "__name__", str(wanted))
    return None


def _takes_none(annotation: Any) -> bool:
    return annotation in (None, type(None)) or type(None) in getattr(annotation, "__args__", ())


def _hints_as_far_as_known(function: Any) -> dict[str, Any]:
    """Resolve each annotation separately: one that is local to a function must not hide the context beside it."""
    target = _annotated(function)
    known: dict[str, Any] = {}
    for name, annotation in getattr(target, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(NameError, TypeError, AttributeError):
            known |= get_type_hints(alone, globalns=getattr(target, "__globals__", {}), include_extras=True)
    return known


_HEADING = "Args|Arguments|Parameters|Other Parameters|Keyword Args|Keyword Arguments"
_OTHERS = "Returns|Receives|Raises|Warns|Yields|Examples?|Notes?|Attributes|Methods|See Also|References|Warnings"
_STYLES: list[tuple[Literal["numpy", "google", "sphinx"], re.Pattern[str]]] = [
    ("numpy", re.compile(rf"^({_HEADING}|{_OTHERS})[ \t]*\n-{{3,}}[ \t]*$", re.MULTILINE)),
    ("google", re.compile(rf"^({_HEADING}|{_OTHERS}):[ \t]*$", re.MULTILINE)),
    ("sphinx", re.compile(r"^:(param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?)\b", re.MULTILINE)),
]


class Docstring(NamedTuple):
    """The text before the sections, and the descriptions of parameters by name."""

    summary: str
    parameters: dict[str, str]


def read_docstring(text: str) -> Docstring:
    """Read a docstring without indentation, as `inspect.getdoc` returns it."""
    found = next(((style, match) for style, sections in _STYLES if (match := sections.search(text))), None)
    if found is None:
        return Docstring(text.strip(), {})
    import griffe  # only if there are sections: it takes 0.1 s

    style, first = found
    text = clean_text(text)  # griffe fails on lone surrogates
    parameters = dict[str, str]()
    for section in griffe.Docstring(text).parse(style, warnings=False):
        if section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.other_parameters):
            parameters |= {one.name.lstrip("*\\"): " ".join(one.description.split()) for one in section.value}
    return Docstring(text[: first.start()].strip(), parameters)


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
