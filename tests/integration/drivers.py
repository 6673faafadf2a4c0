"""The two drivers behind one face: what a run came to in process, and on Temporal, in the same words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError

from holdfast import Agent, Message, TerminalError, Usage, is_interrupted, resume, run
from integration.temporal_runs import Temporal, check_healthy, pending, result


@dataclass(frozen=True)
class Ended:
    """How a run ended; `status` is "raised" if it failed with a terminal error.

    Args:
        messages: what the store holds.
        questions: what was asked on the way.
    """

    status: str
    response: str
    iterations: int = 0
    usage: Usage | None = None
    output: Any = None
    error: str | None = None
    messages: tuple[Message, ...] = ()
    questions: tuple[str, ...] = ()


class Driver(Protocol):
    """Runs an agent in a session to its end."""

    temporal: Temporal

    async def run(
        self, agent: Agent, llm: Any, *, message: str | None = "go", answers: Sequence[str] = (), **options: Any
    ) -> Ended:
        """Run an agent.

        Args:
            answers: to the questions on the way, in order.
            options: session, user_id, tenant_id, instance_id, tools, max_stored_messages, also (further agents of the
                worker).
        """
        ...


class InProcess:
    def __init__(self, temporal: Temporal) -> None:
        self.temporal = temporal

    async def run(
        self, agent: Agent, llm: Any, *, message: str | None = "go", answers: Sequence[str] = (), **options: Any
    ) -> Ended:
        session = self.temporal.session(options.pop("session", "s"))
        options.pop("also", None)
        given = {"llm": llm, "store": self.temporal.store, **options}
        left, asked = list(answers), []
        try:
            ended = await run(agent, message=message, session_id=session, **given)
            while is_interrupted(ended):
                asked.append(ended.question)
                ended = await resume(agent, ended.checkpoint, left.pop(0), **given)
        except TerminalError as error:
            messages = await self.temporal.store.load_messages(session)
            return Ended("raised", str(error), output=error.metadata, messages=tuple(messages))
        messages = await self.temporal.store.load_messages(session)
        return Ended(
            ended.status, ended.response, ended.iterations, ended.usage, ended.output, ended.error,
            tuple(messages), tuple(asked),
        )  # fmt: skip


class OnTemporal:
    def __init__(self, temporal: Temporal) -> None:
        self.temporal = temporal

    async def run(
        self, agent: Agent, llm: Any, *, message: str | None = "go", answers: Sequence[str] = (), **options: Any
    ) -> Ended:
        session, asked = options.pop("session", "s"), []
        also = options.pop("also", ())
        worker = {name: options.pop(name) for name in ("tools", "max_stored_messages") if name in options}
        async with self.temporal.worker(agent, *also, llm=llm, **worker):
            handle = await self.temporal.start(agent, message, session=session, **options)
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
        )  # fmt: skip


def _raised(cause: BaseException, messages: tuple[Message, ...]) -> Ended:
    assert isinstance(cause, ApplicationError)
    assert cause.type == "TerminalError"
    details: Any = cause.details[0]
    return Ended("raised", cause.message, output=details["metadata"], messages=messages)
