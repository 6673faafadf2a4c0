"""Forms for edits before an approval: an untouched value is never changed."""

import json
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from support.forms import sent_by

from standfast import InputError
from standfast.web.api.conversations import response_schema
from standfast.web.page.edits import editable_of, faults_of, read_edit
from standfast.web.page.forms import filled_form
from standfast.web.page.rendering import templates

ENVIRONMENT = templates()
CARD = ENVIRONMENT.from_string(
    '{% from "waiting.html" import edits %}<form>{{ edits("id", what, typed, wrong) }}</form>'
)


def sent(schema: Any, value: Any, **typed: str) -> dict[str, str]:
    """Return the form of a call's arguments as a browser sends it, with the texts typed into some of its fields."""
    item = {"tool": "t", "arguments": value, "edit": schema}
    page = CARD.render(what=editable_of(item, None), typed=None, wrong={})
    fields = [(name, "\r\n".join(text.split("\n"))) for name, text in sent_by(page)]
    form = dict(parse_qsl(urlencode(fields), keep_blank_values=True))
    named = {
        name if name in ("edit", "shown") else f"field.{name.replace('__', '.')}": text for name, text in typed.items()
    }
    assert named.keys() <= {*form, "field.gift"}, form
    return {**form, **named}


# --- values, and schemas that fit them or do not ---

TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", " ", "\n", "\r\n", "a\r\nb\rc\n", "\n\nfirst", "x\t", "null", "1", "true",
         "\u202eabc", "аррӏе", "שלום 12 a",
         "a\u200bb", "</textarea><script>", '"&lt;', "\x00", "‹U+202E›", "ａ"]
    ),
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0, -0.0, 1.0, 1, 10**60, -(10**25), 1e308, 5e-324, 0.1 + 0.2, 2**53 + 1]),
)  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
KEYS = st.one_of(
    st.sampled_from(["a", "b", "a.b", "a b", "amount", "é", "", "%2E", "field", "edit"]), st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
_LOOSE: list[dict[str, Any]] = [
    {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {}, {"type": "null"},
    {"type": "array", "items": {"type": "string"}}, {"type": "string", "format": "date"},
    {"type": "string", "format": "email"}, {"type": "string", "format": "password"},
    {"enum": [1, "1", True, None, 1.0]}, {"const": "x"}, {"type": "object"},
    {"type": "object", "additionalProperties": True},
    {"anyOf": [{"type": "number"}, {"type": "string"}]}, {"type": "integer", "minimum": 0, "default": 7},
    {"type": "boolean", "default": True}, {"type": "array", "items": {"type": "integer"}}, {"$ref": "#/$defs/Node"},
]  # fmt: skip


@st.composite
def schemas(draw: st.DrawFn, value: Any) -> dict[str, Any]:
    """Return a schema that may fit a value: by its type, or any other; even with fields that the value lacks."""
    match value:
        case dict() if draw(st.integers(0, 5)):
            parts = {key: draw(schemas(inner)) for key, inner in value.items() if draw(st.integers(0, 9))}
            more = {key: draw(st.sampled_from(_LOOSE)) for key in draw(st.lists(KEYS, max_size=2))}
            required = [key for key in {**more, **parts} if draw(st.booleans())]
            found: dict[str, Any] = {"type": "object", "properties": {**more, **parts}, "required": required}
        case bool() if draw(st.integers(0, 3)):
            found = {"type": "boolean"}
        case int() | float() if draw(st.integers(0, 3)):
            found = {"type": draw(st.sampled_from(["integer", "number"]))}
        case str() if draw(st.integers(0, 3)):
            found = {"type": "string"}
        case list() if draw(st.integers(0, 3)):
            found = {"type": "array", "items": {"type": "string"}}
        case _:
            found = draw(st.sampled_from(_LOOSE))
    if draw(st.integers(0, 3)) == 0:
        found = {"anyOf": [found, {"type": "null"}], "default": None}
    if draw(st.integers(0, 5)) == 0:
        found = {**found, "title": draw(TEXTS), "description": draw(TEXTS)}
    return found


PAIRS = st.dictionaries(KEYS, VALUES, max_size=5).flatmap(lambda value: st.tuples(schemas(value), st.just(value)))
NODE = {"Node": {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}}}


@settings(max_examples=150)
@given(PAIRS)
@example(({"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1.0}))
@example(({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": "\r\n"}))
@example(({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}, {"a": False}))
def test_an_untouched_form_changes_nothing(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    schema, value = pair
    form = sent({**schema, "$defs": NODE}, value)
    assert read_edit(form) is None
    assert json.loads(form["shown"]) == value


@given(PAIRS)
def test_the_fields_alone_give_back_the_very_value(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    schema, value = pair
    filled = filled_form({**schema, "$defs": NODE}, value)
    if filled is not None:
        form = sent({**schema, "$defs": NODE}, value)
        assert json.dumps(filled.read(form), sort_keys=True) == json.dumps(value, sort_keys=True)
        assert "schema" in form


@given(VALUES, st.dictionaries(KEYS, VALUES, max_size=3))
def test_no_schema_of_a_stranger_breaks_the_page(schema: Any, value: dict[str, Any]) -> None:
    for hostile in (
        schema,
        {"type": "object", "properties": schema},
        {"type": "object", "required": schema, "$defs": schema},
    ):
        if isinstance(hostile, dict):
            assert read_edit(sent({"properties": {"a": {}}, **hostile}, value)) is None


def test_a_schema_with_too_many_fields_is_typed_as_json() -> None:
    many = {f"k{number}": {"type": "string"} for number in range(150)}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/B"}, "b": {"$ref": "#/$defs/B"}},
              "$defs": {"B": {"type": "object", "properties": many}}}  # fmt: skip
    assert filled_form(schema, {"a": {}}) is not None
    assert filled_form(schema, {"a": {}, "b": {}}) is None


# --- what people type ---


class Address(BaseModel):
    street: str
    zip: str | None = None


class Order(BaseModel):
    amount: int = Field(title="How much", description="In cents.")
    ratio: float = 1.0
    note: str = ""
    gift: bool = False
    kind: str | None = None
    tags: list[str] = []
    to: Address | None = None
    lines: list[dict[str, int]] = []


SCHEMA = Order.model_json_schema()
VALUE = {
    "amount": 5, "ratio": 1.0, "note": "", "gift": False, "kind": None, "tags": ["a", "b"],
    "to": {"street": "High St\nB", "zip": None}, "lines": [{"n": 1}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "changed"),
    [
        ({"amount": "80"}, {"amount": 80}),
        ({"ratio": "1"}, {"ratio": 1}),
        ({"ratio": "1e3"}, {"ratio": 1000.0}),
        ({"note": "a\r\nb"}, {"note": "a\nb"}),
        ({"gift": "on"}, {"gift": True}),
        ({"kind": "x"}, {"kind": "x"}),
        ({"tags": "a\r\n\r\nc"}, {"tags": ["a", "c"]}),
        ({"tags": ""}, {"tags": []}),
        ({"to__street": "Low St"}, {"to": {"street": "Low St", "zip": None}}),
        ({"lines": "[]"}, {"lines": []}),
        ({"edit": json.dumps({**VALUE, "amount": 6})}, {"amount": 6}),
        ({"edit": json.dumps({**VALUE, "amount": 6}), "amount": "6"}, {"amount": 6}),
        ({"edit": json.dumps({**VALUE, "ratio": 1})}, {"ratio": 1}),
    ],
    ids=str,
)
def test_one_change_is_that_change_and_no_other(typed: dict[str, str], changed: dict[str, Any]) -> None:
    edit = read_edit(sent(SCHEMA, VALUE, **typed))
    assert json.dumps(edit, sort_keys=True) == json.dumps({**VALUE, **changed}, sort_keys=True)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ({"amount": "1e"}, "How much (amount): '1e' is not a number"),
        ({"lines": '[{"n": 1, "n": 2}]'}, "lines: an object has a key twice"),
        ({"amount": "6", "edit": json.dumps({**VALUE, "amount": 7})}, "changed differently"),
        ({"edit": "[]"}, "Arguments: a JSON array instead of an object"),
        ({"edit": ""}, "Arguments: not valid JSON"),
    ],
    ids=str,
)
def test_what_cannot_be_read_approves_nothing(typed: dict[str, str], why: str) -> None:
    with pytest.raises(InputError) as raised:
        read_edit(sent(SCHEMA, VALUE, **typed))
    assert why.casefold() in str(raised.value).casefold()
    assert "Nothing was approved" in str(raised.value)


def test_a_field_that_was_emptied_is_missing_null_or_an_empty_text() -> None:
    value = {**VALUE, "note": "x", "kind": "y"}
    edit = read_edit(sent(SCHEMA, value, amount="", note="", kind=""))
    assert edit == {**{name: given for name, given in value.items() if name != "amount"}, "note": "", "kind": None}


def test_what_an_empty_field_stands_for_is_said_in_it() -> None:
    form = filled_form(SCHEMA, {"amount": 1, "note": "", "kind": None, "tags": []})
    assert form is not None
    assert {one.key: one.placeholder for one in form.fields if one.key in ("note", "kind", "tags", "to")} == {
        "note": "an empty text", "kind": "null", "tags": "[]", "to": "not given",
    }  # fmt: skip


def test_a_title_never_stands_instead_of_another_key() -> None:
    schema = {
        "type": "object",
        "properties": {"to": {"type": "string", "title": "From"}, "is_new": {"title": "Is New"}},
    }
    form = filled_form(schema, {"to": "eve"})
    assert form is not None
    assert [one.label for one in form.fields] == ["From (to)", "Is New"]


def test_an_error_of_the_run_stands_beside_its_field() -> None:
    what = editable_of({"tool": "t", "arguments": VALUE, "edit": SCHEMA}, None)
    error = InputError('gate c1: edit: Invalid input for tool "t": amount: not an integer; to.street: too long; x: odd')
    assert what is not None
    assert faults_of(error, what.form) == {"field.amount": "not an integer", "field.to.street": "too long"}


def test_what_was_typed_is_shown_again_with_the_error_beside_it() -> None:
    typed = sent(SCHEMA, VALUE, amount="x<y", gift="on", note="1\r\n2")
    what = editable_of({"tool": "t", "arguments": VALUE, "edit": SCHEMA}, None)
    page = CARD.render(what=what, typed=typed, wrong={"field.amount": "no number"})
    again = dict(sent_by(page))
    assert {name: text.replace("\r\n", "\n") for name, text in typed.items()} == again
    assert 'aria-invalid="true"' in page
    assert "no number" in page
    assert "<details>" in page  # without typed JSON


def test_a_value_that_is_not_an_object_has_a_form_too() -> None:
    item = {"shown": [{"kind": "json", "label": "title", "value": "Draft", "edit": {"type": "string"}}]}
    what = editable_of(item, None)
    page = CARD.render(what=what, typed=None, wrong={})
    form = dict(sent_by(page))
    assert read_edit(form) is None
    assert read_edit({**form, "field": "Better"}) == "Better"
    with pytest.raises(InputError, match="null cannot replace"):
        read_edit({**form, "edit": "null"})


def test_a_program_is_told_by_a_schema_what_an_edit_may_be() -> None:
    digest = {"kind": "approval", "name": "c1", "digest": "d"}
    call = response_schema({**digest, "tool": "t", "arguments": VALUE, "edit": SCHEMA})
    assert call["properties"]["edit"]["properties"].keys() == SCHEMA["properties"].keys()
    assert call["$defs"] == SCHEMA["$defs"]  # where references look for them
    shown = [{"kind": "json", "value": ["a"], "edit": {"type": "array"}}]
    assert response_schema({**digest, "shown": shown})["properties"]["edit"] == {"type": "array"}
    unknown = response_schema({**digest, "tool": "t", "arguments": {}})
    assert unknown["properties"]["edit"]["type"] == "object"
    assert "edit" not in response_schema({**digest, "shown": []})["properties"]
    assert "edit" not in response_schema({**digest, "tool": "t", "arguments": {}, "cut": "too large"})["properties"]
