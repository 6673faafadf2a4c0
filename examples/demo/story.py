"""The two acts of the demo, and the count at its end."""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from temporalio.client import WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey

from examples.demo.people import read_answer
from examples.demo.screen import Screen
from examples.demo.world import WEBHOOK_DELAY, World, shown
from standfast import InputError, Message, StandfastError, sqlite_store
from standfast.temporal import Run, StandfastClient, start_agent

SEVERE, UNCLEAR = "ISSUE-119", "ISSUE-121"  # posted and mailed; its text does not say how severe it is
ANSWERS = {  # where there is no terminal to ask at
    SEVERE: "severe: data is lost",
    UNCLEAR: "not severe: it hits one account, and there is a workaround",
}
WAITING = SearchAttributeKey.for_keyword_list("StandfastWaiting")


class Story:
    """Tells what happens as it happens.

    `wrong` holds what did not come out as it has to, once that is known; None before.
    """

    def __init__(self, world: World, screen: Screen) -> None:
        self.world, self.screen = world, screen
        self.wrong: list[str] | None = None
        self._people = StandfastClient(world.client)
        self._has_terminal = sys.stdin.isatty()

    async def tell(self) -> None:
        worker = await self.world.start_worker()
        self._introduce()
        found = await self._kill_in_the_middle(worker.pid)
        found += await self._ask_a_person()
        self.wrong = found + self._count()
        wrong, right = (
            f"Wrong: {'; '.join(self.wrong)}.",
            "Right: one post each, even where a worker died in the middle.",
        )
        self.screen.say("", "    " + (self.screen.red(wrong) if self.wrong else self.screen.green(right)))
        if self._has_terminal:
            await self._stay()

    def _introduce(self) -> None:
        row, world = self.screen.row, self.world
        row("Temporal", f"{world.server.address}, Web UI {world.server.ui_url}")
        row("model", world.model())
        row("tools", "an issue feed in SQLite, a chat's webhook and a mail server on this machine")
        row("data, logs", f"{shown(world.folder)}, new at every start")

    # --- act 1 ---

    async def _kill_in_the_middle(self, worker: int) -> list[str]:
        screen, world = self.screen, self.world
        screen.heading(f"1. A worker dies in the middle of a post: {SEVERE}")
        run = await self._start(SEVERE)
        screen.event(f"{world.page(run)}")
        screen.event(f"worker {worker} has the run")
        await self._follow(run, SEVERE, until=lambda: bool(world.posts(SEVERE)))
        if not world.posts(SEVERE):
            raise StandfastError(f"The run ended without a post: {(await self._people.result(run.id))['response']}")
        screen.event(f"the chat has the post, and answers in {WEBHOOK_DELAY:g} s")
        await world.kill_worker()
        screen.event(f"{screen.red(f'kill -9 {worker}')}: the answer is not heard, nothing is saved")
        worker = (await world.start_worker()).pid
        screen.event(f"worker {worker} has the run")
        status = await self._end(run, SEVERE)
        screen.heading("   What the model called, and what it read")
        async with sqlite_store(world.store) as store:
            lost = self._show_results(await store.load_messages(SEVERE.lower()))
        screen.heading("   What it answered")
        screen.lines("", *(await self._people.result(run.id))["response"].splitlines(), width=0)
        return status + ([] if lost == ["post_message"] else ["the post was not cut off: the kill came too late"])

    def _show_results(self, messages: Sequence[Message]) -> list[str]:
        """Print what tools returned; return the names of those with an unknown outcome."""
        lost = []
        for message in messages:
            if message.role != "tool":
                continue
            name = str(message.tool_name)
            if "tool-durability-error" in message.content:
                lost.append(name)
                error = json.loads(message.content)
                self.screen.row(name, f"{error['kind']}: {error['error']}", width=20, mark="  ! ")
            else:
                self.screen.cut(name, message.content, width=20)
        return lost

    # --- act 2 ---

    async def _ask_a_person(self) -> list[str]:
        self.screen.heading(f"2. An agent asks a person: {UNCLEAR}")
        run = await self._start(UNCLEAR)
        self.screen.event(f"{self.world.page(run)}")
        return await self._end(run, UNCLEAR)

    async def _answer(self, run: Run, issue: str, item: dict[str, Any]) -> None:
        """Show a question and the ways to answer it, and see to it that one is taken."""
        screen = self.screen
        screen.event("the run waits for an answer, for days if need be")
        screen.say()
        screen.row("question", item["message"])
        screen.row("in Web", 'at the address above: Send an Update, answer, {"text": "severe"}')
        command = (f"--workflow-id {run.id} --name answer", '--input \'{"text": "severe"}\'')
        screen.command(
            "in a shell", self.world.temporal("workflow update execute"), *(f"    {part}" for part in command)
        )
        screen.row("", "(or `workflow signal`, which does not say whether the answer counts)")
        if self._has_terminal:
            answer = await read_answer(screen, lambda: self._is_answered(run, item))
        else:
            answer = ANSWERS[issue]
            screen.row("here", f'no terminal to ask at, so the demo answers for the team: "{answer}"')
        screen.say()
        if answer is None:
            screen.event("answered, in Web or in a shell")
            return
        try:
            await self._people.answer(run.id, answer, tool_call_id=item["name"] or None, by="demo")
            screen.event("answered, here" if self._has_terminal else "answered, by the demo itself")
        except InputError as error:  # somebody else was faster
            screen.event(str(error))

    async def _is_answered(self, run: Run, item: dict[str, Any]) -> bool:
        return item["name"] not in [waiting["name"] for waiting in await self._people.pending(run.id)]

    # --- runs ---

    async def _start(self, issue: str) -> Run:
        message = f"{issue} came in"
        return await start_agent(self.world.client, "triage", message=message, session_id=issue.lower())

    async def _follow(self, run: Run, issue: str, until: Callable[[], bool] = lambda: False) -> None:
        """Let what a run asks be answered, until it ends or the condition holds.

        Raises:
            StandfastError: it is paused, or its worker has ended.
        """
        answered, told = set[str](), set[str]()
        while not until():
            self.world.check_worker()
            # The server knows that a run waits. What it waits for is a query, which takes a worker that lives.
            state = await run.describe()
            if state.status is not WorkflowExecutionStatus.RUNNING:
                return
            for activity in state.raw_description.pending_activities:
                failed = activity.last_failure.message
                if failed and failed not in told:
                    told.add(failed)
                    self.screen.event(f"{activity.activity_type.name} is tried again: {failed}")
            if state.typed_search_attributes.get(WAITING):
                for item in await self._people.pending(run.id):
                    if item["kind"] == "pause":
                        raise StandfastError(f"The run is paused: {item['message']}")
                    if item["name"] not in answered:
                        answered.add(item["name"])
                        await self._answer(run, issue, item)
            await asyncio.sleep(0.05)

    async def _end(self, run: Run, issue: str) -> list[str]:
        """Wait for a run's end; return what is wrong with it."""
        await self._follow(run, issue)
        status = (await self._people.result(run.id))["status"]
        self.screen.event(f"the run is {status}")
        return [] if status == "complete" else [f"the run of {issue} is {status}"]

    # --- the end ---

    def _count(self) -> list[str]:
        """Print what arrived; return what is wrong with it."""
        screen, world, wrong = self.screen, self.world, []
        screen.heading("Counted where they arrived")
        screen.lines("", screen.dim("posts   mails"))
        for issue, mails_due in ((SEVERE, (1,)), (UNCLEAR, (0, 1))):
            posts, mails = world.posts(issue), world.mails(issue)
            screen.lines(issue, f"{len(posts):>5}{mails:>8}")
            # Two calls are the model's own doing; one call that posts twice would be standfast's.
            counted = f"{issue} was posted {len(posts)} times, in {len(set(posts))} calls"
            wrong += [counted] if len(posts) != 1 else []
            wrong += [f"{issue} was mailed {mails} times"] if mails not in mails_due else []
        return wrong

    async def _stay(self) -> None:
        """Keep everything running until Ctrl-C, so that it can be looked at."""
        screen, world = self.screen, self.world
        screen.heading("Everything keeps running until Ctrl-C")
        screen.row("Web UI", str(world.server.ui_url))
        start = (
            "--type triage --task-queue standfast --workflow-id triage/issue-137",
            '--input \'{"message": "ISSUE-137"}\'',
        )
        screen.command("another run", world.temporal("workflow start"), *(f"    {part}" for part in start))
        while (worker := world.worker) is not None:
            screen.row("its worker", f"process {worker.pid}; kill it, and another one goes on")
            await worker.wait()
            await world.start_worker()
