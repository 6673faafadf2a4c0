"""Reads and checks a caller's arguments of a run, before any action."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from pydantic import ValidationError

from standfast.agent_loop import Decision, Gate, LoopState, access_problem, gate_problem, read_transcript, unanswered
from standfast.agents import ACCEPTED, Agent
from standfast.checkpoints import Checkpoint, CheckpointKey, Question, RunResult, check_signature
from standfast.errors import InputError, SessionAccessDeniedError
from standfast.llm import LLM
from standfast.messages import (
    Image,
    Message,
    check_message_id,
    check_whole,
    clean_text,
    explain,
    read_images,
    size_over,
)
from standfast.pipelines import Pipeline
from standfast.stores.protocol import AgentStore, Session, check_session_id, session_id_of
from standfast.tools import Tool

Transcript = Sequence[Message | Mapping[str, Any]]
Images = Sequence[Image | Mapping[str, Any]]
GivenCheckpoint = Checkpoint | Mapping[str, Any] | str
Handlers = Mapping[str, Callable[..., object]]


class RunOptions(TypedDict, total=False):
    """The options of `run`, `resume` and `run_streaming`; see `run`."""

    llm: LLM | None
    store: AgentStore | None
    session_id: str | None
    create_session: bool
    max_stored_messages: int
    user_id: str | None
    tenant_id: str | None
    tools: Handlers | None
    instance_id: str | None
    checkpoint_key: CheckpointKey | None
    context: Any


def check_given(agent: object, user_id: str | None, max_stored_messages: object, tools: object) -> None:
    """Refuse arguments that no run can use.

    Raises:
        InputError: with the reason.
    """
    if not isinstance(agent, Agent):
        raise InputError(f"run() needs {ACCEPTED}, got {agent!r:.200}")
    if isinstance(max_stored_messages, bool) or not isinstance(max_stored_messages, int) or max_stored_messages < 1:
        raise InputError(f"max_stored_messages must be >= 1, got {max_stored_messages!r}")
    if tools is not None and not isinstance(tools, Mapping):
        raise InputError(f"tools must map names to handlers, got {tools!r}; tools are declared with the agent")
    check_may_start(agent, user_id)


def with_handlers(agent: Agent, handlers: Handlers) -> dict[str, Tool[..., Any]]:
    """Return an agent's tools, with these handlers instead of the declared ones."""
    tools = agent.tool_map.items()
    return {name: tool.with_handler(handlers[name]) if name in handlers else tool for name, tool in tools}


@dataclass(frozen=True, slots=True)
class RunInput:
    """The input of a run: a message, a transcript or a checkpoint, and an answer or decisions.

    Args:
        messages: the transcript to start from; a checkpoint's, if there is one.
        is_signed: whether the checkpoint was signed with our key, so that its decisions are genuine.
        message_id: of the message, which counts once.
    """

    message: str | None
    answer: str | None
    messages: list[Message] | None
    checkpoint: Checkpoint | None
    decisions: tuple[Decision, ...] = ()
    images: tuple[Image, ...] | None = None
    is_signed: bool = False
    message_id: str | None = None

    @classmethod
    def read(
        cls,
        message: str | None,
        messages: Transcript | None,
        checkpoint: GivenCheckpoint | None,
        answer: str | None,
        decisions: tuple[Decision, ...] = (),
        *,
        images: Images = (),
        message_id: str | None = None,
        limit: int,
        agent: str = "",
        key: bytes | None = None,
    ) -> "RunInput":
        """Read a caller's arguments; texts are cleaned and limited to `limit` bytes.

        Args:
            agent, key: the agent of which a checkpoint must be, and the key with which it must be signed; any if None.

        Raises:
            InputError: naming the invalid argument.
        """
        if messages is not None and checkpoint is not None:
            raise InputError("give messages= or checkpoint=, not both")
        if answer is not None and checkpoint is None:
            raise InputError("an answer needs the checkpoint that asks for it")
        if images and message is None:
            raise InputError("images= go with a message=")
        if message_id is not None and message is None:
            raise InputError("message_id= goes with a message=")
        read = None if checkpoint is None else _read_checkpoint(checkpoint)
        if read is not None and key is not None:
            check_signature(read, agent, key)
        given = messages if read is None else read.messages
        return cls(
            message=_read_text("message", message, limit),
            answer=_read_text("answer", answer, limit),
            messages=None if given is None else read_transcript(given),
            checkpoint=read,
            decisions=decisions,
            images=read_images(images, limit),
            is_signed=read is not None and key is not None,
            message_id=None if message_id is None else check_message_id(message_id),
        )

    def user_message(self, by: str | None) -> Message:
        """Return the user's message."""
        return Message(role="user", content=self.message or "", images=self.images, by=by, message_id=self.message_id)

    def without_message(self) -> "RunInput":
        """Return the input of a run that continues, because its session already has the message."""
        return replace(self, message=None, images=None, message_id=None)

    @property
    def questions(self) -> tuple[Question, ...]:
        """The open questions of the checkpoint."""
        if self.checkpoint is None:
            return ()
        pending = self.checkpoint.pending_tool_use_id
        if self.checkpoint.questions is None and pending is not None:
            return (Question(question="", tool_call_id=pending),)  # a checkpoint with only the four documented fields
        return self.checkpoint.questions or ()

    @property
    def credible_questions(self) -> tuple[Question, ...]:
        """The questions that a run may continue with.

        Anyone who holds an unsigned checkpoint can write into it that a call was approved, who may approve it, or that
        time approves it. So its gates are made again from the agent.
        """
        return tuple(question for question in self.questions if self.is_signed or question.gate is None)

    @property
    def claimed_gates(self) -> tuple[Gate, ...]:
        """The gates that were open or decided according to an unsigned checkpoint."""
        gates = (question.gate for question in self.questions if not self.is_signed)
        return tuple(Gate.read(gate) for gate in gates if gate is not None)

    @property
    def claimed_answer(self) -> Question | None:
        """The gate that holds an answer, or the user's messages, according to an unsigned checkpoint."""
        return next((question for question in self.questions if question.is_held and not self.is_signed), None)

    @property
    def decisions_as_shown(self) -> tuple[Decision, ...]:
        """The decisions, each tied to the checkpoint's contents: a gate that changed when remade is not approved."""
        shown = {gate.name: gate.shown_digest for gate in self.claimed_gates}
        return tuple(
            one if one.digest or one.gate not in shown else one.model_copy(update={"digest": shown[one.gate]})
            for one in self.decisions
        )

    def check_questions(self) -> None:
        """Refuse a checkpoint whose questions do not belong to calls that wait for a result."""
        waiting = {call.id for call in unanswered(self.messages or [])}
        for question in self.questions:
            if question.is_held:
                _check_held(question)
            elif question.tool_call_id is not None and question.tool_call_id not in waiting:
                raise InputError(
                    f"the checkpoint asks for call {question.tool_call_id}, which does not wait for a result"
                )
            if question.gate is not None and (problem := gate_problem(question.gate, question.tool_call_id)):
                raise InputError(f"the checkpoint has a gate that cannot be used: {problem}")

    def check_goes_on(self, session_id: str, questions: tuple[Question, ...]) -> None:
        """Refuse a caller's transcript for a session that has one, and a session that waits at a workflow's gate.

        There an approved call may run at any moment.
        """
        if self.messages is not None and self.checkpoint is None:
            raise InputError(f"Session {session_id} has its own messages: leave out messages= or session_id=")
        for question in questions:
            if question.gate is not None and (workflow := question.gate.get("workflow")) is not None:
                raise InputError(
                    f"Session {session_id} waits for approval of call {question.tool_call_id} in the workflow "
                    f"{workflow}: decide there. If that run is gone, start the session on Temporal again"
                )

    def in_session(self, session_id: str) -> "RunInput":
        """Return the input that continues in the checkpoint's session, without its last messages, which are stored."""
        messages = list(self.messages or [])
        while messages and messages[-1].role == "user" and messages[-1].id is not None:
            del messages[-1]
        assert self.checkpoint is not None
        checkpoint = self.checkpoint.model_copy(update={"session_id": session_id})
        return replace(self, messages=messages, checkpoint=checkpoint)

    def session_for(self, session_id: str | None, has_store: bool) -> str | None:
        """Return the session to run: the checkpoint's, if it has one.

        A checkpoint of a session continues only in that session. Continued twice, it would run later effects twice.
        """
        mine = None if self.checkpoint is None else self.checkpoint.session_id
        if mine is None:
            return session_id
        if not has_store:
            raise InputError(f"the checkpoint belongs to session {mine}: pass the store= that holds it")
        if session_id not in (None, mine):
            raise InputError(f"the checkpoint belongs to session {mine}, not to session {session_id}")
        return mine

    def check_session(self, session_id: str, questions: tuple[Question, ...], stored: list[Message]) -> None:
        """Refuse an answer to a question that the session never asked, or no longer asks."""
        if not self.questions and self.answer is None:
            return
        asked = self.questions[0].tool_call_id if self.questions else None
        now = questions[0].tool_call_id if questions else None
        shown = asked
        if any(question.gate is not None for question in (*self.questions, *questions)):
            asked = now  # several gates are decided one by one, and the session knows which are open
        if bool(self.questions) != bool(questions) or asked != now or (self.messages or [])[-1:] != stored[-1:]:
            what = f"the answer to call {shown} any more: it was answered, or" if self.questions else "an answer here:"
            raise InputError(
                f"Session {session_id} does not wait for {what} the session continued. run() without message= "
                "returns its current state."
            )

    def not_in(self, stored: list[Message]) -> list[Message]:
        """Return the user's messages that are not stored, since the model failed in the run that received them."""
        mine = self.messages or []
        for end in range(len(mine), len(stored) - 1, -1):
            rest = mine[end:]
            if any(message.role != "user" for message in rest):
                break
            if mine[end - len(stored) : end] == stored and (stored or end == 0):
                return rest
        return []


def _check_held(question: Question) -> None:
    held = question.held
    if held is None or held.role != "assistant" or held.tool_calls or not held.tripped:
        raise InputError(f"the checkpoint has a gate {question.tool_call_id} without the answer that it holds")


def _read_text(what: str, text: object, limit: int) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise InputError(f"{what} must be text, got {type(text).__name__}")
    text = clean_text(text)
    if size_over(text, limit):
        raise InputError(f"{what} is longer than {limit:,} bytes: shorten it, or raise Loop(max_message_bytes=…)")
    return text


def _read_checkpoint(checkpoint: GivenCheckpoint) -> Checkpoint:
    if isinstance(checkpoint, RunResult):
        raise InputError("checkpoint= is the result itself: pass its .checkpoint")
    try:
        if isinstance(checkpoint, str):
            return Checkpoint.model_validate_json(checkpoint)
        return Checkpoint.model_validate(checkpoint)
    except ValidationError as error:
        raise InputError(f"the checkpoint cannot be read: {explain(error)}") from error


def check_may_start(declared: Agent | Pipeline, user: str | None) -> None:
    """Refuse a user who may not begin a run of an agent or a pipeline, or whose id a store cannot keep."""
    if user is not None:
        check_user(user)
    rule = declared.access.get("start")
    if rule is not None and (refused := access_problem(rule, user)):
        raise InputError(f"{type(declared).__name__} '{declared.name}': {refused} start it")


def check_user(user: object) -> None:
    """Refuse a value that cannot be a user's id."""
    check_whole(user, "user_id")
    if not user:
        raise InputError("user_id must not be empty; leave it out")


def check_may_speak(state: LoopState, session_id: str | None) -> None:
    """Refuse a message that would come between a call and its result."""
    where = f"Session {session_id}" if session_id else "The run"
    if state.gates:
        what = "" if state.gates[0].is_held else "call "
        raise InputError(
            f"{where} waits for approval of {what}{state.gates[0].tool_call_id}: give decisions=[…] before a new "
            "message. run() without message= returns the waiting items."
        )
    if state.questions:
        question = state.questions[0]
        raise InputError(
            f"{where} waits for the answer to {question.question!r} (call {question.tool_call_id}): give it with "
            "resume(agent, checkpoint, answer) before a new message. run() without message= returns the checkpoint."
        )
    if state.open_calls and not state.recovering:
        raise InputError(
            f"the transcript ends with unanswered tool calls ({', '.join(call.id for call in state.open_calls)}): "
            "run it without message= first"
        )


def check_access(session: Session, agent: Agent, user_id: str | None, tenant_id: str | None) -> None:
    """Refuse a stranger, and another agent. A session without an owner is open to everyone, and stays so."""
    if session.user_id not in (None, user_id) or session.tenant_id not in (None, tenant_id):
        raise SessionAccessDeniedError(session_id_of(session.id))
    if session.agent_name not in agent.names:
        raise InputError(
            f"Session {session_id_of(session.id)} belongs to agent '{session.agent_name}', not to '{agent.name}'"
        )


def check_restart_options(restart_of: str | None, restart_from: str | None) -> tuple[str, str] | None:
    """Return the run key and the step of a restart; None without a restart.

    Raises:
        InputError: one is given without the other, or the key is invalid.
    """
    if restart_of is None and restart_from is None:
        return None
    if restart_of is None or restart_from is None:
        raise InputError("restart_of= and restart_from= go together")
    return check_session_id(restart_of, "restart_of"), restart_from
