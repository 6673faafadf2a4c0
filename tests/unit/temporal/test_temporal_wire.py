"""Data that crosses Temporal: pinned names and keys, and junk that is refused with a reason or read unchanged."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast import Checkpoint, InputError, Message, Question, TerminalError
from standfast.messages import json_problem
from standfast.temporal.wire import names
from standfast.temporal.wire.inbox import NOTED, Mailbox, Sent
from standfast.temporal.wire.inputs import INLINE_BYTES, PARKED_MESSAGES, PREVIEW, AgentInput, check_json, read_fields
from standfast.temporal.wire.outcomes import previewed, read_outcome, shown_arguments, write_outcome
from standfast.temporal.workflows.board.waiting_items import Waiting
from standfast.tools import Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown

T = TypeVar("T")

# --- names ---


def test_the_persisted_names_are_pinned() -> None:
    found = {name: value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert found == {
        "TASK_QUEUE": "standfast",
        "CALL_MODEL": "call_model",
        "OPEN": "standfast.open",
        "START": "standfast.start",
        "SETTLE": "standfast.settle",
        "COMMIT": "standfast.commit",
        "KEEP": "standfast.keep",
        "ANSWERED": "standfast.answered",
        "FINISH": "standfast.finish",
        "EXPORT": "standfast.export",
        "ATTACH": "standfast.attach",
        "OPEN_PIPELINE": "standfast.open_pipeline",
        "STEP": "standfast.step",
        "STRETCH": "standfast.stretch",
        "DECIDE": "standfast.decide",
        "RECALL": "standfast.recall",
        "SENT": "standfast.sent",
        "REFUSED": "standfast.refused",
        "SEARCHABLE": "standfast.searchable",
        "SHOW": "standfast.show",
        "NOTIFY": "standfast.notify",
        "ANSWER": "answer",
        "MESSAGE": "message",
        "RESUME": "resume",
        "RESOLVE": "resolve",
        "EXPORT_UPDATE": "export",
        "APPROVE": "approve",
        "RESETS_FIRST": "standfast.resets-first",
        "ANSWERS_HELD": "standfast.answers-held",
        "REJECT": "reject",
        "DECIDE_UPDATE": "decide",
        "STATUS": "status",
        "PENDING": "pending",
        "OUTCOME": "standfast.outcome",
        "STORE_WAITS": "standfast.store_waits",
        "CALLED_STATUS": "standfast.called_status",
        "REMINDER": "reminder at ",
        "ESCALATION": "escalation at ",
        "DECISION": "decision at ",
        "ANSWERS_WRITTEN": "standfast.answers-written",
        "TELLING_ENDS": "standfast.telling-ends",
        "REFUSALS_STAY": "standfast.refusals-stay",
        "LOOKED_AGAIN": "standfast.looked-again",
        "SENDERS_HEAR": "standfast.senders-hear",
        "AGENTS_SETTLED": "standfast.agents-settled",
        "OTHERS_SAID": "standfast.others-said",
        "TERMINAL_KEPT": "standfast.terminal-kept",
        "FAULTS_PAUSE": "standfast.faults-pause",
        "STAYS_SHOWN": "standfast.stays-shown",
        "MODELS_ANEW": "standfast.models-anew",
        "PASSES": "passes",
        "OUTAGES_OUTLAST": "standfast.outages-outlast",
        "CUT_COUNTS": "standfast.cut-counts",
        "DEADLINES_STAY": "standfast.deadlines-stay",
        "RESETS_ANSWER": "standfast.resets-answer",
        "EACH_TURN_LOOKS": "standfast.each-turn-looks",
        "OWN_HANDLERS": "standfast.own-handlers",
        "READ_FIRST": "standfast.read-first",
        "RECOVERED_IN_ORDER": "standfast.recovered-in-order",
        "TERMINAL_ERROR": "TerminalError",
        "UNREADABLE": "unreadable: ",
        "NO_ACTIVITIES": "standfast.no-activities",
        "RESETS_FIRST_AT": "standfast.resets-first-",
        "WHOLE_UNSEEN": "standfast.whole-unseen",
        "STATUS_ATTRIBUTE": "StandfastStatus",
        "WAITING_ATTRIBUTE": "StandfastWaiting",
        "DEADLINE_ATTRIBUTE": "StandfastDeadline",
        "SESSION_ATTRIBUTE": "StandfastSession",
        "TENANT_ATTRIBUTE": "StandfastTenant",
        "GROUP_ATTRIBUTE": "StandfastGroup",
        "WORKER_DIED": "WorkerDied",
        "TIMED_OUT": "HandlerTimedOut",
        "MODEL_UNAVAILABLE": "ModelUnavailable",
        "CALL_NOT_OURS": "CallNotOurs",
        "RETRYABLE": "RetryableError",
        "HOOK_ERROR": "HookError",
        "STEP_ERROR": "StepError",
        "SAME_VERSION": "SameVersion",
        "MODEL_CHANGED": "ModelChanged",
        "NOT_HERE": "NotOnThisWorker",
        "STORE_ERROR": "StoreError",
        "STORE_AWAY": "StoreAway",
        "STORE_BEHIND": "StoreBehindError",
        "OTHER_STORE": "other_store",
        "AGENT_MEMO": "standfast.agent",
        "PIPELINE_MEMO": "standfast.pipeline",
        "ASKED_MEMO": "standfast.asked",
        "CALLER_MEMO": "standfast.caller",
        "START_MEMO": "standfast.start",
        "QUEUE_STORE": "standfast-store",
    }
    assert names.SEARCH_ATTRIBUTES == {
        "StandfastStatus": "Keyword",
        "StandfastWaiting": "KeywordList",
        "StandfastDeadline": "Datetime",
        "StandfastSession": "Keyword",
        "StandfastTenant": "Keyword",
        "StandfastGroup": "KeywordList",
    }


def test_the_ids_of_workflows_are_pinned() -> None:
    assert names.workflow_id("triage", "issue-42") == "triage/issue-42"
    assert names.child_id("triage/issue-42", "c1") == "triage/issue-42/c1"
    assert names.queue_store_id("support") == "standfast-store/support"


@pytest.mark.parametrize(
    ("workflow", "session"),
    [("triage/s", "s"), ("triage/a/b", "a/b"), ("triage", None), ("other/s", None), ("triage/", "")],
)
def test_a_session_is_read_from_the_id_of_its_workflow(workflow: str, session: str | None) -> None:
    assert names.session_of("triage", workflow) == session


# --- inputs ---

WHOLE: dict[str, Any] = {
    "message": "hi", "images": [{"url": "u"}], "session_id": "s", "user_id": "ada", "tenant_id": "acme",
    "message_id": "m1",
    "max_iterations": 3, "context": {"shop": "s"}, "instance_id": "i-1", "checkpoint": {"messages": []},
    "call": {"run": "r", "turn": 1, "position": 0}, "step": {"run": "r", "path": "p"}, "depth": 2,
    "max_tokens": 50, "max_answer_tokens": 5, "asks_caller": True, "carried": {"run": "r"},
}  # fmt: skip


def test_the_keys_of_an_input_are_pinned() -> None:
    assert AgentInput.read(WHOLE).plain() == WHOLE
    assert set(AgentInput.__dataclass_fields__) == set(WHOLE)


@pytest.mark.parametrize("data", [None, {}])
def test_an_input_may_be_empty(data: Any) -> None:
    assert AgentInput.read(data) == AgentInput()


def test_null_stands_for_an_absent_key() -> None:
    assert AgentInput.read({"message": "hi", "user_id": None}) == AgentInput(message="hi")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("hi", "The input must be a JSON object with message"),
        ([], "The input must be a JSON object"),
        ({"mesage": "hi"}, "The input: unknown key 'mesage'"),
        ({"message": 5}, "The input: message must be text, got 5"),
        ({"message": ["hi"]}, "message must be text"),
        ({"max_iterations": "3"}, "max_iterations must be a whole number, got '3'"),
        ({"max_iterations": True}, "max_iterations must be a whole number, got True"),
        ({"max_iterations": 2.0}, "max_iterations must be a whole number"),
        ({"max_iterations": 0}, "max_iterations must be >= 1, got 0"),
        ({"max_tokens": -1}, "max_tokens must be >= 1"),
        ({"checkpoint": "x"}, "checkpoint must be an object"),
        ({"asks_caller": 1}, "asks_caller must be true or false"),
        ({"session_id": "a/b"}, "session_id must be 1 to 200 characters"),
        ({"session_id": ""}, "session_id must be 1 to 200 characters"),
        ({"user_id": ""}, "user_id must not be empty"),
        ({"instance_id": ""}, "instance_id must not be empty"),
        ({"images": "x"}, "images must be a list"),
        ({"message": "x", "images": ["x"]}, "images[0] is not an image"),
        ({"images": [{"url": "u"}]}, "images go with a message"),
        ({"message": "x" * 1_100_000}, "1,100,014 bytes, more than 1,048,576"),
        ({"call": {}}, "call"),
    ],
    ids=str,
)
def test_an_input_that_cannot_be_used_is_refused_with_the_reason(data: Any, reason: str) -> None:
    with pytest.raises(InputError) as refused:
        AgentInput.read(data)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 600


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10) | st.sampled_from(list(WHOLE)),
                                                                inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def refused_or(read: Callable[[], T], beginning: str) -> T | None:
    """Return what is read, or None if that is refused with a short reason that begins so."""
    try:
        return read()
    except InputError as error:
        reason = str(error)
    assert reason.startswith(beginning)
    assert len(reason) < 600
    return None


@given(JUNK | st.dictionaries(st.sampled_from(list(WHOLE)), JUNK, max_size=6))
def test_junk_is_refused_as_an_input_or_comes_back_as_it_was(data: Any) -> None:
    read = refused_or(lambda: AgentInput.read(data), "")
    if read is None:
        return
    assert AgentInput.read(json.loads(json.dumps(read.plain(), allow_nan=False))) == read


KNOWN: dict[str, Any] = {"text": str, "count": int, "many": dict, "flag": bool, "any": object}


@given(JUNK | st.dictionaries(st.sampled_from(list(KNOWN)), JUNK, max_size=5))
def test_junk_is_refused_as_fields_or_is_of_the_types_that_were_asked_for(data: Any) -> None:
    fields = refused_or(lambda: read_fields(data, "it", KNOWN), "it") or {}
    for name, value in fields.items():
        assert isinstance(value, KNOWN[name])
        assert json_problem(value) is None
    assert type(fields.get("count", 0)) is int


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "nan is not JSON"),
        ({"a": math.inf}, "inf is not JSON"),
        (10**4_300, "more than 4300 digits"),
        ("\ud800", "lone surrogate"),
        ({1: 2}, "not a string"),
        ({"a": {1, 2}}, "a value of type set is not JSON"),
        ((1, 2), "a value of type tuple is not JSON"),
    ],
    ids=["NaN", "infinity", "digits", "surrogate", "key", "set", "tuple"],
)
def test_what_is_not_strict_json_is_refused_by_name(value: Any, reason: str) -> None:
    with pytest.raises(InputError, match=f"^it: .*{reason}"):
        check_json(value, "it")


def test_json_is_taken_up_to_the_limit() -> None:
    check_json("x" * (INLINE_BYTES - 2), "it")
    with pytest.raises(InputError, match="262,145 bytes, more than 262,144"):
        check_json("x" * (INLINE_BYTES - 1), "it")
    with pytest.raises(InputError, match="more than 262,144"):
        check_json("é" * (INLINE_BYTES // 2), "it")


# --- outcomes ---

TEXTS = st.text(max_size=300).map(lambda text: text.encode(errors="replace").decode())
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Returned, TEXTS),
    st.builds(Failed, TEXTS),
    st.builds(Asked, TEXTS),
    st.builds(Unknown, TEXTS),
    st.builds(Cancelled, TEXTS),
)


@given(OUTCOMES)
def test_an_outcome_comes_back_as_it_was(outcome: Outcome) -> None:
    written = json.loads(json.dumps(write_outcome(outcome)))
    assert read_outcome(written) == outcome
    assert len(written) == 1


def test_a_terminal_error_comes_back_with_its_code_and_metadata() -> None:
    written = write_outcome(Terminated(TerminalError("gone", 410, {"where": "there"})))
    assert json.loads(json.dumps(written)) == {"terminated": "gone", "status_code": 410, "metadata": {"where": "there"}}
    read = read_outcome(written)
    assert isinstance(read, Terminated)
    assert (str(read.error), read.error.status_code, read.error.metadata) == ("gone", 410, {"where": "there"})


@pytest.mark.parametrize("metadata", [{"x": float("nan")}, {"x": object}, {"x": "y" * 20_000}, {1: 2}], ids=str)
def test_metadata_that_does_not_fit_is_left_out_and_says_so(metadata: Any) -> None:
    written = write_outcome(Terminated(TerminalError("gone", 410, metadata)))
    assert list(written["metadata"]) == ["left_out"]
    json.dumps(written, allow_nan=False)


@pytest.mark.parametrize("code", [None, "410", 1.5])
def test_a_status_code_of_any_kind_can_be_written(code: Any) -> None:
    written = json.loads(json.dumps(write_outcome(Terminated(TerminalError("gone", code))), allow_nan=False))
    assert isinstance(read_outcome(written), Terminated)


@pytest.mark.parametrize("junk", [{}, {"claimed": True}, {"nonsense": 1}])
def test_a_value_that_is_not_an_outcome_is_refused(junk: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="No outcome"):
        read_outcome(junk)


@given(OUTCOMES)
def test_a_preview_is_small_and_says_how_large_the_whole_is(outcome: Outcome) -> None:
    written = write_outcome(outcome)
    (kind,), text = written, next(iter(written.values()))
    shown = previewed(written)
    assert type(read_outcome(shown)) is type(outcome)
    if "size" in shown:
        assert shown[kind] == text[:PREVIEW] + "…"
        assert shown["size"] == len(text.encode())
    else:
        assert shown == written


@pytest.mark.parametrize("kind", ["returned", "failed", "asked", "unknown", "cancelled", "terminated"])
def test_a_preview_of_megabytes_fits_a_history(kind: str) -> None:
    assert len(json.dumps(previewed({kind: "x" * 3_000_000}))) < 40_000


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({}, "{}"),
        ({"text": "é"}, '{"text": "é"}'),
        ("not  json\n", "not json"),
        ("", ""),
        ({"text": "x" * 200}, '{"text": "' + "x" * (PREVIEW - 10) + "…"),
    ],
)
def test_arguments_are_shown_on_one_short_line(arguments: Any, shown: str) -> None:
    assert shown_arguments(arguments) == shown


# --- what is kept until it is taken ---

LIMIT = 10_000_000
ASKED = (Question(question="1?", tool_call_id="a1"), Question(question="2?", tool_call_id="a2"))


def full_mailbox() -> Mailbox:
    box = Mailbox(messages=["one", "two"], answered=["a0"])
    answer = box.read_answer({"text": "x", "tool_call_id": "a1", "by": "eve"}, ASKED, LIMIT)
    box.keep_answer(replace(answer, sent=Sent(id="s1")))
    box.keep_answer(box.read_answer({"text": "y"}, (Question(question="?"),), LIMIT))
    resolve = {"tool_call_id": "p1", "decision": "happened", "result": {"n": 1}, "by": "eve", "reason": "seen"}
    box.resolves["p1"] = replace(box.read_resolve(resolve, {"p1": object()}), sent=Sent(id="s2"))
    box.note("message", "because", "2026-01-01")
    return box


def test_what_is_carried_of_a_mailbox_comes_back() -> None:
    box, after = full_mailbox(), Mailbox(messages=["three"])
    after.take_over(json.loads(json.dumps(box.carried())))
    box.messages.append("three")
    assert after == box
    assert sorted(full_mailbox().carried()) == ["answered", "answers", "messages", "refused", "resolves"]
    assert Mailbox().carried() == {}


def test_only_the_last_refusals_are_shown() -> None:
    box = Mailbox()
    for number in range(50):
        box.note("message", f"{number} " + "x" * 1_000, "now")
    assert len(box.refused) == NOTED
    assert box.refused[-1]["reason"].startswith("49 ")
    assert len(box.refused[-1]["reason"]) == 500


def test_no_more_messages_are_parked_than_a_run_can_carry() -> None:
    box = Mailbox(messages=["x"] * PARKED_MESSAGES)
    with pytest.raises(InputError, match="are already waiting"):
        box.read_message({"text": "y"}, LIMIT, (None, None))


def test_an_answer_for_a_call_that_asks_nothing_is_not_kept_for_a_later_one() -> None:
    with pytest.raises(InputError, match="call c9 does not ask anything; the run waits for the answer to a1, a2"):
        Mailbox().read_answer({"text": "x", "tool_call_id": "c9"}, ASKED, LIMIT)


@pytest.mark.parametrize("name", ["read_message", "read_answer", "read_resume", "read_resolve"])
@given(data=JUNK)
def test_junk_in_a_mailbox_is_refused_with_a_reason(name: str, data: Any) -> None:
    more: dict[str, tuple[Any, ...]] = {
        "read_message": (LIMIT, (None, None)),
        "read_answer": (ASKED, LIMIT),
        "read_resume": (["model"], ["post"]),
        "read_resolve": ({"p1": 1},),
    }
    read = getattr(Mailbox(), name)
    refused_or(lambda: read(data, *more.get(name, ())), name.removeprefix("read_"))


def test_the_keys_of_what_waits_are_pinned() -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    shown = {"kind": "question", "name": "c1", "message": "Who?", "since": "2026-01-01T00:00:00+00:00"}
    assert Waiting("question", "c1", "Who?", since).plain() == shown
    assert Waiting("question", "c1", "Who?", since, since).plain() == shown | {"deadline": shown["since"]}


def test_the_keys_of_an_exported_run_are_pinned() -> None:
    checkpoint = Checkpoint(
        messages=(Message(role="user", content="hi"),), pending_tool_use_id="a1", questions=ASKED, iterations=1
    )
    assert sorted(checkpoint.model_dump(mode="json")) == [
        "iterations", "messages", "pending_tool_use_id", "questions", "usage",
    ]  # fmt: skip
