"""What crosses Temporal: strict, small, plain JSON. Whatever is read here may be junk; whatever is written fits."""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from pydantic_core import to_json

from standfast.agent_loop import Gate
from standfast.errors import DefinitionError, InputError, TerminalError
from standfast.messages import Image, Message, Usage, clean_text, cut, json_problem, read_images, size_over
from standfast.stores.protocol import check_session_id, check_tenant_id, session_id_of, session_key_of
from standfast.tools import Asked, Cancelled, Failed, Outcome, Returned, Terminated, Unknown, check_count

INLINE_BYTES = 256 * 1024  # of one value in a history; Temporal refuses 2 MiB, and looks slow long before
CHECKPOINT_BYTES = 1024 * 1024
PREVIEW = 40  # characters of a result that people see in a history; its whole is in the store
PARKED_MESSAGES = 1_000  # that a run keeps until it can take them in; Temporal ends a run at 10,000 signals
PARKED_BYTES = 768 * 1024  # of all of them as JSON: they cross a history together when the run continues as new
AWAITED_BYTES = 1_792 * 1024  # of all of them with the answer that the run waits for
QUESTION_BYTES = 4 * 1024  # of a question; a turn may have 64
SHOWN_BYTES = 16 * 1024  # of the arguments of a call that people are asked about
GATES_BYTES = 512 * 1024  # of all that is asked about the calls of a turn
EARLY_BYTES = 64 * 1024  # of decisions at gates that are not open


def check_json(value: object, what: str, limit: int = INLINE_BYTES) -> None:
    """Refuse what another process could not read, or what is too large for a history.

    Raises:
        InputError: naming `what` and the limit.
    """
    if problem := json_problem(value):
        raise InputError(f"{what}: {problem}")
    size = len(to_json(value))
    if size > limit:
        raise InputError(f"{what}: {size:,} bytes, more than {limit:,}; keep large data elsewhere and send where it is")


def let_through(gate: Gate) -> dict[str, Any]:
    """Return what a run knows of an approved gate: by whom, and by what the arguments are found that replace others."""
    return {"by": list(gate.approved_by)} | ({} if gate.edit is None else {"edit": gate.edit["digest"]})


def edit_reference(arguments: object) -> dict[str, str]:
    """Return what a history has in the place of edited arguments, which are in the store."""
    return {"digest": edit_digest(arguments)}


def edit_digest(arguments: object) -> str:
    return hashlib.blake2b(to_json(arguments), digest_size=16).hexdigest()


def read_fields(data: object, what: str, known: Mapping[str, type], *, own: Collection[str] = ()) -> dict[str, Any]:
    """Read a JSON object of known keys; None stands for an absent one.

    Args:
        own: keys that standfast alone uses, which are not offered to people.

    Raises:
        InputError: naming the key and what it must be.
    """
    offered = ", ".join(name for name in known if name not in own)
    if not isinstance(data, dict):
        raise InputError(f"{what} must be a JSON object with {offered}, got {_shown(data)}")
    check_json(data, what, CHECKPOINT_BYTES if own else INLINE_BYTES)
    if unknown := sorted(data.keys() - known.keys()):
        raise InputError(f"{what}: unknown key {unknown[0]!r}; it takes {offered}")
    given = {name: value for name, value in data.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is int):
            raise InputError(f"{what}: {name} must be {_NAMES[known[name]]}, got {_shown(value)}")
        if isinstance(value, str):
            given[name] = clean_text(value)
    return given


_NAMES: dict[Any, str] = {str: "text", int: "a whole number", dict: "an object", bool: "true or false", list: "a list"}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


Owner = tuple[str | None, str | None]
"""A user's id and a tenant's."""


def is_stranger(owner: Owner, who: Owner) -> bool:
    """Whether a run is somebody else's; one that is nobody's is anybody's."""
    return any(has not in (None, given) for has, given in zip(owner, who, strict=True))


Said = str | dict[str, Any]
"""What a user said: text, or `{"text", "images"?, "by"?, "id"?}`; by the id the store keeps it until it was heard."""


def said_by_user(text: str, images: tuple[Image, ...] | None = None, by: str | None = None) -> Said:
    """Return what a history has of a user's message."""
    if images is None and by is None:
        return text
    plain = None if images is None else [image.model_dump() for image in images]
    return {"text": text} | {name: value for name, value in (("images", plain), ("by", by)) if value is not None}


def with_id(said: Said, message_id: str) -> Said:
    """Return a message with what the store keeps it by."""
    return {"text": said, "id": message_id} if isinstance(said, str) else {**said, "id": message_id}


def said_id(said: Said) -> str | None:
    """Return by what the store keeps a message, or None if it does not."""
    return None if isinstance(said, str) else said.get("id")


def user_message(said: Said) -> Message:
    """Read what `said_by_user` returned."""
    if isinstance(said, str):
        return Message(role="user", content=said)
    return Message(role="user", content=said["text"], images=said.get("images"), by=said.get("by"), id=said.get("id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInput:
    """The input of an agent's workflow, one JSON object.

    Args:
        message: what the user says.
        images: beside it, each `{"url"}` or `{"data", "media_type"}`.
        session_id: the conversation; that of the workflow id `<agent>/<session_id>`, or of a tenant's
            `<agent>/@<tenant_id>/<session_id>`, by default.
        user_id, tenant_id: who says it; must be the session's owner.
        max_iterations: instead of the agent's own.
        instance_id: what `ctx.agent.id` is.
        checkpoint: a run to go on with, instead of a message.
        call: the call that an agent was started for, as `{"run", "turn", "position"}`: its arguments are the input.
        step: the step of a pipeline that it was started for, as `{"run", "path"}`: its message is the input.
        depth: how many agents stand above.
        max_tokens: what is left of their budget.
        asks_caller: end with status "interrupted" where the agent would ask a person; its caller asks instead.
        carried: the state of the run that continues as new.
    """

    message: str | None = None
    images: list[Any] | None = None
    session_id: str | None = None
    user_id: str | None = None
    tenant_id: str | None = None
    max_iterations: int | None = None
    instance_id: str | None = None
    checkpoint: dict[str, Any] | None = None
    call: dict[str, Any] | None = None
    step: dict[str, Any] | None = None
    depth: int | None = None
    max_tokens: int | None = None
    asks_caller: bool | None = None
    carried: dict[str, Any] | None = None

    @classmethod
    def read(cls, data: object) -> "AgentInput":
        """Read what a workflow was started with.

        Raises:
            InputError: saying what cannot be used.
        """
        given = read_fields({} if data is None else data, "The input", _INPUT, own=_OWN)
        if "images" in given and "message" not in given:
            raise InputError("The input: images go with a message")
        read_images(given.get("images", ()), CHECKPOINT_BYTES)
        if "session_id" in given:
            check_session_id(given["session_id"])
        check_tenant_id(given.get("tenant_id"))
        for name in ("user_id", "instance_id"):
            if given.get(name) == "":
                raise InputError(f"The input: {name} must not be empty; leave it out")
        if "call" in given:
            call = read_fields(given["call"], "The input: call", {"run": str, "turn": int, "position": int})
            if len(call) < 3:
                raise InputError("The input: call must have run, turn and position")
        if "step" in given and len(read_fields(given["step"], "The input: step", {"run": str, "path": str})) < 2:
            raise InputError("The input: step must have run and path")
        for name in ("max_iterations", "max_tokens"):
            try:
                check_count(name, given.get(name, 1), 1)
            except DefinitionError as error:
                raise InputError(f"The input: {error}") from error
        return cls(**given)

    def session_key(self, named: str | None) -> str | None:
        """Return the key of the session: the given one, or the one that the workflow's id names, or None.

        Raises:
            InputError: that one is another tenant's.
        """
        if self.session_id is not None or named is None:
            return None if self.session_id is None else session_key_of(self.tenant_id, self.session_id)
        if not named.startswith("@"):
            return session_key_of(self.tenant_id, named)
        if named != session_key_of(self.tenant_id, session_id_of(named)):
            raise InputError(f"The input: the workflow's id names a session of another tenant than {self.tenant_id}")
        return named

    def plain(self) -> dict[str, Any]:
        """Return it as JSON, without what is absent."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineInput:
    """The input of a pipeline's workflow, one JSON object.

    Args:
        input: of the pipeline, read by its type.
        user_id, tenant_id: who starts it.
        restart: an earlier run of the same user's, as `{"run": <its run key>, "from": <step>}`: what its steps before
            that one came to is used again, and its input if none is given.
        carried: the state of the run that continues as new.
    """

    input: Any = None
    user_id: str | None = None
    tenant_id: str | None = None
    restart: dict[str, Any] | None = None
    carried: dict[str, Any] | None = None

    @classmethod
    def read(cls, data: object) -> "PipelineInput":
        """Read what a workflow was started with.

        Raises:
            InputError: saying what cannot be used.
        """
        known = {"input": object, "user_id": str, "tenant_id": str, "restart": dict, "carried": dict}
        given = read_fields({} if data is None else data, "The input", known, own=("carried",))
        check_json(given.get("input"), "The input: input")
        if "restart" in given:
            restart = given["restart"] = read_fields(given["restart"], "The input: restart", {"run": str, "from": str})
            if len(restart) < 2:
                raise InputError("The input: restart must have run and from")
        check_tenant_id(given.get("tenant_id"))
        if given.get("user_id") == "":
            raise InputError("The input: user_id must not be empty; leave it out")
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON, without what is absent."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


_INPUT: dict[str, Any] = {
    "message": str,
    "images": list,
    "session_id": str,
    "user_id": str,
    "tenant_id": str,
    "max_iterations": int,
    "instance_id": str,
    "checkpoint": dict,
    "call": dict,
    "step": dict,
    "depth": int,
    "max_tokens": int,
    "asks_caller": bool,
    "carried": dict,
}
_OWN = ("call", "step", "depth", "max_tokens", "asks_caller", "carried")


# --- outcomes -----------------------------------------------------------------------------------------------------


def write_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome as JSON: one key that says which, and what belongs to it."""
    match outcome:
        case Returned(content):
            return {"returned": content}
        case Failed(error):
            return {"failed": error}
        case Asked(question):
            return {"asked": question}
        case Terminated(error):
            return {"terminated": clean_text(str(error)), "status_code": error.status_code,
                    "metadata": _plain_metadata(error)}  # fmt: skip
        case Unknown(reason):
            return {"unknown": reason}
        case Cancelled(reason):
            return {"cancelled": reason}


def _plain_metadata(error: TerminalError) -> dict[str, Any]:
    try:
        check_json(error.metadata, "metadata", 16 * 1024)
    except InputError as fault:
        return {"left_out": str(fault)}
    return error.metadata


def read_outcome(data: Mapping[str, Any]) -> Outcome:
    """Read what `write_outcome` wrote."""
    match data:
        case {"returned": content}:
            return Returned(content)
        case {"failed": error}:
            return Failed(error)
        case {"asked": question}:
            return Asked(question)
        case {"terminated": text}:
            return Terminated(TerminalError(text, data.get("status_code", 500), data.get("metadata")))
        case {"unknown": reason}:
            return Unknown(reason)
        case {"cancelled": reason}:
            return Cancelled(reason)
    raise InputError(f"No outcome: {_shown(data)}")


def previewed(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return a written outcome with its text cut for a history, and the size of the whole if it was."""
    kind = next(iter(outcome))
    text = outcome[kind]
    if kind in ("asked", "terminated"):
        # A question is asked and a terminal error raised with its own words, in a history's measure.
        return {**outcome, kind: cut(text, QUESTION_BYTES)}
    if len(text) <= PREVIEW:
        return outcome
    return {**outcome, kind: text[:PREVIEW] + "…", "size": len(text.encode())}


def reported(outcome: dict[str, Any], key: str) -> dict[str, Any]:
    """Return what a tool's activity reports: the outcome as a history has it, and of which call.

    That tells it from what an operator puts in as the result, who may well copy what another call reported.
    """
    return {**previewed(outcome), "call": key}


def is_reported(found: object, key: str) -> bool:
    """Whether a value is what a tool's activity reports of a call."""
    return isinstance(found, dict) and found.get("call") == key and is_outcome(found)


_OUTCOMES = ("returned", "failed", "asked", "terminated", "unknown", "cancelled")


def is_outcome(found: Mapping[str, Any]) -> bool:
    """Whether `read_outcome` can read it, and what else it says is of its kind."""
    kinds = [kind for kind in _OUTCOMES if kind in found]
    status, spent = found.get("status_code", 500), found.get("spent")
    return (
        len(kinds) == 1
        and isinstance(found[kinds[0]], str)
        and isinstance(status, int)
        and isinstance(found.get("metadata"), dict | None)
        and (spent is None or is_usage(spent))
    )


def is_usage(found: object) -> bool:
    """Whether `Usage.of` can read it."""
    try:
        Usage.of(cast(Any, found))
    except (TypeError, ValueError, AttributeError):
        return False
    return True


def put_in(found: object) -> dict[str, Any]:
    """Return, as a written outcome, what an operator has put in as the result of a call: a text, or why it is none."""
    if problem := json_problem(found):
        return {"failed": f"An operator put in a result that cannot be used: {problem}"}
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    if size := size_over(text, INLINE_BYTES):
        return {"failed": f"An operator put in a result of {size:,} bytes, more than {INLINE_BYTES:,}"}
    return {"returned": text}


def shown_arguments(arguments: dict[str, Any] | str) -> str:
    """Return a call's arguments on one line, cut for a history."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= PREVIEW else text[:PREVIEW] + "…"
