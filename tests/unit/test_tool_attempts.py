"""Attempts: the outcome of one tool call, and of a lost one."""

import dataclasses
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Optional

import pytest
from pydantic import AfterValidator, BaseModel, PlainSerializer
from support.tools import LIMIT, Color, Opaque, Point, Size, attempt, here, returning, written

from standfast import (
    Approval,
    Happened,
    InputError,
    InterruptError,
    NotHappened,
    RetryableError,
    TerminalError,
    Tool,
    ToolCall,
    ToolContext,
    ToolDurabilityError,
    tool,
)
from standfast.tools import Asked, Failed, Outcome, Returned, Terminated, Unknown


class Tagged(BaseModel):
    tags: set[str] = set()
    more: Any = None


class Spelled(BaseModel, ser_json_inf_nan="strings"):
    x: float


@dataclasses.dataclass
class Box:
    inside: Any


NAN = float("nan")


async def verified(subject: Tool[..., Any], arguments: Any = None) -> Outcome | None:
    context = ToolContext(agent_name="greeter", tool_call_id="c1")
    return await subject.ask_whether_it_happened(
        {} if arguments is None else arguments, context, limit=LIMIT, read=here, write=written(subject), in_thread=here
    )


def raising(error: BaseException) -> Tool[..., Any]:
    def fail() -> None:
        raise error

    return Tool("fail", description="Fail.", handler=fail)


# --- results ---


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text as it is", "text as it is"),
        ('{"a": 1}', '{"a": 1}'),
        ("a\0\ud800", "a\ufffd\ufffd"),
        (None, "null"),
        (True, "true"),
        (5, "5"),
        ({"a": [1, None, "é"]}, '{"a":[1,null,"é"]}'),
        (Point(x=1), '{"x":1,"y":0}'),
        (Size(1), '{"width":1,"unit":"cm"}'),
        ((1, 2), "[1,2]"),
        (dt.date(2020, 1, 1), '"2020-01-01"'),
        (Decimal("1.5"), '"1.5"'),
        (Color.RED, '"red"'),
        (b"bytes", '"bytes"'),
        ({1: "a"}, '{"1":"a"}'),
        ([None, 1.5], "[null,1.5]"),
        (Tagged(tags={"a"}), '{"tags":["a"],"more":null}'),
    ],
    ids=ascii,
)
async def test_a_result_is_unchanged_text_or_json(value: Any, content: str) -> None:
    assert await attempt(returning(value)) == Returned(content)


@pytest.mark.parametrize(
    ("annotation", "value", "content"),
    [
        (Point, {"x": "1", "secret": "s"}, '{"x":1,"y":0}'),
        (Size, {"width": 1, "secret": "s"}, '{"width":1,"unit":"cm"}'),
        (list[Point], [{"x": 1, "secret": "s"}], '[{"x":1,"y":0}]'),
        (Optional[Point], None, "null"),  # noqa: UP045
        (Point | str, "text", "text"),
        (None, None, "null"),
    ],
    ids=str,
)
async def test_a_result_is_read_by_the_output_and_extra_keys_are_stripped(
    annotation: Any, value: Any, content: str
) -> None:
    assert await attempt(returning(value, annotation)) == Returned(content)


async def test_extra_fields_of_a_subclass_are_stripped() -> None:
    class Secret(Point):
        secret: str = "s"

    assert await attempt(returning(Secret(x=1), Point)) == Returned('{"x":1,"y":0}')


async def test_the_return_annotation_is_the_output() -> None:
    @tool
    def look() -> Point:
        """Look."""
        return {"x": 1, "secret": "s"}  # type: ignore[return-value]

    assert await attempt(look) == Returned('{"x":1,"y":0}')


@pytest.mark.parametrize(
    ("annotation", "value", "error"),
    [
        (Point, {"x": "one"}, "x: Input should be a valid integer, unable to parse string as an integer"),
        (str, 5, "value: Input should be a valid string"),
        (None, 5, "value: Input should be None"),
    ],
    ids=str,
)
async def test_a_result_that_does_not_match_the_output_fails(annotation: Any, value: Any, error: str) -> None:
    assert await attempt(returning(value, annotation)) == Failed(f'Tool "give" returned invalid output: {error}')


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [object(), Opaque, len, b"\xff", ["\ud800"], cycle(), deep(), ValueError("x")],
    ids=["object", "class", "function", "bytes", "lone surrogate", "cycle", "deep", "error"],
)
async def test_a_result_that_is_not_json_is_lost_with_an_error(value: Any) -> None:
    outcome = await attempt(returning(value))

    assert isinstance(outcome, Failed)
    assert outcome.error.startswith('Tool "give" ran, but its result was lost: it is not JSON')
    assert not outcome.raised


@pytest.mark.parametrize(
    ("annotation", "value", "why"),
    [
        (Any, NAN, "JSON has neither NaN nor infinities"),
        (Any, {"a": [1, {"b": float("-inf")}]}, "JSON has neither"),
        (float | None, NAN, "JSON has neither"),
        (list[float], [1.0, NAN], "JSON has neither"),
        (Any, Size(NAN), "JSON has neither"),  # type: ignore[arg-type]
        (Any, {1, 2}, "JSON has no sets"),
        (dict[str, Any], {"a": [frozenset("a")]}, "JSON has no sets"),
        (Tagged, Tagged(more={"a"}), "JSON has no sets"),
        (Box, Box({"a"}), "JSON has no sets"),
        (Any, {1: "a", "1": "b"}, "two of its keys are the same text in JSON"),
    ],
    ids=str,
)
async def test_a_result_that_json_would_change_is_an_error_that_says_the_call_ran(
    annotation: Any, value: Any, why: str
) -> None:
    outcome = await attempt(returning(value, annotation))

    assert isinstance(outcome, Failed)
    assert outcome.error.startswith(f'Tool "give" ran, but its result could not be kept whole: {why}')
    assert not outcome.raised


@pytest.mark.parametrize(
    ("annotation", "value", "content"),
    [
        (set[str], {"a"}, '["a"]'),
        (list[frozenset[int]], [{1}], "[[1]]"),
        (dict[int, str], {1: "a", 2: "b"}, '{"1":"a","2":"b"}'),
        (Spelled, Spelled(x=NAN), '{"x":"NaN"}'),
        (dt.datetime, dt.datetime(2020, 1, 1, tzinfo=dt.UTC), '"2020-01-01T00:00:00Z"'),
        (float | None, None, "null"),
    ],
    ids=str,
)
async def test_what_a_declared_type_writes_is_kept(annotation: Any, value: Any, content: str) -> None:
    assert await attempt(returning(value, annotation)) == Returned(content)


@pytest.mark.parametrize("value", ["x" * LIMIT, "é" * (LIMIT // 2)])
async def test_a_result_may_be_as_long_as_the_limit(value: str) -> None:
    assert await attempt(returning(value)) == Returned(value)


@pytest.mark.parametrize(
    ("value", "size"), [("x" * 1_025, "1,025"), ("é" * 513, "1,026"), (["x" * 1_021], "1,025")], ids=["a", "é", "JSON"]
)
async def test_a_longer_result_is_lost_with_an_error_that_names_the_limit(value: Any, size: str) -> None:
    assert await attempt(returning(value)) == Failed(
        f'Tool "give" ran, but its result was lost: {size} bytes, more than max_message_bytes=1,024'
    )


# --- errors ---


class Silent(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("an error without a text")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("no such issue"), Failed("no such issue", raised=True)),
        (ValueError(), Failed("ValueError", raised=True)),
        (ValueError(5), Failed("5", raised=True)),
        (TimeoutError(), Unknown("TimeoutError")),
        (ConnectionRefusedError("refused"), Failed("refused", raised=True)),
        (ValueError("a\0\ud800"), Failed("a\ufffd\ufffd", raised=True)),
        (InputError("not this"), Failed("not this", raised=True)),
        (
            ExceptionGroup("two failed", [ValueError("a"), ExceptionGroup("inner", [KeyError("b"), OSError()])]),
            Failed("two failed: ValueError: a; KeyError: 'b'; OSError", raised=True),
        ),
        (
            ExceptionGroup("many", [ValueError(str(number)) for number in range(1_000)]),
            Failed("many: " + "; ".join(f"ValueError: {n}" for n in range(20)) + "; and 980 more", raised=True),
        ),
        (ExceptionGroup("lost", [ValueError("a"), TimeoutError()]), Unknown("lost: ValueError: a; TimeoutError")),
        (Silent(), Failed("Silent", raised=True)),
        (RetryableError("busy"), Failed("busy", raised=True, retryable=True)),
        (RetryableError("busy", retry_after=30), Failed("busy", raised=True, retryable=True, retry_after=30)),
        (RetryableError(""), Failed("RetryableError", raised=True, retryable=True)),
        (InterruptError("Who?"), Asked("Who?")),
        (InterruptError("Who\0?"), Asked("Who\ufffd?")),
        (InterruptError(5), Asked("5")),  # type: ignore[arg-type]
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_what_a_handler_raises_becomes_an_outcome(error: Exception, outcome: Outcome) -> None:
    assert await attempt(raising(error)) == outcome


async def test_a_terminal_error_is_kept_whole() -> None:
    error = TerminalError("gone", 404, {"issue": 42})

    assert await attempt(raising(error)) == Terminated(error)


async def test_an_error_of_an_async_handler_is_the_same() -> None:
    async def fail() -> None:
        raise ValueError("no such issue")

    assert await attempt(Tool("fail", description="d", handler=fail)) == Failed("no such issue", raised=True)


async def test_an_interrupt_from_the_keyboard_is_not_an_outcome() -> None:
    with pytest.raises(KeyboardInterrupt):
        await attempt(raising(KeyboardInterrupt()))


async def test_a_tool_cannot_end_the_process() -> None:
    assert await attempt(raising(SystemExit(2))) == Failed("2", raised=True)


@pytest.mark.parametrize("error", [KeyError("x"), TypeError("x"), RuntimeError("x")], ids=repr)
async def test_whatever_a_validator_raises_the_arguments_are_invalid(error: Exception) -> None:
    def refuse(value: int) -> int:
        raise error

    @tool
    def look(x: Annotated[int, AfterValidator(refuse)]) -> None: ...

    outcome = await attempt(look, {"x": 1})
    assert isinstance(outcome, Failed)
    assert (outcome.error.startswith('Invalid input for tool "look"'), outcome.raised) == (True, False)


async def test_whatever_a_serializer_raises_the_result_is_lost_and_the_run_is_not() -> None:
    def refuse(value: int) -> int:
        raise KeyError("x")

    @tool
    def look() -> Annotated[int, PlainSerializer(refuse)]:
        return 1

    assert isinstance(await attempt(look), Failed)


@pytest.mark.parametrize("error", [ValueError("x" * 5_000), RetryableError("é" * 5_000), InterruptError("x" * 5_000)])
async def test_an_error_or_question_longer_than_the_limit_is_cut(error: Exception) -> None:
    outcome = await attempt(raising(error))
    text = outcome.question if isinstance(outcome, Asked) else getattr(outcome, "error", "")

    assert len(text.encode()) < LIMIT + 100


# --- errors that leave the outcome open ---


def lost(**options: Any) -> Tool[..., Any]:
    def fail() -> None:
        raise TimeoutError("no answer")

    return Tool("fail", description="Fail.", handler=fail, **options)


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({}, Unknown("no answer")),
        ({"verify": lambda: Happened("done")}, Returned("done")),
        ({"verify": lambda: None}, Unknown("no answer")),
        ({"verify": lambda: 5}, Unknown("no answer; verify returned int instead of Happened, NotHappened or None")),
        ({"verify": NotHappened}, Failed("no answer", raised=True)),
        ({"safe_to_retry": True}, Failed("no answer", raised=True, retryable=True)),
        ({"not_run": (TimeoutError,)}, Failed("no answer", raised=True)),
        ({"not_run": (OSError,), "unknown": (TimeoutError,)}, Unknown("no answer")),
    ],
    ids=["unknown", "happened", "cannot tell", "bad verify", "not happened", "safe", "said not to have run", "nearest"],
)
async def test_an_error_that_leaves_the_outcome_open_is_not_told_as_a_failure(
    options: dict[str, Any], outcome: Outcome
) -> None:
    assert await attempt(lost(**options)) == outcome


async def test_a_handler_that_cannot_tell_has_its_verify_asked() -> None:
    def fail() -> None:
        raise ToolDurabilityError("fail", "c1", reason="it broke")

    assert await attempt(Tool("fail", description="d", handler=fail)) == Unknown("it broke")
    told = Tool("fail", description="d", handler=fail, verify=lambda: Happened(5))
    assert await attempt(told) == Returned("5")


async def test_a_call_that_is_not_safe_any_more_is_not_tried_again() -> None:
    assert await attempt(lost(safe_to_retry=True), safe_to_retry=False) == Unknown("no answer")


# --- verify ---


def verifying(verify: Callable[..., Any] | None, output: Any = Any) -> Tool[..., Any]:
    return Tool("post", description="d", input=Point, output=output, handler=lambda point: None, verify=verify)


def give(verdict: Any) -> Callable[..., Any]:
    return lambda point: verdict


def fail(point: Point) -> None:
    raise ValueError("no network")


def ask(point: Point) -> None:
    raise InterruptError("Did it happen?")


async def look_async(point: Point, context: ToolContext) -> Happened:
    return Happened(f"{point.x} for {context.tool_call_id}")


@pytest.mark.parametrize(
    ("verify", "outcome"),
    [
        (None, Unknown()),
        (give(None), Unknown()),
        (give(NotHappened()), None),
        (give(Happened()), Returned("null")),
        (give(Happened({"id": 1})), Returned('{"id":1}')),
        (look_async, Returned("1 for c1")),
        (give(True), Unknown("verify returned bool instead of Happened, NotHappened or None")),
        (give("yes"), Unknown("verify returned str instead of Happened, NotHappened or None")),
        (fail, Unknown("verify failed: no network")),
        (ask, Unknown("verify failed: Did it happen?")),
        (lambda: None, Unknown("verify failed: <lambda>() takes 0 positional arguments but 1 was given")),
    ],
    ids=[
        "none",
        "cannot tell",
        "not happened",
        "happened",
        "result",
        "async",
        "bool",
        "text",
        "fails",
        "asks",
        "arity",
    ],
)
async def test_verify_settles_an_unknown_outcome(verify: Any, outcome: Outcome | None) -> None:
    assert await verified(verifying(verify), {"x": 1}) == outcome


async def test_what_verify_found_is_checked_by_the_output() -> None:
    subject = verifying(give(Happened({"x": "1", "secret": "s"})), Point)

    assert await verified(subject, {"x": 1}) == Returned('{"x":1,"y":0}')


async def test_verify_of_a_function_takes_its_parameters() -> None:
    def happened(text: str, ctx: ToolContext) -> Happened:
        return Happened(f"{text} for {ctx.tool_call_id}")

    @tool(verify=happened)
    def post(text: str) -> str:
        """Post."""
        return ""

    assert await verified(post, {"text": "hi"}) == Returned("hi for c1")


async def test_arguments_that_cannot_be_read_leave_the_outcome_unknown() -> None:
    assert await verified(verifying(give(NotHappened())), {"x": -1}) == Unknown(
        'verify failed: Invalid input for tool "post": x: Input should be greater than or equal to 0'
    )


# --- approvals ---


@pytest.mark.parametrize(
    ("approved", "runs"),
    [("", True), ("now", True), ("then", False), (None, False)],
    ids=["by a gate of old", "as it is", "as it was", "by nobody"],
)
async def test_a_call_runs_if_the_tool_that_was_approved_is_this_one(approved: str | None, runs: bool) -> None:
    post = Tool("post", description="Post.", handler=lambda: "posted", approval=Approval(), fingerprint="now")
    found = await attempt(post, approved=approved)
    assert (found == Returned("posted")) is runs
    assert runs or isinstance(found, Failed)


async def test_an_attempt_reads_its_arguments_once_also_where_they_decide_whether_people_are_asked() -> None:
    read, judged = list[Any](), list[ToolCall]()

    async def reading(call: Callable[[], Any]) -> Any:
        read.append(call())
        return read[-1]

    def ask_nobody(call: ToolCall) -> None:
        judged.append(call)

    @tool(approval=ask_nobody)
    def go(to: Color, fast: bool = True) -> str:
        """Go."""
        return to.value

    context = ToolContext(agent_name="greeter", tool_call_id="c1")
    given = {"to": "red", "why": "unknown"}
    found = await go.attempt(given, context, limit=LIMIT, read=reading, write=written(go), in_thread=here)
    assert found == Returned("red")
    assert judged == [ToolCall(id="c1", name="go", arguments={"to": "red", "fast": True})]
    assert len(read) == 1
