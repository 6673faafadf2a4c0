"""Describes the values that people see at a gate beside its message: typed values, and their plain JSON form.

The gate's digest covers all of it, so that decisions are bound to it.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic_core import PydanticSerializationError, to_json

from standfast.errors import InputError
from standfast.messages import Image, JSONObject, clean_text, cut, read_json

SHOWN_MOST = 1024 * 1024  # bytes of all values that one gate shows, as JSON
_MOST_VALUES = 1_000
_LONGEST_LABEL = 200
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # no SVG, which can contain links and scripts


@dataclass(frozen=True, slots=True)
class Markdown:
    """A text with markup, which pages show with its headings, lists and links, but without HTML."""

    text: str

    def plain(self) -> JSONObject:
        return {"kind": "markdown", "text": _text(self.text, "Markdown(text)")}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under column names.

    Args:
        rows: each a sequence of values, or a mapping from column names.
        columns: their names; by default the first row's keys, if it is a mapping.
    """

    rows: Sequence[Any]
    columns: Sequence[str] = ()

    def plain(self) -> JSONObject:
        first = self.rows[0] if self.rows else ()
        columns = [str(name) for name in (self.columns or (first if isinstance(first, Mapping) else ()))]
        rows = [[row.get(name) for name in columns] if isinstance(row, Mapping) else list(row) for row in self.rows]
        for row in self.rows:
            if isinstance(row, Mapping) and (left := sorted(map(str, row.keys() - set(columns)))):
                raise InputError(f"Table: a row has {left[0]!r}, which no column shows")
        if any(len(row) != len(columns) for row in rows if columns):
            raise InputError(f"Table: a row must have {len(columns)} values, one for each of its columns")
        return {"kind": "table", "columns": columns, "rows": _json(rows, "Table(rows)")}


@dataclass(frozen=True, slots=True)
class Diff:
    """A change, line by line. A value that is not a text is compared as JSON."""

    before: Any
    after: Any

    def plain(self) -> JSONObject:
        return {"kind": "diff", "before": _lines(self.before), "after": _lines(self.after)}


@dataclass(frozen=True, slots=True)
class Editable:
    """The value that people may edit at a gate, as plain JSON, and its schema."""

    value: Any
    schema: Mapping[str, Any]

    def plain(self) -> JSONObject:
        return {"kind": "json", "value": self.value, "edit": dict(self.schema)}


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    label: Annotated[str, Field(max_length=_LONGEST_LABEL)] = ""


class _Text(_Kept):
    kind: Literal["text", "markdown"]
    text: str


class _Json(_Kept):
    kind: Literal["json"]
    value: Any
    edit: JSONObject | None = None


class _Table(_Kept):
    kind: Literal["table"]
    columns: list[str]
    rows: list[list[Any]]


class _Diff(_Kept):
    kind: Literal["diff"]
    before: str
    after: str


class _Image(_Kept):
    kind: Literal["image"]
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: Annotated[str, Field(pattern="^[A-Za-z0-9+/=]*$")]


class _LeftOut(_Kept):
    kind: Literal["left-out"]
    size: Annotated[int, Field(ge=0)]
    digest: str = ""


ShownItem = Annotated[_Text | _Json | _Table | _Diff | _Image | _LeftOut, Field(discriminator="kind")]
_SHOWN = TypeAdapter(Annotated[list[ShownItem], Field(max_length=_MOST_VALUES)])


def read_shown(data: Any) -> list[JSONObject]:
    """Return the shown values in untrusted data, if they have the form that `shown_values` writes.

    Raises:
        ValidationError: they do not.
    """
    _SHOWN.validate_python(data)
    found: list[JSONObject] = data
    return found


def shown_values(given: Any) -> list[JSONObject]:
    """Return the values that people see, as plain JSON: a mapping is shown by its keys, everything else is one value.

    Raises:
        InputError: a value is not JSON, or there is too much to show.
    """
    labelled = given.items() if isinstance(given, Mapping) else [("", given)]
    found = [_plain(_label(label), value) for label, value in labelled]
    if len(found) > _MOST_VALUES:
        raise InputError(f"approval.show gives {len(found)} values, more than {_MOST_VALUES}")
    if (size := len(to_json(found))) > SHOWN_MOST:
        raise InputError(
            f"approval.show gives {size:,} bytes, more than {SHOWN_MOST:,}: people must see all of it to approve it"
        )
    return found


def shown_in_part(given: Mapping[str, Any]) -> list[JSONObject]:
    """Return the values that people see by default; for a value that is too large, its size and its digest."""
    found: list[JSONObject] = []
    left = SHOWN_MOST
    for label, value in given.items():
        one = _plain(cut(label, _LONGEST_LABEL), value)
        if (size := len(text := to_json(one))) > left or len(found) >= _MOST_VALUES:
            digest = hashlib.blake2b(text, digest_size=16).hexdigest()
            one = {"label": one["label"], "kind": "left-out", "size": size, "digest": digest}
        left -= len(to_json(one))
        found.append(one)
    return found[:_MOST_VALUES]


def shown_with_edit(shown: Sequence[Mapping[str, Any]], edit: Any) -> list[JSONObject]:
    """Return the values that people see after one of them has edited the editable value."""
    return [{**one, "value": edit} if "edit" in one else dict(one) for one in shown]


def _label(label: Any) -> str:
    if not isinstance(label, str) or len(label) > _LONGEST_LABEL:
        raise InputError(f"approval.show: a label is a text of at most {_LONGEST_LABEL} characters, got {label!r:.80}")
    return clean_text(label)


def _plain(label: str, value: Any) -> JSONObject:
    named = {"label": label} if label else {}
    match value:
        case Markdown() | Table() | Diff() | Editable():
            return {**named, **value.plain()}
        case Image():
            return {**named, **_picture(value)}
        case str():
            return {**named, "kind": "text", "text": clean_text(value)}
    return {**named, "kind": "json", "value": _json(value, f"the value {label!r}" if label else "its value")}


def _picture(image: Image) -> JSONObject:
    if image.data is None:
        raise InputError("approval.show: an image needs its data; the content at a URL may change")
    if image.media_type not in _PICTURES:
        raise InputError(f"approval.show: an image is one of {', '.join(_PICTURES)}, got {image.media_type!r}")
    try:
        data = base64.b64encode(base64.b64decode(image.data, validate=True)).decode()
    except binascii.Error as error:
        raise InputError(f"approval.show: the data of an image is not base64: {error}") from error
    return {"kind": "image", "media_type": image.media_type, "data": data}


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"approval.show: {what} takes a text, got {value!r:.80}")
    return clean_text(value)


def _lines(value: Any) -> str:
    return clean_text(value) if isinstance(value, str) else to_json(_json(value, "Diff"), indent=2).decode()


def _json(value: Any, what: str) -> Any:
    try:
        return read_json(to_json(value).decode())
    except (PydanticSerializationError, ValueError) as error:
        raise InputError(f"approval.show: {what} is not JSON: {error}") from error
