"""Collects all known facts about runs from the server, their workers and the store."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from temporalio.client import Client, WorkflowContinuedAsNewError, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.service import RPCError

from standfast.errors import StandfastError
from standfast.messages import JSONObject, Message, Usage, read_json
from standfast.notices.posts import load_untold
from standfast.pipeline_loop import Done, PipelineState, Planned, RunStep, Todo
from standfast.runtime.message_ids import Unheard
from standfast.runtime.pipeline_results import Kept
from standfast.runtime.streamed_answers import Heard, load_more
from standfast.stores.protocol import (
    AgentStore,
    DurableStore,
    has_ledger,
    has_partial_answers,
    session_key_of,
)
from standfast.temporal import StandfastClient
from standfast.temporal.client.board.waiting_items import read_items, read_result
from standfast.temporal.client.runs.descriptions import answer, looked_at
from standfast.temporal.client.runs.owners import owner_of
from standfast.temporal.wire import names
from standfast.temporal.wire.names import child_id
from standfast.temporal.wire.plans import read_plan
from standfast.web.identity.people import Person
from standfast.web.identity.visible_runs import owns

_MESSAGES = 400  # of a transcript, the last
_PATIENCE = timedelta(seconds=2)
_STEPS = 100  # running agents of a pipeline whose waiting items are queried

_AT_ONCE = 16  # runs that are looked up
_WAITS = 1.5  # seconds that a page waits for them; later results are available to the next page
_REMEMBERED = 5_000

# If a step has several states, the first of these counts.
STATES = ("failed", "waits", "runs", "not known", "done", "not run", "to come", "not looked up")
_KINDS = ("agent", "tool", "approval")
_MOST = 1_000  # steps that are looked up


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a pipeline.

    Args:
        plan: its stages.
        states: the states of its steps, by path, in their order; each is one of `STATES`.
        counts: the numbers of items of maps, by path.
        failed: the path of the stage that failed, if none of its steps did.
        is_cut: whether there are more steps than were looked up.
        input: the pipeline's input, as JSON data.
    """

    plan: tuple[Planned, ...]
    states: Mapping[str, str]
    counts: Mapping[str, int]
    failed: str | None = None
    is_cut: bool = False
    input: Any = None

    def is_agent(self, path: str) -> bool:
        """Whether a step is an agent's, which has a separate run."""
        return PipelineState(self.plan).planned(path).kind == "agent"


async def load_progress(store: DurableStore, journal_key: str, seen: Mapping[str, Any]) -> Progress | None:
    """Return the progress of a run: done steps come from the store, running and waiting ones from the run itself.

    Args:
        seen: the run; see `looked_at`.

    Returns None for a run that is not a pipeline's, or belongs to another store.
    """
    opened = await store.load_reply(f"{journal_key}/open", 0)
    facts = None if opened is None else read_json(opened)
    if not isinstance(facts, dict) or "plan" not in facts:
        return None
    plan = read_plan(facts["plan"])
    kept = Kept(journal_key, store)
    given = kept["?input"] if await kept.find("?input") else None
    done, next_ones, is_cut = await _load_done(kept, plan)
    state, result = seen.get("state") or {}, seen.get("result")
    states = dict.fromkeys((key for key in done if "?" not in key), "done")
    if "closed" not in seen:
        states |= dict.fromkeys(state.get("running", ()), "runs")
        waiting = [item["name"] for item in state.get("waiting", ()) if item["name"] in states]
        states |= dict.fromkeys([*waiting, *seen.get("steps", ())], "waits")
    if not state and not isinstance(result, dict):  # it is unknown which steps had begun
        states |= dict.fromkeys(next_ones, "not known")
    failed = result.get("failed_step") if isinstance(result, dict) else seen.get("failed_step")
    if failed is not None and PipelineState(plan).planned(failed).kind in _KINDS:
        states[failed], failed = "failed", None
    counts = {key.removesuffix("?over"): came.value for key, came in done.items() if key.endswith("?over")}
    return Progress(plan, states, counts, failed, is_cut, given)


async def _load_done(kept: Kept, plan: tuple[Planned, ...]) -> tuple[Mapping[str, Done], list[str], bool]:
    """Return the finished steps, by key, those that may have begun, and whether there are more."""
    state, tried = PipelineState(plan), set[str]()
    while isinstance(todo := state.next_actions(), Todo):
        new = [action for action in todo.actions if action.key not in tried]
        if not new:
            break
        if len(tried) >= _MOST:
            return state.done, [], True
        for action in new:
            tried.add(action.key)
            if await kept.find(action.key):
                state = state.ended(action.key, action.done(kept[action.key]))
    begun = [action.path for action in todo.actions if isinstance(action, RunStep)] if isinstance(todo, Todo) else []
    return state.done, begun, False


@dataclass(frozen=True, slots=True)
class Facts:
    """The known facts of a run.

    Args:
        by: the user who started it; None if it has none.
        usage: its usage; None if it is still open, or could not report it.
    """

    by: str | None
    usage: Usage | None


class RunFacts:
    """The facts of runs, by run id and whether the run has ended."""

    def __init__(self, client: Client) -> None:
        self._client, self._few = client, asyncio.Semaphore(_AT_ONCE)
        self._known: dict[tuple[str, bool], Facts] = {}
        self._asking: dict[tuple[str, bool], asyncio.Task[None]] = {}

    async def of(self, runs: Sequence[Mapping[str, Any]], *, wait: float = _WAITS) -> dict[str, Facts]:
        """Return the facts of those runs that are known in time, by run id."""
        keys = [(run["run_id"], "closed" in run) for run in runs]
        for key, run in zip(keys, runs, strict=True):
            if key not in self._known and key not in self._asking:
                self._asking[key] = asyncio.create_task(self._ask(key, run))
        if asked := [self._asking[key] for key in keys if key in self._asking]:
            await asyncio.wait(asked, timeout=wait)
        return {key[0]: self._known[key] for key in keys if key in self._known}

    async def _ask(self, key: tuple[str, bool], run: Mapping[str, Any]) -> None:
        try:
            async with self._few:
                with suppress(RPCError, StandfastError):  # requested again for the next page
                    by, _ = await owner_of(self._client, run["workflow_id"], run["run_id"])
                    self._known[key] = Facts(by, await self._usage(run) if key[1] else None)
        finally:
            del self._asking[key]
            while len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]

    async def _usage(self, run: Mapping[str, Any]) -> Usage | None:
        handle = self._client.get_workflow_handle(run["workflow_id"], run_id=run["run_id"])
        try:
            usage = read_result(await handle.result(follow_runs=False)).get("usage")
        except (WorkflowContinuedAsNewError, WorkflowFailureError):
            return None
        return None if usage is None else Usage(**usage)


class Runs:
    """Reads runs; without a store, all data that only a store has is missing."""

    def __init__(self, people: StandfastClient, store: AgentStore | None) -> None:
        self._people, self._store = people, store

    async def seen(self, run: str) -> JSONObject:
        """Return all known facts about a run; for a pipeline's run also the waiting items of its steps' agents."""
        seen = await looked_at(self._people.client, run)
        paths = [path for path in seen.get("state", {}).get("running", ()) if isinstance(path, str)][:_STEPS]
        found = await asyncio.gather(*(self._pending(child_id(run, path)) for path in paths))
        if steps := {path: items for path, items in zip(paths, found, strict=True) if items}:
            seen["steps"] = steps
        return seen

    async def _pending(self, run: str) -> list[JSONObject]:
        with suppress(StandfastError, RPCError, WorkflowQueryFailedError):  # a tool's step has no separate run
            found = read_items(await answer(self._people.client, self._people.run(run), names.PENDING, _PATIENCE))
            return [{**item, "workflow_id": run} for item in found]
        return []

    async def is_session_of(self, person: Person, seen: Mapping[str, Any]) -> bool:
        """Whether a person may read a run's session; anyone can begin a run in it that no worker has refused yet."""
        if self._store is None or "session_id" not in seen or not person.is_bounded:
            return True
        session = await self._store.load_session(session_key_of(seen.get("tenant_id"), seen["session_id"]))
        return session is None or owns(person, session.user_id, session.tenant_id)

    async def messages(self, seen: JSONObject, *, most: int = _MESSAGES) -> list[Message]:
        """Return the last messages of a run's session."""
        if self._store is None or "session_id" not in seen:
            return []
        key = session_key_of(seen.get("tenant_id"), seen["session_id"])
        session = await self._store.load_session(key)
        after = 0 if session is None else max(0, session.last_seq - most)
        return await self._store.load_messages(key, after=after)

    async def unheard(self, seen: JSONObject, messages: Iterable[Message]) -> list[str]:
        """Return the unread messages: the run itself reports them, and after its end its session has them."""
        if "closed" not in seen or "session_id" not in seen or not has_ledger(self._store):
            return list(seen.get("state", {}).get("unheard", ()))
        session = await self._store.load_session(session_key_of(seen.get("tenant_id"), seen["session_id"]))
        kept = [] if session is None else await Unheard(session, self._store).load(messages)
        return [one.message.content for one in kept]

    async def partial(self, journal_key: str) -> Heard:
        """Return the stored words of a run's model; see `is_said_now`."""
        if not has_partial_answers(self._store):
            return Heard()
        pieces = await load_more(self._store, journal_key, Heard())
        return pieces[-1][1] if pieces else Heard()

    async def untold(self, journal_key: str, seen: Mapping[str, Any]) -> list[str]:
        """Return of which items of an open run people may not have been notified."""
        return await load_untold(self._store, journal_key) if "closed" not in seen and has_ledger(self._store) else []

    async def progress(self, journal_key: str, seen: JSONObject) -> Progress | None:
        store = self._store
        return await load_progress(cast(DurableStore, store), journal_key, seen) if has_ledger(store) else None


def is_said_now(said: Heard, seen: Mapping[str, Any]) -> bool:
    """Whether a run's model is producing words now; the words of a dead worker stay in the store for a day.

    Args:
        seen: the run, as `Runs.seen` returns it; without a worker no model runs.
    """
    state = seen.get("state", {})
    later = [item["attempt"] for item in seen.get("retries", ()) if item["activity"] == names.CALL_MODEL]
    turn, now = said.latest
    is_calling = state.get("status") == "running" and not state.get("running") and turn > (state.get("turn") or 0)
    return is_calling and not any(not now.endswith(f".{attempt:03}") for attempt in later)
