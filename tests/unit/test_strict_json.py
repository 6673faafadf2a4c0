"""Any arguments and text from a model become values that strict JSON and databases accept."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import InputError, ToolCall
from standfast.messages import MAX_DEPTH, MAX_DIGITS, clean_text, json_problem, read_object, with_article

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=4)
_ANYTHING = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=8,
)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def nested_dict(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def strict_json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False).encode().decode()


# --- tool calls ---


@pytest.mark.parametrize(
    ("given_arguments", "arguments"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        (' {"a": {"b": [1, null, true, 1.5]}} ', {"a": {"b": [1, None, True, 1.5]}}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"a": "\\u0000"}', {"a": "\0"}),
        ("{}", {}),
        ("", {}),
        (" \n", {}),
        (None, {}),
    ],
)
def test_arguments_that_are_an_object_are_read(given_arguments: Any, arguments: dict[str, Any]) -> None:
    assert ToolCall(arguments=given_arguments).arguments == arguments


@pytest.mark.parametrize(
    "text",
    [
        "not JSON",
        "[1]",
        '"text"',
        "null",
        "5",
        '{"a": 1} and more',
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        '{"\\udfff": 1}',
        nested(MAX_DEPTH + 1),
        '{"a": ' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}",
        nested(100_000),
        "[" * 100_000,
        '{"a": ' + "1" * (MAX_DIGITS + 1) + "}",
        '{"a": -' + "1" * (MAX_DIGITS + 1) + "}",
    ],
    ids=lambda text: text[:20],
)
def test_arguments_that_are_not_a_strict_object_are_kept_as_text(text: str) -> None:
    assert ToolCall(arguments=text).arguments == text


def test_arguments_may_be_64_levels_deep() -> None:
    assert ToolCall(arguments=nested(64)).arguments == nested_dict(64)


@pytest.mark.parametrize("innermost", ["1", "{}", "[]"])
def test_the_depth_of_a_text_does_not_depend_on_what_is_innermost(innermost: str) -> None:
    text = '{"a":' * 65 + innermost + "}" * 65

    assert ToolCall(arguments=text).arguments == text


def test_an_empty_object_is_a_level_of_its_own() -> None:
    text = '{"a":' * 64 + "{}" + "}" * 64

    assert ToolCall(arguments=text).arguments == text


def test_an_integer_may_have_4300_digits() -> None:
    text = '{"a":-' + "9" * 4_300 + "}"

    assert ToolCall(arguments=text).arguments == {"a": 1 - 10**4_300}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": float("nan")}, '{"a": NaN}'),
        ({"a": [float("inf")]}, '{"a": [Infinity]}'),
        ({"a": "\ud800"}, '{"a": "\\ud800"}'),
        ({"\ud800": 1}, '{"\\ud800": 1}'),
        ([1], "[1]"),
        (1.5, "1.5"),
        (float("nan"), "NaN"),
        (True, "true"),
    ],
)
def test_values_that_are_not_a_strict_object_become_text(arguments: Any, text: str) -> None:
    assert ToolCall(arguments=arguments).arguments == text


@pytest.mark.parametrize("arguments", [{"a": {1}}, {"a": b"x"}, b"{}", object(), {(1, 2): 3}])
def test_values_that_are_not_json_at_all_are_named_by_their_type(arguments: Any) -> None:
    assert ToolCall(arguments=arguments).arguments == f"({with_article(type(arguments).__name__)} that is not JSON)"


def test_an_object_that_is_nested_without_end_is_kept_as_text_or_named() -> None:
    assert isinstance(ToolCall(arguments=nested_dict(5_000)).arguments, str)  # Python's own limit varies by version


def test_arguments_that_contain_themselves_are_not_json() -> None:
    arguments: dict[str, Any] = {}
    arguments["a"] = arguments

    assert ToolCall(arguments=arguments).arguments == "(a dict that is not JSON)"


@pytest.mark.parametrize(
    "arguments",
    [{"a": (1, 2)}, {1: 1}, '{"a": "\ud800"}', '{"a": "\0"}', '{"a": NaN}', nested(65), {"a": None}, {"a": {1}}],
    ids=ascii,
)
def test_a_call_read_back_from_its_json_is_the_same_call(arguments: Any) -> None:
    call = ToolCall(id="c1", name="look", arguments=arguments)

    assert ToolCall.model_validate_json(call.model_dump_json()) == call


@given(_ANYTHING)
def test_no_arguments_raise_and_all_become_strict_json(arguments: Any) -> None:
    call = ToolCall(id="c1", name="look", arguments=arguments)

    assert json.loads(strict_json(call.model_dump())) == call.model_dump()


@given(st.text(st.characters(), max_size=30))
def test_no_text_raises_and_all_becomes_strict_json(arguments: str) -> None:
    call = ToolCall(id="c1", name="look", arguments=arguments)

    assert ToolCall.model_validate_json(call.model_dump_json()) == call


@pytest.mark.parametrize(("value", "text"), [(None, ""), (5, "5"), ("a", "a"), (["a"], "['a']")])
def test_ids_and_names_are_text(value: Any, text: str) -> None:
    call = ToolCall(id=value, name=value)

    assert (call.id, call.name) == (text, text)


@pytest.mark.parametrize("text", ["\ud800", "\0"], ids=ascii)
def test_ids_and_names_hold_nothing_that_json_cannot_carry(text: str) -> None:
    assert ToolCall(id=text, name=text) == ToolCall(id="\ufffd", name="\ufffd")


@pytest.mark.parametrize("junk", [5, "text", [1], True])
def test_a_call_that_is_not_an_object_is_a_nameless_call_with_the_junk_as_arguments(junk: Any) -> None:
    assert ToolCall.model_validate(junk) == ToolCall(arguments=str(junk))


def test_further_keys_of_a_call_are_dropped() -> None:
    call = ToolCall.model_validate({"id": "c1", "name": "look", "arguments": {}, "type": "tool_use"})

    assert call.model_dump() == {"id": "c1", "name": "look", "arguments": {}}


def test_a_call_does_not_change_with_the_object_it_was_made_from() -> None:
    arguments: dict[str, Any] = {"a": {"b": [1]}}
    call = ToolCall(arguments=arguments)
    arguments["a"]["b"].append(2)

    assert call.arguments == {"a": {"b": [1]}}


def test_calls_share_no_default() -> None:
    call = ToolCall()
    assert isinstance(call.arguments, dict)
    call.arguments["a"] = 1

    assert ToolCall().arguments == {}


# --- text and JSON ---


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("é😀", "é😀"),
        ("a\0b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("a\udc00b", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("", ""),
    ],
    ids=ascii,
)
def test_text_is_cleaned_of_what_no_database_takes(text: str, clean: str) -> None:
    assert clean_text(text) == clean


@given(st.text(st.characters()))
def test_clean_text_is_utf8_and_clean(text: str) -> None:
    clean = clean_text(text)

    assert clean.encode().decode() == clean == clean_text(clean)
    assert "\0" not in clean


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not valid JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[]", "a JSON array instead of an object"),
        ("null", "a JSON null instead of an object"),
        ("true", "a JSON boolean instead of an object"),
        ("1.5", "a JSON number instead of an object"),
        ('"a"', "a JSON string instead of an object"),
        (nested(65), "nested deeper than 64 levels"),
        ('{"a": 1e999}', "inf is not JSON"),
        ('{"a": "\\ud800"}', "a string has a lone surrogate"),
    ],
    ids=lambda text: text[:20],
)
def test_a_refused_object_says_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_object(text)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [1, 1.5, None, True, "é😀"]}, None),
        (nested_dict(64), None),
        (nested_dict(65), "nested deeper than 64 levels"),
        (10**4_300 - 1, None),
        (10**4_300, "an integer has more than 4300 digits"),
        (-(10**4_300), "an integer has more than 4300 digits"),
        (float("-inf"), "-inf is not JSON"),
        ({1: 1}, "an object has a key that is not a string"),
        ({"a": (1,)}, "a value of type tuple is not JSON"),
        ({"a": b""}, "a value of type bytes is not JSON"),
    ],
    ids=lambda value: repr(value)[:20] if not isinstance(value, int) else "integer",
)
def test_strict_json_is_told_from_the_rest(value: object, problem: str | None) -> None:
    assert json_problem(value) == problem


@given(_ANYTHING)
def test_what_has_no_problem_is_strict_json(value: object) -> None:
    if json_problem(value) is None:
        assert json.loads(strict_json(value)) == value


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, [[], []], "text"])
def test_a_value_is_walked_through_if_it_has_not_too_many_values(value: Any) -> None:
    assert json_problem(value, 3) is None
    assert json_problem([value, value, value, value], 3) == "more than 3 values"
