"""Tools: the result of a function and its options, and refused declarations."""

import dataclasses
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from support.tools import attempt

from standfast import DefinitionError, InputError, RetryPolicy, Tool, tool
from standfast.tools import Returned


def test_a_function_becomes_a_tool() -> None:
    @tool
    def get_issue(issue_id: str, depth: int = 1) -> dict[str, Any]:
        """Fetch an issue."""
        return {}

    assert (get_issue.name, get_issue.description) == ("get_issue", "Fetch an issue.")
    assert get_issue.input_schema == {
        "type": "object",
        "properties": {"issue_id": {"type": "string"}, "depth": {"type": "integer", "default": 1}},
        "required": ["issue_id"],
    }


def test_a_tool_has_effects_and_runs_alone_unless_told() -> None:
    @tool
    def post() -> None:
        """Post."""

    assert (post.safe_to_retry, post.parallel, post.timeout, post.retry, post.verify) == (
        False,
        False,
        None,
        None,
        None,
    )


def test_options_are_kept() -> None:
    policy = RetryPolicy(maximum_attempts=2)

    @tool(name="look-up", description="Look.", safe_to_retry=True, parallel=True, timeout="2h", retry=policy)
    def look() -> None:
        """Not this."""

    assert (look.name, look.description, look.safe_to_retry, look.parallel, look.timeout, look.retry) == (
        "look-up",
        "Look.",
        True,
        True,
        7_200,
        policy,
    )


def test_a_function_without_a_docstring_is_described_by_its_name() -> None:
    @tool
    def look_up() -> None: ...

    assert look_up.description == "look_up"


def test_a_tool_without_arguments_has_an_empty_schema() -> None:
    assert Tool("look", description="Look.").input_schema == {"type": "object", "properties": {}}


@pytest.mark.parametrize("name", ["look", "_x", "A-b_9", "a" * 64])
def test_a_tool_may_be_named_as_providers_allow(name: str) -> None:
    assert Tool(name, description="d").name == name


@pytest.mark.parametrize("name", ["", "1a", "-a", "a b", "é", "a\n", "a.b", "a" * 65, None, 5])
def test_a_tool_name_that_a_provider_refuses_is_refused(name: Any) -> None:
    with pytest.raises(DefinitionError, match="Tool name must match") as caught:
        Tool(name, description="d")
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("description", ["", "   ", "\n", None, 5])
def test_an_empty_description_is_refused(description: Any) -> None:
    with pytest.raises(DefinitionError, match="Tool 'look': description must be a non-empty string"):
        Tool("look", description=description)


@pytest.mark.parametrize("option", ["safe_to_retry", "parallel"])
@pytest.mark.parametrize("value", ["yes", 1, 0, None])
def test_a_flag_that_is_not_a_boolean_is_refused(option: str, value: Any) -> None:
    with pytest.raises(DefinitionError, match=f"Tool 'look': {option} must be True or False, got {value!r}"):
        Tool("look", description="d", **{option: value})


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="idempotent"):
        tool(idempotent=True)(lambda: None)  # type: ignore[call-overload]


@pytest.mark.parametrize("thing", [5, "look", None])
def test_a_value_that_is_not_a_function_becomes_no_tool(thing: Any) -> None:
    with pytest.raises(DefinitionError, match=f"needs a function, got {thing!r}"):
        tool()(thing)


@pytest.mark.parametrize("option", ["handler", "verify"])
def test_what_cannot_be_called_is_not_a_handler(option: str) -> None:
    with pytest.raises(DefinitionError, match=f"Tool 'look': {option} must be callable, got 5"):
        Tool("look", description="d", **{option: 5})  # type: ignore[arg-type]


def test_a_retry_policy_needs_safe_to_retry() -> None:
    with pytest.raises(DefinitionError, match="Tool 'post': retry needs safe_to_retry=True"):
        Tool("post", description="d", retry=RetryPolicy())


def test_a_retry_that_is_not_a_policy_is_refused() -> None:
    with pytest.raises(DefinitionError, match="retry must be a RetryPolicy, got 3"):
        Tool("look", description="d", safe_to_retry=True, retry=3)  # type: ignore[arg-type]


def test_a_tool_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Tool("look", description="d").safe_to_retry = True  # type: ignore[misc]


def test_a_schema_that_somebody_changes_is_not_the_schema_of_the_tool() -> None:
    @tool
    def look(x: int) -> None:
        """Look."""

    look.input_schema["properties"]["x"]["type"] = "string"

    assert look.input_schema["properties"] == {"x": {"type": "integer"}}


def test_with_handler_leaves_the_first_tool_alone() -> None:
    first: Tool[..., Any] = Tool("look", description="d", timeout=5, safe_to_retry=True)
    second = first.with_handler(lambda: "seen")

    assert first.handler is None
    assert (second(), second.name, second.timeout, second.safe_to_retry) == ("seen", "look", 5, True)


@pytest.mark.parametrize("handler", [5, "look", None])
def test_what_cannot_be_called_is_not_injected(handler: Any) -> None:
    with pytest.raises(InputError, match="Tool 'look': the handler given for it is not callable"):
        Tool("look", description="d").with_handler(handler)


async def test_an_injected_handler_wins() -> None:
    @tool
    def look(x: int) -> str:
        """Look."""
        return "declared"

    assert await attempt(look.with_handler(lambda x: f"injected {x}"), {"x": "1"}) == Returned("injected 1")


def test_a_tool_is_called_like_its_function() -> None:
    @tool
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert (add(1), add(1, 1), add(a=2, b=3)) == (3, 2, 5)


async def test_an_async_tool_is_awaited_like_its_function() -> None:
    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    assert await add(1, 2) == 3


def test_a_tool_without_a_handler_cannot_be_called() -> None:
    with pytest.raises(DefinitionError, match="Tool 'look': has no handler"):
        Tool("look", description="d")()


@pytest.mark.parametrize("thing", [Tool("look", description="d"), dict, 5], ids=lambda thing: type(thing).__name__)
def test_a_value_that_is_not_a_function_is_not_a_tool(thing: Any) -> None:
    with pytest.raises(DefinitionError, match="@tool needs a function"):
        tool(thing)


# --- functions that cannot be a tool's ---


async def pages(x: int) -> AsyncIterator[int]:
    yield x


def lines(x: int) -> Iterator[int]:
    yield x


class Shop:
    async def sell(self, amount: int) -> int:
        """Sell."""
        return amount

    async def __call__(self, x: int) -> AsyncIterator[int]:
        yield x


@pytest.mark.parametrize(
    "function",
    [pages, lines, functools.partial(pages, x=1), Shop()],
    ids=["async", "plain", "partial", "object"],
)
def test_a_generator_is_refused(function: Any) -> None:
    with pytest.raises(DefinitionError, match=r"is a generator, .*: collect what it yields in a list, and return that"):
        tool(function)
    with pytest.raises(DefinitionError, match="is a generator"):
        Tool("look", description="d", handler=function)


def test_a_method_without_its_object_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"parameter 'self' is for an object, .*: .* as in tool\(shop.sell\)"):
        tool(Shop.sell)
    assert [*tool(Shop().sell).input_schema["properties"]] == ["amount"]


def test_a_parameter_that_is_called_self_and_has_a_type_is_one_like_any_other() -> None:
    def look(self: str) -> str:
        """Look."""
        return self

    assert [*tool(look).input_schema["properties"]] == ["self"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"unknown": [TimeoutError]}, "Tool 'look': unknown must be a tuple of classes of errors"),
        ({"not_run": TimeoutError}, "not_run must be a tuple of classes of errors"),
        ({"not_run": ("TimeoutError",)}, "not_run must be a tuple of classes of errors"),
        ({"not_run": (int,)}, "not_run must be a tuple of classes of errors"),
        ({"not_run": (OSError,), "unknown": (OSError,)}, "OSError is in both unknown and not_run"),
    ],
    ids=str,
)
def test_classes_of_errors_that_cannot_be_used_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        Tool("look", description="d", **options)
