"""Finds the progress of a pipeline: the store has the finished steps, the run itself the running and waiting ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from standfast.messages import read_json
from standfast.pipeline_loop import Done, PipelineState, Planned, RunStep, Todo
from standfast.runtime.pipeline_results import Kept
from standfast.stores.protocol import DurableStore
from standfast.temporal.wire.plans import read_plan

# If a step has several states, the first of these counts.
STATES = ("failed", "waits", "runs", "not known", "done", "not run", "to come", "not looked up")
_STEPS = ("agent", "tool", "approval")
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
    if failed is not None and PipelineState(plan).planned(failed).kind in _STEPS:
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
