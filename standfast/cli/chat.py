"""`standfast chat`: a conversation in the terminal, in this process or with a run on Temporal."""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import click

from standfast.checkpoints import InterruptedResponse, RunResult
from standfast.cli.applications import Application, load_application
from standfast.cli.audits import BY
from standfast.cli.commands import ServerOptions, client_of, server_options, with_output
from standfast.cli.inputs import agent_name, read_json_option, who
from standfast.cli.outputs import Output
from standfast.cli.runs import CONTEXT, progress
from standfast.cli.stores import USUAL, Store, check_workers_store, existing_store
from standfast.cli.waiting import write_waiting
from standfast.cli.workers import STORE
from standfast.errors import InputError, StandfastError
from standfast.events import ModelRetried, ReasoningDelta, TextDelta, ToolEnded, ToolStarted
from standfast.local import run_streaming
from standfast.messages import JSONObject
from standfast.runtime.streamed_answers import Heard, load_more, news_of, until_more
from standfast.stores import SQLiteStore
from standfast.stores.protocol import has_journal

if TYPE_CHECKING:
    from temporalio.client import Client

    from standfast.events import AnswerDelta, Event

_LEAVE = ("/quit", "/exit")
_RESULT = 200  # characters of a tool's result that are shown


@click.command()
@click.argument("agent", callback=agent_name)
@click.option("--app", metavar="APP", help="File or module with the agent, which then runs here, without a server.")
@STORE
@CONTEXT
@click.option("-s", "--session", help="Session to begin or to continue.  [default: a new one]")
@click.option("--task-queue", default="standfast", show_default=True, help="Queue of the workers, on Temporal.")
@BY
@server_options
@with_output
def chat(
    output: Output,
    agent: str,
    app: str | None,
    store: str | None,
    context: str | None,
    session: str | None,
    task_queue: str,
    by: str | None,
    server: ServerOptions,
) -> None:
    """Talk with an agent in the terminal.

    You answer its questions in place. /quit, Ctrl-D or Ctrl-C leaves.

    With --app the agent runs here, and its words appear as they arrive. Without --app it is a run on Temporal, which
    continues without you; its words appear as they arrive if --store is the store of a worker with --stream.
    """
    if not output.is_text:
        raise click.UsageError("chat writes for people: leave out --output.")
    session = session or f"chat-{uuid4().hex[:8]}"
    given = None if context is None else read_json_option("--context", context)
    output.note(f"Session {session}; continue it with --session {session}.")
    with suppress(ImportError):
        import readline  # noqa: F401  # lines can be edited, and called back

    # A line is read outside the runner: a thread that reads cannot be stopped.
    with _quiet(), asyncio.Runner() as runner:
        if app is not None:
            here = load_application(app, store)
            _tell_new_store(output, here.store)
            talk: _Talk = _LocalConversation(output, here, agent, session, who(by), given)
        else:
            kept = None if store is None else existing_store(store)
            client = runner.run(client_of(server))
            if kept is not None:
                runner.run(check_workers_store(client, output, store, kept, task_queue=task_queue))
            at: dict[str, Any] = {"task_queue": task_queue, "by": who(by), "store": kept, "context": given}
            talk = _TemporalConversation(output, client, agent, session, **at)
        try:
            asked = runner.run(talk.begin())
            while True:
                if not asked:
                    if (line := _read_line()) is None:
                        return
                    asked = runner.run(talk.say(line))
                while asked:
                    asked = runner.run(talk.settle(told)) if (told := talk.ask(asked)) is not None else None
        finally:
            runner.run(talk.close())


def _tell_new_store(output: Output, store: Any) -> None:
    """Announce that a conversation creates a file, since commands without --store read the usual one."""
    if not isinstance(store, SQLiteStore) or store.path == ":memory:" or Path(store.path).exists():
        return
    usual = Path(store.path).absolute() == Path(USUAL).absolute()
    read = ", which other commands in this folder read unless --store or --app names another store" if usual else ""
    output.note(f"The conversation is kept in {store.path}, a new file{read}.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep log lines out of the conversation, which reports errors itself."""
    log = logging.getLogger("standfast")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


class _Words:
    """Writes a model's words as they arrive. Its thoughts are dimmed and do not share a line with its text."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._open = ""  # the kind of words on the current line

    def write(self, piece: "AnswerDelta") -> None:
        if not piece.text:
            return
        if self._open not in ("", piece.type):
            click.echo()
        self._open = piece.type
        self._output.words(piece.text, style="dim" if isinstance(piece, ReasoningDelta) else None)

    def end(self) -> None:
        """Continue on a new line."""
        if self._open:
            click.echo()
        self._open = ""


class _Talk(Protocol):
    """A conversation; sending a message or settling a call returns the agent's next question, if any."""

    async def begin(self) -> Any: ...
    async def say(self, line: str) -> Any: ...
    def ask(self, asked: Any) -> Any:
        """Ask the person; None if the question stays open."""

    async def settle(self, told: Any) -> Any: ...
    async def close(self) -> None: ...


def _read_line(prompt: str = "> ") -> str | None:
    """Return the next line that a person types; None at the end of the input."""
    while True:
        try:
            line = input(prompt if sys.stdin.isatty() else "").strip()
        except EOFError:
            return None
        if line:
            return None if line in _LEAVE else line


def _decision(by: str) -> JSONObject | None:
    while (line := _read_line("approve, reject [why], or all arguments as JSON? ")) is not None:
        word, _, rest = ("edit", "", line) if line.startswith("{") else line.partition(" ")
        if word in ("approve", "y", "yes"):
            return {"decision": "approve", "by": by}
        if word in ("reject", "n", "no"):
            return {"decision": "reject", "by": by} | ({"comment": rest} if rest else {})
        if word == "edit":
            try:
                return {"decision": "approve", "by": by, "edit": json.loads(rest)}
            except ValueError as error:
                click.echo(f"That is not JSON: {error}", err=True)
        else:
            click.echo("Type approve (y), or reject (n) and why, or all arguments as JSON.", err=True)
    return None


def _ended(status: str, why: object) -> str:
    return f"Ended with {status}" + (f": {why}" if why else "")


# --- in this process ---


class _LocalConversation:
    """A conversation with an agent that runs in this process."""

    def __init__(self, output: Output, app: Application, agent: str, session: str, by: str, context: Any) -> None:
        self._output, self._agent, self._by, self._context = output, app.agent(agent), by, context
        self._options: dict[str, Any] = {
            "store": app.store,
            "llm": app.llm,
            "tools": app.tools,
            "session_id": session,
            "user_id": by,
        }
        self._words = _Words(output)
        self._unheard: tuple[str, str] | None = None  # a line whose run failed, and the id of that message

    async def begin(self) -> InterruptedResponse | None:
        """Return to the session's open question, if any."""
        session = await self._options["store"].load_session(self._options["session_id"])
        return await self.settle({}) if session is not None and session.questions else None

    async def say(self, line: str) -> InterruptedResponse | None:
        told = {"message": line, "context": self._context}
        if has_journal(self._options["store"]):
            before, message_id = self._unheard or ("", "")
            self._unheard = line, message_id if line == before else uuid4().hex
            told["message_id"] = self._unheard[1]
        return await self.settle(told)

    async def settle(self, told: Mapping[str, Any]) -> InterruptedResponse | None:
        """Run until it is the person's turn, and show the events."""
        ended = None
        try:
            async for event in run_streaming(self._agent, **told, **self._options):
                self._show(event)
                ended = getattr(event, "result", ended)
        except StandfastError as error:
            self._output.note(str(error))
            return None
        if isinstance(ended, InterruptedResponse):
            self._unheard = None
            return ended
        if isinstance(ended, RunResult) and ended.status != "error":
            self._unheard = None
        if isinstance(ended, RunResult) and ended.status != "complete":
            self._output.note(_ended(ended.status, ended.error or ended.response))
        return None

    async def close(self) -> None:
        await self._options["store"].close()

    def _show(self, event: "Event") -> None:
        if isinstance(event, TextDelta | ReasoningDelta):
            if event.offset == 0:  # the words before it are void
                self._words.end()
            self._words.write(event)
            return
        self._words.end()
        match event:
            case ModelRetried(error, delay):
                self._output.note(f"Called again in {delay:g} s: {error}")
            case ToolStarted(call):
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                self._output.line(f"-> {call.name}({arguments})", style="dim")
            case ToolEnded(call, message) if message is not None:
                text = message.content
                self._output.line(f"<- {call.name}: {text[:_RESULT]}{'…' if len(text) > _RESULT else ''}", style="dim")

    def ask(self, asked: InterruptedResponse) -> JSONObject | None:
        if not asked.approvals:
            self._output.line(asked.question, style="bold")
            line = _read_line("? ")
            return None if line is None else {"checkpoint": asked.checkpoint, "answer": line}
        decisions = []
        for item in asked.approvals:
            data = {
                "kind": "approval",
                "name": item.gate,
                "message": item.message,
                "workflow_id": "",
                "tool": item.tool,
                "arguments": item.arguments,
                "shown": item.shown,
                "approvers": item.approvers,
            }
            write_waiting(self._output, data, how=False)
            decision = _decision(self._by)
            if decision is None:
                return None
            decisions.append({"gate": item.gate, "digest": item.digest, **decision})
        return {"decisions": decisions}


# --- on Temporal ---


class _WordsOfRun:
    """Writes the words of a run's model as they arrive, from the store of its worker."""

    def __init__(self, output: Output, store: Store | None) -> None:
        self._store, self._words = store, _Words(output)
        self._said = ""  # of the current answer
        self._writing: asyncio.Task[None] | None = None

    def __enter__(self) -> Callable[[Mapping[str, Any]], None]:
        return self._tell

    def _tell(self, seen: Mapping[str, Any]) -> None:
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write(seen["first_run_id"]))

    def __exit__(self, *_: object) -> None:
        if self._writing is not None:
            self._writing.cancel()

    async def _write(self, journal_key: str) -> None:
        assert self._store is not None
        heard = Heard()
        async with news_of(self._store, journal_key) as news:
            while True:
                for piece, then in await load_more(self._store, journal_key, heard):
                    heard = then
                    if piece.offset == 0:  # another turn, or another attempt
                        self._words.end()
                    if isinstance(piece, TextDelta):
                        self._said = self._said[: piece.offset] + piece.text
                    self._words.write(piece)
                await until_more(news, 0.1)

    def end(self) -> None:
        """Continue on a new line."""
        self._words.end()
        self._said = ""

    def rest_of(self, answer: str) -> str:
        """Return the part of an answer that is not written yet."""
        if self._said and answer.startswith(self._said):
            return answer[len(self._said) :]
        self.end()
        return answer


class _TemporalConversation:
    """A conversation with runs on Temporal, which continue without a person."""

    def __init__(
        self,
        output: Output,
        client: "Client",
        agent: str,
        session: str,
        *,
        task_queue: str,
        by: str,
        store: Store | None,
        context: Any,
    ) -> None:
        from standfast.temporal import StandfastClient

        self._output, self._client, self._by = output, client, by
        self._people = StandfastClient(client, store=store)
        self._agent, self._session, self._task_queue = agent, session, task_queue
        self._run = f"{agent}/{session}"
        self._store, self._context = store, context

    async def begin(self) -> JSONObject | None:
        """Return to the session's run, if one is in flight."""
        from standfast.temporal.client.runs.descriptions import described
        from standfast.temporal.client.runs.owners import check_owner

        with suppress(InputError):
            run = await described(self._client, self._run)
            if run.close_time is None:
                await check_owner(self._client, self._run, run.run_id, self._session, (self._by, None))
                return await self._followed()
        return None

    async def say(self, line: str) -> JSONObject | None:
        from standfast.temporal import OnRecord, start_agent

        handle = await start_agent(
            self._client,
            self._agent,
            message=line,
            message_id=uuid4().hex,
            session_id=self._session,
            task_queue=self._task_queue,
            user_id=self._by,
            context=self._context,
            if_running="message",
            on_record=OnRecord(store=self._store, by=self._by),
        )
        self._run = handle.id
        return await self._followed()

    async def _followed(self) -> JSONObject | None:
        """Follow the run until it ends, or asks something."""
        from standfast.temporal.client.runs.descriptions import outcome, watched

        words = _WordsOfRun(self._output, self._store)
        with words if self._store is not None else progress(self._output) as tell:
            async for seen in watched(self._client, self._run):
                tell(seen)
                if asks := (seen.get("state") or {}).get("waiting"):
                    words.end()
                    item: JSONObject = asks[0]
                    return item
        result = seen.get("result")
        if isinstance(result, dict) and result.get("status") == "complete":
            self._output.line(words.rest_of(str(result.get("response", ""))))
        else:
            words.end()
            told = result if isinstance(result, dict) else seen
            self._output.note(_ended(outcome(seen), told.get("error") or told.get("response")))
        return None

    def ask(self, asked: JSONObject) -> Callable[[], Awaitable[None]] | None:
        people, run, kind, name = self._people, self._run, asked["kind"], asked["name"]
        write_waiting(self._output, {"workflow_id": run, **asked}, how=kind in ("worker", "store", "unknown"))
        match kind:
            case "question" if (line := _read_line("? ")) is not None:
                return partial(people.answer, run, line, tool_call_id=name or None, by=self._by)
            case "approval" if (decision := _decision(self._by)) is not None:
                return partial(people.decide, run, name, digest=asked.get("digest"), **decision)
            case "pause" if (line := _read_line("retry or abort? ")) is not None:
                return partial(people.resume, run, "abort" if line == "abort" else "retry", by=self._by)
        self._output.note("Left open; `standfast pending` shows it.")
        return None

    async def settle(self, told: Callable[[], Awaitable[None]]) -> JSONObject | None:
        try:
            await told()
        except InputError as error:
            self._output.note(str(error))
        return await self._followed()

    async def close(self) -> None:
        """Leave the run; it continues."""
        if self._store is not None:
            await self._store.close()
