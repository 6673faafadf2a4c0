"""`holdfast chat`: a conversation in the terminal, in this process or with a run on Temporal."""

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from holdfast.checkpoints import InterruptedResponse, RunResult
from holdfast.cli.applications import Application, load_application
from holdfast.cli.commands import client_of, server_options, with_output
from holdfast.cli.outputs import Output, shown
from holdfast.cli.people import BY, who
from holdfast.cli.runs import progress, write_waiting
from holdfast.cli.seen import watched
from holdfast.cli.workers import STORE
from holdfast.errors import HoldfastError, InputError
from holdfast.local import ModelRetried, TextDelta, ToolEnded, ToolStarted, run_streaming

if TYPE_CHECKING:
    from temporalio.client import Client

    from holdfast.local import Event

_LEAVE = ("/quit", "/exit")
_RESULT = 200  # characters of a tool's result that are shown


@click.command()
@click.argument("agent")
@click.option("--app", metavar="APP", help="File or module with the agent, which then runs here, without a server.")
@STORE
@click.option("-s", "--session", help="The conversation to begin or to go on with; a new one if left out.")
@click.option("--task-queue", default="holdfast", show_default=True, help="Queue of the workers, on Temporal.")
@BY
@server_options
@with_output
def chat(
    output: Output,
    agent: str,
    app: str | None,
    store: str | None,
    session: str | None,
    task_queue: str,
    by: str | None,
    server: dict[str, Any],
) -> None:
    """Talk with an agent in the terminal.

    What it asks is answered in place. /quit, Ctrl-D or Ctrl-C leaves.

    With --app it runs here, and its words appear as they come. Else it is a run on Temporal, which goes on without you.
    """
    if not output.is_text:
        raise click.UsageError("chat writes for people: leave out --output.")
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    session = session or f"chat-{uuid4().hex[:8]}"
    output.note(f"Session {session}; --session {session} goes on with it.")
    if app is not None:
        asyncio.run(_Here(output, load_application(app, store), agent, session, who(by)).talk())
    else:
        asyncio.run(_there(output, server, agent, session, task_queue, who(by)))


async def _said(prompt: str = "> ") -> str | None:
    """Return the next line that somebody types; None if there is no more."""

    def read() -> str | None:
        try:
            return input(prompt if sys.stdin.isatty() else "")
        except EOFError:
            return None

    while (line := await asyncio.to_thread(read)) is not None:
        if line.strip() in _LEAVE:
            return None
        if line.strip():
            return line
    return None


# --- in this process ---


class _Here:
    """A conversation with an agent that runs in this process."""

    def __init__(self, output: Output, app: Application, agent: str, session: str, by: str) -> None:
        self._output, self._agent, self._by = output, app.agent(agent), by
        self._options: dict[str, Any] = {
            "store": app.store, "llm": app.llm, "tools": app.tools, "session_id": session, "user_id": by,
        }  # fmt: skip

    async def talk(self) -> None:
        given: dict[str, Any] | None = None
        async with self._options["store"]:
            while True:
                if given is None:
                    line = await _said()
                    if line is None:
                        return
                    given = {"message": line}
                ended = await self._turn(given)
                given = await self._asked(ended) if isinstance(ended, InterruptedResponse) else None

    async def _turn(self, given: Mapping[str, Any]) -> RunResult | InterruptedResponse | None:
        """Run until it is the person's turn, and show what happens."""
        written = False
        ended: RunResult | InterruptedResponse | None = None
        try:
            async for event in run_streaming(self._agent, **given, **self._options):
                written = self._show(event, written)
                ended = getattr(event, "result", ended)
        except HoldfastError as error:
            self._output.note(str(error))
            return None
        if isinstance(ended, RunResult) and ended.status != "complete":
            self._output.note(f"Ended with {ended.status}: {ended.error or ended.response}")
        return ended

    def _show(self, event: "Event", written: bool) -> bool:
        match event:
            case TextDelta(text):
                click.echo(shown(text), nl=False)
                return True
            case ModelRetried(error, delay):
                self._output.note(f"\nAsked again in {delay:g} s: {error}")
                return False
        if written:
            click.echo()
        match event:
            case ToolStarted(call):
                arguments = json.dumps(call.arguments, ensure_ascii=False)
                self._output.line(f"-> {call.name}({arguments})", style="dim")
            case ToolEnded(call, message) if message is not None:
                text = message.content
                self._output.line(f"<- {call.name}: {text[:_RESULT]}{'…' if len(text) > _RESULT else ''}", style="dim")
        return False

    async def _asked(self, ended: InterruptedResponse) -> dict[str, Any] | None:
        """Ask the person what the agent asks; None if they leave it open."""
        if not ended.approvals:
            self._output.line(ended.question, style="bold")
            line = await _said("? ")
            return None if line is None else {"checkpoint": ended.checkpoint, "answer": line}
        decisions = []
        for item in ended.approvals:
            data = {"kind": "approval", "name": item.gate, "message": item.message, "workflow_id": "",
                    "tool": item.tool, "arguments": item.arguments, "approvers": item.approvers}  # fmt: skip
            write_waiting(self._output, data, how=False)
            decision = await _decision(self._by)
            if decision is None:
                return None
            decisions.append({"gate": item.gate, "digest": item.digest, **decision})
        return {"decisions": decisions}


async def _decision(by: str) -> dict[str, Any] | None:
    while (line := await _said("approve, reject, or edit JSON? ")) is not None:
        word, _, rest = line.strip().partition(" ")
        if word in ("approve", "y", "yes"):
            return {"decision": "approve", "by": by}
        if word in ("reject", "n", "no"):
            return {"decision": "reject", "by": by} | ({"comment": rest} if rest else {})
        if word == "edit":
            try:
                return {"decision": "approve", "by": by, "edit": json.loads(rest)}
            except ValueError as error:
                click.echo(f"That is no JSON: {error}", err=True)
    return None


# --- on Temporal ---


async def _there(output: Output, server: dict[str, Any], agent: str, session: str, task_queue: str, by: str) -> None:
    from holdfast.temporal import start_agent

    client = await client_of(server)
    while (line := await _said()) is not None:
        handle = await start_agent(
            client, agent, message=line, session_id=session, task_queue=task_queue, if_running="message"
        )
        await _until_answered(client, output, handle.id, by)


async def _until_answered(client: "Client", output: Output, run: str, by: str) -> None:
    """Follow a run until it ends, and ask the person what it asks."""
    while True:
        asks: list[dict[str, Any]] = []
        with progress(output) as tell:
            async for seen in watched(client, run):
                tell(seen)
                asks = (seen.get("state") or {}).get("waiting", [])
                if asks:
                    break
        if not asks:
            result = seen.get("result")
            if isinstance(result, dict) and result.get("status") == "complete":
                output.line(str(result.get("response", "")))
            else:
                why = result.get("error") or result.get("status") if isinstance(result, dict) else seen.get("error")
                output.note(f"Ended with {seen['status']}: {why}")
            return
        try:
            if not await _settled(client, output, run, asks[0], by):
                output.note("Left open; `holdfast pending` shows it.")
                return
        except InputError as error:
            output.note(str(error))


async def _settled(client: "Client", output: Output, run: str, item: dict[str, Any], by: str) -> bool:
    """Ask the person about what waits, and tell the run; False if they leave it open."""
    from holdfast.temporal import HoldfastClient

    people = HoldfastClient(client)
    write_waiting(output, {"workflow_id": run, **item}, how=item["kind"] in ("worker", "unknown"))
    if item["kind"] == "question":
        line = await _said("? ")
        if line is not None:
            await people.answer(run, line, tool_call_id=item["name"] or None, by=by)
        return line is not None
    if item["kind"] == "approval":
        decision = await _decision(by)
        if decision is not None:
            await people.decide(run, item["name"], digest=item.get("digest"), **decision)
        return decision is not None
    if item["kind"] == "pause":
        line = await _said("retry or abort? ")
        if line is not None:
            await people.resume(run, "abort" if line.strip() == "abort" else "retry", by=by)
        return line is not None
    return False
