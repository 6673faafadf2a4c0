"""The two drivers behind one interface: a run's result in process and on Temporal, in the same form."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from standfast import (
    Agent,
    Event,
    InputError,
    InterruptedResponse,
    Message,
    TerminalError,
    Tripped,
    Usage,
    is_interrupted,
    resume,
    run,
    run_streaming,
)
from standfast.temporal import StandfastClient
from support.temporal_runs import Run, Temporal, check_healthy, has_ended, pending, result, until, waiting

Decisions = Sequence[Mapping[str, Any] | str | None]
_OF_CALLS, _OF_OTHERS = ("tool", "arguments", "message", "approvers"), ("shown", "message", "approvers")


@dataclass(frozen=True)
class Ended:
    """How a run ended; `status` is "raised" if it failed with a terminal error, "waiting" if it waits for approval.

    Args:
        messages: what the store holds.
        questions: what was asked on the way.
        waits: the items that wait for approval, as people see them, by gate.
        refused: why decisions did not count, in order.
        status_code: of the terminal error that was raised; `output` is its metadata.
    """

    status: str
    response: str
    iterations: int = 0
    usage: Usage | None = None
    output: Any = None
    error: str | None = None
    messages: tuple[Message, ...] = ()
    questions: tuple[str, ...] = ()
    waits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    status_code: int | None = None
    tripped: Tripped | None = None


class Driver(Protocol):
    """Runs an agent in a session to its end."""

    temporal: Temporal

    async def run(
        self,
        agent: Agent,
        llm: Any,
        *,
        message: str | None = "go",
        answers: Sequence[str] = (),
        decisions: Decisions = (),
        deployed: Agent | None = None,
        **options: Any,
    ) -> Ended:
        """Run an agent.

        Args:
            answers: to the questions on the way, in order.
            decisions: before them, one after the other, each when something waits; None lets the time pass, a text
                answers a question. One without a gate is on the first that waits.
            deployed: what the agent has become when something waits for the decisions.
            options: session, user_id, tenant_id, instance_id, tools, max_stored_messages, also (further agents of the
                worker).
        """
        ...

    async def events(
        self, agent: Agent, llm: Any, *, hear: Callable[[Event], None] = lambda event: None, **options: Any
    ) -> list[Event]:
        """Return all events of a run that was told "go", and have each heard as it comes."""
        ...


class InProcess:
    def __init__(self, temporal: Temporal) -> None:
        self.temporal = temporal

    async def run(
        self,
        agent: Agent,
        llm: Any,
        *,
        message: str | None = "go",
        answers: Sequence[str] = (),
        decisions: Decisions = (),
        deployed: Agent | None = None,
        **options: Any,
    ) -> Ended:
        session = self.temporal.session(options.pop("session", "s"))
        options.pop("also", None)
        given = {"llm": llm, "store": self.temporal.store, **options}
        left, asked, refused = list(answers), [], []
        try:
            ended = await run(agent, message=message, session_id=session, **given)
            for decision in decisions:
                assert is_interrupted(ended)
                if decision is None:
                    deadlines = [item.deadline for item in ended.approvals]
                    await until(lambda: all(at is not None and at < datetime.now(UTC) for at in deadlines))  # noqa: B023
                try:
                    if isinstance(decision, str):
                        ended = await resume(agent, ended.checkpoint, decision, **given)
                        continue
                    taken = [] if decision is None else [looked_at(ended, decision)]
                    ended = await run(deployed or agent, session_id=session, decisions=taken, **given)
                except InputError as error:
                    refused.append(str(error))
            while is_interrupted(ended):
                if ended.approvals:
                    waits = {item.gate: _seen(asdict(item)) for item in ended.approvals}
                    kept = await self.temporal.store.load_messages(session)
                    return Ended("waiting", "", messages=tuple(kept), waits=waits, refused=tuple(refused))
                asked.append(ended.question)
                ended = await resume(agent, ended.checkpoint, left.pop(0), **given)
        except TerminalError as error:
            messages = await self.temporal.store.load_messages(session)
            return Ended(
                "raised", str(error), output=error.metadata, messages=tuple(messages), status_code=error.status_code
            )
        messages = await self.temporal.store.load_messages(session)
        return Ended(
            ended.status, ended.response, ended.iterations, ended.usage, ended.output, ended.error,
            tuple(messages), tuple(asked), refused=tuple(refused), tripped=ended.tripped,
        )  # fmt: skip

    async def events(
        self, agent: Agent, llm: Any, *, hear: Callable[[Event], None] = lambda event: None, **options: Any
    ) -> list[Event]:
        session, heard = self.temporal.session(), list[Event]()
        options.pop("also", None)
        given = {"llm": llm, "store": self.temporal.store, "session_id": session, **options}
        async for event in run_streaming(agent, message="go", **given):
            heard.append(event)
            hear(event)
        return heard


def looked_at(waiting: InterruptedResponse, decision: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decision of someone who has looked at what waits, and so has its digest."""
    decision = {"gate": waiting.approvals[0].gate, **decision} if waiting.approvals else decision
    digest = next((item.digest for item in waiting.approvals if item.gate == decision["gate"]), None)
    return {**decision} if digest is None else {"digest": digest, **decision}


class OnTemporal:
    def __init__(self, temporal: Temporal) -> None:
        self.temporal = temporal

    async def run(
        self,
        agent: Agent,
        llm: Any,
        *,
        message: str | None = "go",
        answers: Sequence[str] = (),
        decisions: Decisions = (),
        deployed: Agent | None = None,
        **options: Any,
    ) -> Ended:
        session, asked = options.pop("session", "s"), []
        also = options.pop("also", ())
        worker = {name: options.pop(name) for name in ("tools", "max_stored_messages") if name in options}
        async with AsyncExitStack() as workers:
            await workers.enter_async_context(self.temporal.worker(agent, *also, llm=llm, **worker))
            handle = await self.temporal.start(agent, message, session=session, **options)
            if deployed is not None:
                await pending(handle)
                await workers.aclose()
                await workers.enter_async_context(self.temporal.worker(deployed, *also, llm=llm, **worker))
            refused = await self._decide(handle, decisions)
            if decisions and (waits := await until(lambda: _waits_or_has_ended(handle))) is not True:
                kept = tuple(await self.temporal.messages(session))
                return Ended("waiting", "", messages=kept, waits=waits, refused=refused)
            for answer in answers:
                asked.append((await pending(handle))[0]["message"])
                await handle.execute_update("answer", {"text": answer})
            try:
                ended = await result(handle)
            except WorkflowFailureError as error:
                return _raised(error.cause, tuple(await self.temporal.messages(session)))
            await check_healthy(handle)
        usage = ended["usage"]
        return Ended(
            ended["status"], ended["response"], ended["iterations"], None if usage is None else Usage(**usage),
            ended.get("output"), ended.get("error"), tuple(await self.temporal.messages(session)), tuple(asked),
            refused=refused, tripped=Tripped(**ended["tripped"]) if "tripped" in ended else None,
        )  # fmt: skip

    async def events(
        self, agent: Agent, llm: Any, *, hear: Callable[[Event], None] = lambda event: None, **options: Any
    ) -> list[Event]:
        heard = list[Event]()
        async with self.temporal.worker(agent, *options.pop("also", ()), llm=llm, stream=True):
            run = await self.temporal.start(agent, **options)
            async for event in StandfastClient(self.temporal.client, store=self.temporal.store).stream(run.id):
                heard.append(event)
                hear(event)
        return heard

    async def _decide(self, handle: Run, decisions: Decisions) -> tuple[str, ...]:
        refused = []
        for decision in decisions:
            (first, *_) = await pending(handle)
            if decision is None:
                await until(lambda: _is_over(handle, first))  # noqa: B023
                continue
            if isinstance(decision, str):
                await handle.execute_update("answer", {"text": decision})
                continue
            try:
                await self.temporal.people.decide(handle.id, **{"gate": first["name"], **decision})
            except InputError as error:
                refused.append(str(error))
        return tuple(refused)


async def _is_over(handle: Run, item: Mapping[str, Any]) -> bool:
    return item not in await waiting(handle)


async def _waits_or_has_ended(handle: Run) -> Any:
    """Return what waits for approval, or True if the run has ended or asks something else."""
    waits = await waiting(handle)
    approvals = {item["name"]: _seen(item) for item in waits if item["kind"] == "approval"}
    return approvals or bool(waits) or await has_ended(handle)


def _seen(item: Mapping[str, Any]) -> dict[str, Any]:
    names = _OF_CALLS if item.get("tool") else _OF_OTHERS
    return {name: list(item[name]) if name in ("approvers", "shown") else item[name] for name in names}


def _raised(cause: BaseException, messages: tuple[Message, ...]) -> Ended:
    assert isinstance(cause, ApplicationError)
    assert cause.type == "TerminalError"
    details: Any = cause.details[0]
    said = {"output": details["metadata"], "status_code": details["status_code"]}
    return Ended("raised", cause.message, messages=messages, **said)
