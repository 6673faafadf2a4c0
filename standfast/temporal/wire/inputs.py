"""Inputs of workflows, and users' messages to them, as JSON: possibly malformed data, and the limits of its size."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_origin, get_type_hints

from pydantic_core import to_json

from standfast.errors import InputError
from standfast.messages import (
    Image,
    JSONObject,
    Message,
    check_message_id,
    check_whole,
    clean_text,
    json_problem,
    read_images,
)
from standfast.stores.protocol import SESSION_ID, check_session_id, check_tenant_id, session_id_of, session_key_of

Owner = tuple[str | None, str | None]

INLINE_BYTES = 256 * 1024  # of one value in a history; Temporal refuses 2 MiB, and becomes slow long before
CHECKPOINT_BYTES = 1024 * 1024
VALUES = INLINE_BYTES // 2  # the maximum that fits into so many bytes; a workflow that walks a million seems to hang
RESULT_VALUES = CHECKPOINT_BYTES // 2
THOUGHTS = 300  # characters of a model's thoughts in a history
SOURCES = 16_384  # bytes, in a history, of a provider's own calls, and of the sources that an answer names
PREVIEW = 40  # characters of a result that people see in a history; the whole is in the store
PARKED_MESSAGES = 1_000  # kept by a run until it can take them in; Temporal ends a run at 10,000 signals
PARKED_BYTES = 768 * 1024  # of all of them as JSON: they cross a history together when the run continues as new
AWAITED_BYTES = 1_792 * 1024  # of all of them with the answer that the run waits for
QUESTION_BYTES = 4 * 1024  # of a question; a turn may have 64
SHOWN_BYTES = 16 * 1024  # of the arguments of a call that people are asked about
SCHEMAS_BYTES = 64 * 1024  # of the schemas of such calls of a turn; people edit the others' arguments as JSON
GATES_BYTES = 512 * 1024  # of all questions about the calls of a turn
PENDING_BYTES = 1_536 * 1024  # of all waiting items, in the answer to one query
OWN_GATES_BYTES = PENDING_BYTES - 128 * 1024  # of a user workflow's gates; all other waiting items are small
ITEM_NAME = 2_000  # characters of the name of a waiting item, as clients read it
LONGEST_NAME = 256  # characters of the name of a person who acts
EARLY_BYTES = 64 * 1024  # of decisions at gates that are not open


def check_json(value: object, what: str, limit: int = INLINE_BYTES) -> None:
    """Refuse a value that another process could not read, or that is too large for a history.

    Raises:
        InputError: naming `what` and the limit.
    """
    if problem := json_problem(value, limit // 2):
        raise InputError(f"{what}: {problem}")
    size = len(to_json(value))
    if size > limit:
        raise InputError(
            f"{what}: {size:,} bytes, more than {limit:,}; keep large data elsewhere and send its location"
        )


def read_fields(data: object, what: str, known: Mapping[str, type], *, own: Collection[str] = ()) -> JSONObject:
    """Read a JSON object of known keys; None represents an absent one.

    Args:
        own: keys that only standfast uses, and that are not offered to people.

    Raises:
        InputError: naming the key and the rule.
    """
    if not isinstance(data, dict):
        raise InputError(f"{what} must be a JSON object with {_offered(known, own)}, got {shortened(data)}")
    check_json(data, what, CHECKPOINT_BYTES if own else INLINE_BYTES)
    if unknown := sorted(data.keys() - known.keys()):
        raise InputError(f"{what}: unknown key {unknown[0]!r}; it accepts {_offered(known, own)}")
    given = {name: value for name, value in data.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is int):
            raise InputError(f"{what}: {name} must be {_NAMES[known[name]]}, got {shortened(value)}")
        if name in _WRITTEN and isinstance(value, str):
            given[name] = clean_text(value)
    check_names(given, what)
    return given


def _offered(known: Mapping[str, type], own: Collection[str]) -> str:
    return ", ".join(name for name in known if name not in own)


def check_names(given: Mapping[str, Any], what: str) -> None:
    """Refuse names and ids (all text except people's prose) that a store could not keep unchanged.

    Raises:
        InputError: naming the key.
    """
    for name, value in given.items():
        if isinstance(value, str) and name not in _WRITTEN:
            check_whole(value, f"{what}: {name}", LONGEST_NAME if name == "by" else None)


_WRITTEN = ("text", "message", "comment", "reason", "result", "input", "edit")


_NAMES: dict[Any, str] = {str: "text", int: "a whole number", dict: "an object", bool: "true or false", list: "a list"}


def shortened(value: object) -> str:
    """Return a value as people see it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


"""A user's id and a tenant's id."""


def is_stranger(owner: Owner, who: Owner) -> bool:
    """Whether a run belongs to another user; a run without an owner is open to everyone."""
    return any(has not in (None, given) for has, given in zip(owner, who, strict=True))


Said = str | JSONObject
"""A user's message: text, or `{"text", "images"?, "by"?, "message_id"?, "id"?}`.

`message_id` is its sender's; the store keeps the message under `id` until a run reads it.
"""


def said_by_user(
    text: str,
    images: tuple[Image, ...] | None = None,
    by: str | None = None,
    context: str | None = None,
    message_id: str | None = None,
) -> Said:
    """Return a user's message as a history has it."""
    plain = None if images is None else [image.model_dump() for image in images]
    more = {"images": plain, "by": by, "context": context, "message_id": message_id}
    present = {name: value for name, value in more.items() if value is not None}
    return {"text": text} | present if present else text


def with_id(said: Said, message_id: str) -> Said:
    """Return a message with the id under which the store keeps it."""
    return {"text": said, "id": message_id} if isinstance(said, str) else {**said, "id": message_id}


def said_id(said: Said) -> str | None:
    """Return the id under which the store keeps a message, or None if it does not keep it."""
    return None if isinstance(said, str) else said.get("id")


def message_id_of(said: Said) -> str | None:
    """Return the id given to a message by its sender, or None."""
    return None if isinstance(said, str) else said.get("message_id")


def user_message(said: Said) -> Message:
    """Read what `said_by_user` returned."""
    if isinstance(said, str):
        return Message(role="user", content=said)
    more = {name: said.get(name) for name in ("images", "by", "id", "context", "message_id")}
    return Message(role="user", content=said["text"], **more)


def first_message(data: Mapping[str, Any]) -> Said | None:
    """Return the message of an unvalidated input, if it has an id."""
    text, message_id = data.get("message"), data.get("message_id")
    if not isinstance(text, str) or not isinstance(message_id, str):
        return None
    by = data.get("user_id")
    try:
        images = read_images(data.get("images") or (), CHECKPOINT_BYTES)
    except InputError:  # the run will be refused
        return None
    by = by if isinstance(by, str) and clean_text(by) == by else None
    return said_by_user(text, images, by, message_id=message_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInput:
    """The input of an agent's workflow, one JSON object.

    Args:
        message: the user's text.
        message_id: identifies the message in its session, where it counts once.
        images: beside the text, `{"url"}` or `{"data", "media_type"}` each.
        session_id: the conversation; by default taken from the workflow id `<agent>/<session_id>`, or of a tenant's
            `<agent>/@<tenant_id>/<session_id>`.
        user_id, tenant_id: the user, who must be the session's owner.
        max_iterations: replaces the agent's own.
        context: the input of the agent's `deps`, in the agent's type; it belongs to the message.
        instance_id: the value of `ctx.agent.id`.
        checkpoint: a run to continue, instead of a message.
        call: the call for which an agent was started, as `{"run", "turn", "position"}`: its arguments are the input.
            After people's edit, also `{"approved"}`, a `LetThrough`: the edited arguments are the input.
        step: the step of a pipeline for which it was started, as `{"run", "path"}`: its message is the input.
        depth: the number of agents above.
        max_tokens: the remainder of their budget.
        max_answer_tokens: the maximum of each answer, where the model's settings support one.
        asks_caller: end with status "interrupted" where the agent would ask a person; its caller asks instead.
        carried: the state of the run that continues as new.
    """

    message: str | None = None
    message_id: str | None = None
    images: list[Any] | None = None
    session_id: str | None = None
    user_id: str | None = None
    tenant_id: str | None = None
    max_iterations: int | None = None
    context: Any = field(default=None, repr=False)  # names of agents that calls run are derived from the shown ones
    instance_id: str | None = None
    checkpoint: JSONObject | None = None
    call: JSONObject | None = None
    step: JSONObject | None = None
    depth: int | None = None
    max_tokens: int | None = None
    max_answer_tokens: int | None = field(default=None, repr=False)
    asks_caller: bool | None = None
    carried: JSONObject | None = None

    @classmethod
    def read(cls, data: object) -> "AgentInput":
        """Read the input that a workflow was started with.

        Raises:
            InputError: naming the invalid part.
        """
        given = read_fields({} if data is None else data, "The input", _INPUT, own=_OWN)
        _check_with_message(given)
        read_images(given.get("images", ()), CHECKPOINT_BYTES)
        if "session_id" in given:
            check_session_id(given["session_id"])
        check_tenant_id(given.get("tenant_id"))
        for name in ("user_id", "instance_id"):
            if given.get(name) == "":
                raise InputError(f"The input: {name} must not be empty; leave it out")
        if "call" in given:
            known = {"run": str, "turn": int, "position": int, "approved": dict}
            if not {"run", "turn", "position"} <= read_fields(given["call"], "The input: call", known).keys():
                raise InputError("The input: call must have run, turn and position")
        if "step" in given and len(read_fields(given["step"], "The input: step", {"run": str, "path": str})) < 2:
            raise InputError("The input: step must have run and path")
        for name in ("max_iterations", "max_tokens", "max_answer_tokens"):
            if name in given and given[name] < 1:
                raise InputError(f"The input: {name} must be >= 1, got {given[name]!r}")
        return cls(**given)

    def session_key(self, named: str | None) -> str | None:
        """Return the key of the session: the given one, or the one in the workflow's id, or None.

        Raises:
            InputError: the one in the workflow's id belongs to another tenant.
        """
        if self.session_id is not None or named is None:
            return None if self.session_id is None else session_key_of(self.tenant_id, self.session_id)
        if not named.startswith("@"):
            return session_key_of(self.tenant_id, named)
        if named != session_key_of(self.tenant_id, session_id_of(named)):
            raise InputError(
                f"The input: the workflow's id names a session of a different tenant from {self.tenant_id}"
            )
        return named

    def plain(self) -> JSONObject:
        """Return it as JSON, without absent values."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInput:
    """The input of a pipeline's workflow, one JSON object.

    Args:
        input: the pipeline's input, parsed by its type.
        run_key: names the run; by default taken from the workflow id `<pipeline>/<run_key>` or
            `<pipeline>/@<tenant_id>/<run_key>`, or a whole workflow id without a slash.
        user_id, tenant_id: the user who starts it.
        restart: the last run of a run key that the same user has begun, as `{"run_key", "from": <step>}`. The results
            of its steps before that step are used again, and its input if none is given.
        carried: the state of the run that continues as new.
    """

    input: Any = None
    run_key: str | None = None
    user_id: str | None = None
    tenant_id: str | None = None
    restart: JSONObject | None = None
    carried: JSONObject | None = None

    @classmethod
    def read(cls, data: object) -> "PipelineInput":
        """Read the input that a workflow was started with.

        Raises:
            InputError: naming the invalid part.
        """
        given = read_fields({} if data is None else data, "The input", _PIPELINE_INPUT, own=("carried",))
        check_json(given.get("input"), "The input: input")
        if "restart" in given:
            expected = {"run_key": str, "from": str}
            restart = given["restart"] = read_fields(given["restart"], "The input: restart", expected)
            if len(restart) < 2:
                raise InputError("The input: restart must have run_key and from")
            check_session_id(restart["run_key"], "The input: restart: run_key")
        if "run_key" in given:
            check_session_id(given["run_key"], "The input: run_key")
        check_tenant_id(given.get("tenant_id"))
        if given.get("user_id") == "":
            raise InputError("The input: user_id must not be empty; leave it out")
        return cls(**given)

    def run_key_in(self, named: str) -> str | None:
        """Return the run key: the given one, or the one in the workflow's id, or None."""
        key = self.run_key or named.removeprefix(f"@{self.tenant_id}/")
        return key if SESSION_ID.fullmatch(key) else None

    def plain(self) -> JSONObject:
        """Return it as JSON, without absent values."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


def _kinds(given: type) -> dict[str, type]:
    """Return the kind of JSON that each field of an input accepts."""
    hints = {name: next(iter(get_args(hint)), object) for name, hint in get_type_hints(given).items()}
    return {name: get_origin(kind) or kind for name, kind in hints.items()}


def _check_with_message(given: JSONObject) -> None:
    if "images" in given and "message" not in given:
        raise InputError("The input: images go with a message")
    if "message_id" in given and "message" not in given:
        raise InputError("The input: message_id goes with a message")
    if "message_id" in given:
        check_message_id(given["message_id"])
    if "context" in given and not given.keys() & {"message", "checkpoint"}:
        raise InputError("The input: context goes with a message: a session keeps its context")


_INPUT, _PIPELINE_INPUT = _kinds(AgentInput), _kinds(PipelineInput)
_OWN = ("call", "step", "depth", "max_tokens", "max_answer_tokens", "asks_caller", "carried")
