"""The tree of errors: what catches what, codes for programs, and texts for people."""

import pickle
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from standfast import (
    Agent,
    Approval,
    DefinitionError,
    InputError,
    InterruptError,
    Loop,
    MemoryStoreNotDurableError,
    ModelError,
    RetryableError,
    SessionAccessDeniedError,
    SessionConflictError,
    SessionNotFoundError,
    StandfastError,
    Step,
    StoreError,
    TerminalError,
    ToolDurabilityError,
    errors,
    tool,
)

CODES = {
    StandfastError: "STANDFAST_ERROR",
    DefinitionError: "DEFINITION_ERROR",
    InputError: "INPUT_ERROR",
    SessionNotFoundError: "SESSION_NOT_FOUND",
    SessionAccessDeniedError: "SESSION_ACCESS_DENIED",
    SessionConflictError: "SESSION_CONFLICT",
    MemoryStoreNotDurableError: "MEMORY_STORE_NOT_DURABLE",
    StoreError: "STORE_ERROR",
    errors.SessionStoreError: "SESSION_STORE",
    errors.StoreBehindError: "STORE_BEHIND",
    errors.NotConfirmedError: "NOT_CONFIRMED",
    ModelError: "MODEL_ERROR",
    errors.EffectFailedError: "EFFECT_FAILED",
    ToolDurabilityError: "TOOL_DURABILITY_ERROR",
    RetryableError: "RETRYABLE",
    TerminalError: "TERMINAL",
    InterruptError: "INTERRUPT",
}


@pytest.mark.parametrize(("error", "code"), CODES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_codes_are_pinned(error: type[StandfastError], code: str) -> None:
    assert error.code == code


@pytest.mark.parametrize("error", CODES, ids=lambda error: error.__name__)
def test_every_error_is_a_standfast_error(error: type[StandfastError]) -> None:
    assert issubclass(error, StandfastError)


@pytest.mark.parametrize("error", [DefinitionError, InputError])
def test_a_wrong_declaration_or_input_is_a_value_error(error: type[StandfastError]) -> None:
    assert issubclass(error, ValueError)


def test_the_tree_in_the_docstring_names_every_error() -> None:
    public = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, StandfastError) and not name.startswith("_")
    }

    assert {error.__name__ for error in CODES} == public
    assert [name for name in sorted(public) if f"{name} " not in f"{errors.__doc__}".replace("\n", " ")] == []


def test_a_foreign_session_reads_like_one_that_does_not_exist() -> None:
    texts = {str(SessionNotFoundError("s1")), str(SessionAccessDeniedError("s1"))}

    assert texts == {"Session not found or access denied: s1"}


@pytest.mark.parametrize("error", [SessionNotFoundError, SessionAccessDeniedError])
def test_a_session_error_knows_its_session(error: type[SessionNotFoundError]) -> None:
    assert error("s1").session_id == "s1"


def test_not_found_does_not_catch_access_denied() -> None:
    assert not any(issubclass(one, other) for one, other in pairwise([SessionNotFoundError, SessionAccessDeniedError]))


def test_the_payload_of_a_durability_error_has_the_keys_of_the_documents() -> None:
    error = ToolDurabilityError("post_slack", "toolu_01")

    assert error.payload() == {
        "error": str(error),
        "kind": "tool-durability-error",
        "toolName": "post_slack",
        "toolCallId": "toolu_01",
    }


@pytest.mark.parametrize(
    "word", ["post_slack", "toolu_01", "Check the external state", "did not complete durably. It may"]
)
def test_a_durability_error_says_what_happened_and_what_to_do(word: str) -> None:
    assert word in str(ToolDurabilityError("post_slack", "toolu_01"))


def test_a_durability_error_gives_the_reason_it_knows() -> None:
    error = ToolDurabilityError("post_slack", "toolu_01", reason="it was cut off")

    assert "did not complete durably: it was cut off. It may" in str(error)


def test_a_durability_error_tells_the_model_nothing_that_only_developers_can_do() -> None:
    assert "safe_to_retry" not in str(ToolDurabilityError("post_slack", "toolu_01").payload())


def test_the_reason_of_a_stored_error_with_advice_for_developers_is_still_read() -> None:
    payload = ToolDurabilityError("post_slack", "toolu_01", reason="it was cut off").payload()
    payload["error"] += " (If running it twice is harmless, declare the tool with safe_to_retry=True.)"

    assert ToolDurabilityError.read_reason(payload) == "it was cut off"


def test_a_reason_that_is_its_own_sentence_ends_with_one_full_stop() -> None:
    error = ToolDurabilityError("post_slack", "toolu_01", reason="the server said: No.")

    assert "the server said: No. It may" in str(error)
    assert ToolDurabilityError.read_reason(error.payload()) == "the server said: No"


def test_a_memory_store_error_says_what_to_use_instead() -> None:
    error = MemoryStoreNotDurableError("Session s1")

    assert str(error).startswith("Session s1: a memory store forgets everything with its process. Use a durable store")


@pytest.mark.parametrize(
    ("retry_after", "seconds"), [(None, None), (30, 30), (0.5, 0.5), (timedelta(minutes=1, milliseconds=500), 60.5)]
)
def test_a_retryable_error_knows_its_delay_in_seconds(
    retry_after: float | timedelta | None, seconds: float | None
) -> None:
    assert RetryableError("busy", retry_after=retry_after).retry_after == seconds


@pytest.mark.parametrize("retry_after", [-1, float("nan"), float("inf"), "soon", timedelta(-1)], ids=repr)
def test_a_delay_that_makes_no_sense_is_refused(retry_after: Any) -> None:
    with pytest.raises(InputError, match="retry_after must be like"):
        RetryableError("busy", retry_after=retry_after)


def test_a_retryable_error_has_its_own_text() -> None:
    assert str(RetryableError()) == "Try again later"


def test_a_terminal_error_is_a_500_without_metadata_unless_told() -> None:
    error = TerminalError("no such issue")

    assert (str(error), error.status_code, error.metadata) == ("no such issue", 500, {})


def test_a_terminal_error_keeps_its_status_code_and_a_copy_of_its_metadata() -> None:
    metadata = {"issue": 42}
    error = TerminalError("no such issue", 404, metadata)
    metadata["issue"] = 43

    assert (error.status_code, error.metadata) == (404, {"issue": 42})


@pytest.mark.parametrize("transient", [True, False])
def test_a_model_error_says_whether_calling_again_may_help(transient: bool) -> None:
    assert ModelError("busy", transient=transient).transient is transient


def test_a_model_error_is_not_transient_unless_told() -> None:
    assert not ModelError("bad key").transient


def test_an_interrupt_carries_its_question() -> None:
    assert (InterruptError("Who?").question, str(InterruptError("Who?"))) == ("Who?", "Who?")


@pytest.mark.parametrize(
    "error",
    [
        SessionNotFoundError("s1"),
        MemoryStoreNotDurableError("Session s1"),
        ToolDurabilityError("charge", "c1", reason="it was cut off"),
        TerminalError("blocked", status_code=403, metadata={"a": 1}),
        RetryableError("busy", retry_after=3),
        InterruptError("When?"),
        ModelError("down", transient=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_whole_from_another_process(error: StandfastError) -> None:
    restored = pickle.loads(pickle.dumps(error))
    assert (type(restored), str(restored), restored.__dict__) == (type(error), str(error), error.__dict__)


def abs_of(x: int) -> int:
    """Return the absolute value."""
    return abs(x)


@pytest.mark.parametrize(
    ("declare", "meant"),
    [
        (lambda: Agent("a", instruction="x"), "instructions"),  # type: ignore[call-arg]
        (lambda: Loop(max_iteration=1), "max_iterations"),  # type: ignore[call-arg]
        (lambda: Approval(message="?", approver=["ada"]), "approvers"),  # type: ignore[call-arg]
        (lambda: tool(safe_to_retri=True)(abs_of), "safe_to_retry"),  # type: ignore[call-overload]
        (lambda: Step("s", aproval=None), "approval"),  # type: ignore[call-arg]
    ],
)
def test_a_mistyped_option_is_refused_and_the_right_one_proposed(declare: Callable[[], object], meant: str) -> None:
    with pytest.raises(TypeError, match=rf"unexpected keyword argument '\w+'\. Did you mean '{meant}'\?"):
        declare()
