"""A run key is the caller's: results name it, and a restart accepts it, with either driver."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic_core import to_json
from support.pipeline_drivers import InProcess, OnTemporal, PipelineDriver
from support.temporal_runs import Temporal, events, failure, pending, result, status
from temporalio.api.enums.v1 import EventType
from temporalio.common import WorkflowIDReusePolicy

from integration.pipelines.test_reset_pipelines import reset
from standfast import Approval, InputError, Pipeline, SessionAccessDeniedError, Step, pipeline, run_pipeline, tool
from standfast.runtime.run_keys import find_last, list_run
from standfast.stores import SQLiteStore
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel

DRIVERS = [pytest.param(InProcess, id="in process"), pytest.param(OnTemporal, id="on Temporal")]
ADA: Any = {"user_id": "ada", "tenant_id": "acme"}
NO_MODEL = ScriptedModel([])


def named(temporal: Temporal, name: str) -> str:
    return f"{name}-{temporal.name}"


def counting(temporal: Temporal, name: str = "line", *, gate: bool = False, **options: Any) -> Pipeline:
    """Return a pipeline of the test's own whose steps each take the next number, so that it shows what ran again."""
    numbers = iter(range(1, 100))

    @tool
    async def count() -> int:
        """Count."""
        return next(numbers)

    made: Any = pipeline(named(temporal, name), **options).step(Step("a", run=count)).step(Step("b", run=count))
    made = made.step("ok", approval=Approval(message="Go on?")) if gate else made
    return made.step(Step("c", run=count)).build()


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("restarts", DRIVERS)
@pytest.mark.parametrize("began", DRIVERS)
async def test_a_run_is_restarted_by_the_key_that_it_was_given_whichever_driver_ran_it(
    temporal: Temporal, began: Any, restarts: Any
) -> None:
    flow, first, second = counting(temporal), began(temporal), restarts(temporal)
    went = await first.run(flow, NO_MODEL, run_key="k")
    assert (went.run_key, went.outputs) == ("k", {"a": 1, "b": 2, "c": 3})
    again = await second.run(flow, NO_MODEL, run_key="k2", restart_of="k", restart_from="b")
    assert (again.run_key, again.outputs) == ("k2", {"a": 1, "b": 4, "c": 5})
    # What was restarted is restarted like any other; the first run is still as it was.
    third = await first.run(flow, NO_MODEL, run_key="k3", restart_of=again.run_key, restart_from="c")
    assert third.outputs == {"a": 1, "b": 4, "c": 6}
    assert (await second.run(flow, NO_MODEL, restart_of="k", restart_from="c")).outputs == {"a": 1, "b": 2, "c": 7}


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("restarts", DRIVERS)
@pytest.mark.parametrize("last", DRIVERS)
async def test_of_several_runs_of_one_key_the_last_is_restarted(temporal: Temporal, last: Any, restarts: Any) -> None:
    """Such as one in process and one on Temporal, whichever came first."""
    flow = counting(temporal)
    first = InProcess if last is OnTemporal else OnTemporal
    assert (await first(temporal).run(flow, NO_MODEL, run_key="k")).outputs["a"] == 1
    assert (await last(temporal).run(flow, NO_MODEL, run_key="k")).outputs["a"] == 4
    again = await restarts(temporal).run(flow, NO_MODEL, restart_of="k", restart_from="c")
    assert again.outputs == {"a": 4, "b": 5, "c": 7}


async def test_a_key_that_may_have_several_runs_is_restarted_on_its_own_from_the_last_of_them(
    temporal: Temporal,
) -> None:
    flow, driver = counting(temporal), OnTemporal(temporal)
    keyed: Any = {"run_key": temporal.session(), "id_reuse_policy": WorkflowIDReusePolicy.ALLOW_DUPLICATE}
    await driver.run(flow, NO_MODEL, **keyed)
    for number in (4, 6):
        went = await driver.run(flow, NO_MODEL, **keyed, restart_of=keyed["run_key"], restart_from="b")
        assert went.outputs == {"a": 1, "b": number, "c": number + 1}
    went = await driver.run(flow, NO_MODEL, **keyed, restart_of=keyed["run_key"], restart_from="c")
    assert went.outputs == {"a": 1, "b": 6, "c": 8}


async def test_a_key_without_a_run_is_named_with_those_that_have_one(pipelines: PipelineDriver) -> None:
    flow, run = counting(pipelines.temporal), partial(pipelines.run, counting(pipelines.temporal), NO_MODEL)
    with pytest.raises(InputError, match=r"line-\w+' has no earlier run with the run_key 'k1' .* there is none at all"):
        await run(restart_of="k1", restart_from="b")
    for key in ("k1", "k2"):
        await pipelines.run(flow, NO_MODEL, run_key=key, **ADA)
    with pytest.raises(InputError, match=r"run_key 'nope' .* 'ada', tenant_id 'acme'; the last that have one: k2, k1"):
        await run(restart_of="nope", restart_from="b", **ADA)
    assert (await run()).outputs["a"] == 1  # nothing had run


async def test_of_many_keys_the_last_are_named(pipelines: PipelineDriver) -> None:
    for number in range(13):
        await pipelines.run(counting(pipelines.temporal), NO_MODEL, run_key=f"k{number}")
    with pytest.raises(InputError, match=r"have one: k12, k11, k10, k9, k8, k7, k6, k5, k4, k3$"):
        await pipelines.run(counting(pipelines.temporal), NO_MODEL, restart_of="k", restart_from="b")


@pytest.mark.parametrize("who", [{"user_id": "bob", "tenant_id": "acme"}, {"tenant_id": "acme"}, {}], ids=str)
async def test_owners_with_one_key_do_not_meet(pipelines: PipelineDriver, who: dict[str, Any]) -> None:
    """Who asks for the run of someone else reads what they read if there is none."""
    flow = counting(pipelines.temporal)
    await pipelines.run(flow, NO_MODEL, run_key="k", **ADA)
    read = []
    for key in ("k", "nope"):
        with pytest.raises(InputError) as error:
            await pipelines.run(flow, NO_MODEL, restart_of=key, restart_from="b", **who)
        read.append(str(error.value).replace(repr(key), "KEY"))
    assert (read[0] == read[1], "none at all" in read[0]) == (True, True)


async def test_tenants_with_one_key_each_restart_their_own(pipelines: PipelineDriver) -> None:
    flow, eve = counting(pipelines.temporal), {"user_id": "ada", "tenant_id": "evil"}
    for who, number in ((ADA, 1), (eve, 4)):
        assert (await pipelines.run(flow, NO_MODEL, run_key="k", **who)).outputs["a"] == number
    for who, number in ((ADA, 1), (eve, 4)):
        went = await pipelines.run(flow, NO_MODEL, restart_of="k", restart_from="c", **who)
        assert went.outputs["a"] == number


async def test_a_run_in_flight_is_restarted_from_where_it_is_and_continues(pipelines: PipelineDriver) -> None:
    flow = counting(pipelines.temporal, gate=True)
    assert (await pipelines.run(flow, NO_MODEL, run_key="k")).pending_step == "ok"
    approve = {"gate": "ok", "decision": "approve", "by": "ada"}
    again = await pipelines.run(flow, NO_MODEL, decisions=[approve], restart_of="k", restart_from="b")
    assert {name: again.outputs[name] for name in "abc"} == {"a": 1, "b": 3, "c": 4}
    with pytest.raises(InputError, match="the earlier run has no result of step 'ok'"):
        await pipelines.run(flow, NO_MODEL, restart_of="k", restart_from="c")


@pytest.mark.parametrize("restarts", DRIVERS)
@pytest.mark.parametrize("began", DRIVERS)
async def test_gates_before_the_step_are_asked_again_whichever_driver_ran_it(
    temporal: Temporal, began: Any, restarts: Any
) -> None:
    flow, approve = counting(temporal, gate=True), {"gate": "ok", "decision": "approve", "by": "ada"}
    await began(temporal).run(flow, NO_MODEL, decisions=[approve], run_key="k")
    given: Any = {"run_key": "k2", "restart_of": "k", "restart_from": "c"}
    went = await restarts(temporal).run(flow, NO_MODEL, **given)
    assert (went.status, went.pending_step, went.outputs) == ("pending", "ok", {"a": 1, "b": 2})


@pytest.mark.slow(but=2)
@pytest.mark.parametrize("key", ["a@b:1=~+.-", "steps", "runs", "0", "_" * 200])
async def test_any_key_that_a_run_may_have_restarts_it(pipelines: PipelineDriver, key: str) -> None:
    flow = counting(pipelines.temporal)
    assert (await pipelines.run(flow, NO_MODEL, run_key=key)).run_key == key
    assert (await pipelines.run(flow, NO_MODEL, restart_of=key, restart_from="c")).outputs["c"] == 4


@pytest.mark.parametrize("key", ["", "a b", "@acme/k", "k/steps", "k\n", "ключ", "_" * 201, 5])
async def test_what_no_run_key_can_be_is_refused_before_anything_is_started(temporal: Temporal, key: Any) -> None:
    asked: Any = {"restart_of": key, "restart_from": "b"}
    with pytest.raises(InputError, match="restart_of must be 1 to 200 characters"):
        await start_pipeline(temporal.client, named(temporal, "line"), **asked)
    with pytest.raises(InputError, match="restart_of must be 1 to 200 characters"):
        await run_pipeline(counting(temporal), store=temporal.store, **asked)


async def test_a_pipeline_finds_the_runs_that_it_had_under_its_former_name(pipelines: PipelineDriver) -> None:
    await pipelines.run(counting(pipelines.temporal), NO_MODEL, run_key="k")
    renamed = counting(pipelines.temporal, "flow", formerly=[named(pipelines.temporal, "line")])
    again = await pipelines.run(renamed, NO_MODEL, restart_of="k", restart_from="b")
    assert again.outputs == {"a": 1, "b": 1, "c": 2}
    with pytest.raises(InputError, match="no earlier run"):
        await pipelines.run(counting(pipelines.temporal, "other"), NO_MODEL, restart_of="k", restart_from="b")


async def test_the_input_is_that_of_the_earlier_run_unless_another_is_given(pipelines: PipelineDriver) -> None:
    @tool
    async def say(text: str) -> str:
        """Say."""
        return text

    flow = (
        pipeline(named(pipelines.temporal, "say"), input=str)
        .step(Step("say", run=say, input=lambda ctx: {"text": ctx.input}))
        .build()
    )
    await pipelines.run(flow, NO_MODEL, "one", run_key="k")
    for given, said in ((None, "one"), ("two", "two")):
        went = await pipelines.run(flow, NO_MODEL, given, restart_of="k", restart_from="say")
        assert went.outputs == {"say": said}


# --- in process ---


async def test_in_process_a_restart_continues_as_the_restart_that_it_is(temporal: Temporal) -> None:
    flow, options = counting(temporal, gate=True), {"store": temporal.store}
    approve = {"gate": "ok", "decision": "approve", "by": "ada"}
    await run_pipeline(flow, run_key="k", **options)
    await run_pipeline(flow, run_key="k", decisions=[approve], **options)
    again: Any = {"run_key": "k2", "restart_of": "k", "restart_from": "b", **options}
    assert (await run_pipeline(flow, **again)).status == "pending"
    went = await run_pipeline(flow, **again, decisions=[approve])  # with the same words, as after a crash
    assert [went.outputs[name] for name in "abc"] == [1, 4, 5]
    assert (await run_pipeline(flow, run_key="k2", **options)).outputs == went.outputs
    with pytest.raises(
        InputError, match=r"line-\w+/k2 is a restart of 'k' from 'b'; give another restart another run_key"
    ):
        await run_pipeline(flow, **{**again, "restart_from": "c"})
    with pytest.raises(InputError, match=r"line-\w+/k has begun already, and not as a restart of 'k'"):
        await run_pipeline(flow, **{**again, "run_key": "k"})


async def test_in_process_what_a_restart_took_is_nobody_elses_even_if_it_did_not_begin(temporal: Temporal) -> None:
    flow, options = counting(temporal, input=int), {"store": temporal.store}
    await run_pipeline(flow, input=1, run_key="k", user_id="ada", **options)
    again: Any = {"run_key": "k2", "restart_of": "k", "restart_from": "b", **options}
    with pytest.raises(InputError, match="input validation failed"):
        await run_pipeline(flow, input="one", user_id="ada", **again)
    with pytest.raises(SessionAccessDeniedError):
        await run_pipeline(flow, user_id="bob", **again)
    assert (await run_pipeline(flow, user_id="ada", **again)).outputs == {"a": 1, "b": 4, "c": 5}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"restart_of": "k"}, "restart_of= and restart_from= go together"),
        ({"restart_from": "b"}, "restart_of= and restart_from= go together"),
        ({"restart_of": "k", "restart_from": "b", "previous_results": {}}, "leave out resume_after="),
        ({"restart_of": "k", "restart_from": "b", "store": None}, "restart_of= needs a store"),
    ],
)
async def test_in_process_a_restart_that_cannot_be_is_refused(
    temporal: Temporal, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        await run_pipeline(counting(temporal), **{"store": temporal.store, **given})


# --- on Temporal ---


async def test_a_run_that_was_reset_is_restarted_by_its_key(temporal: Temporal) -> None:
    flow = counting(temporal)
    async with temporal.worker(pipelines=[flow]):
        run = await start_pipeline(temporal.client, flow, run_key=temporal.session(), task_queue=temporal.name)
        before = await result(run)
        done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        again = await reset(
            temporal, run, [event.event_id for event in await events(run) if event.event_type == done][2]
        )
        assert await result(again) == before
        restarted = await start_pipeline(
            temporal.client, flow, restart_of=before["run_key"], restart_from="c", task_queue=temporal.name
        )
        assert (await result(restarted))["outputs"] == {"a": 1, "b": 2, "c": 4}


@pytest.mark.slow(but=1)
@pytest.mark.parametrize(
    ("workflow_id", "given", "key"),
    [
        ("{line}/k", {}, "k"),
        ("{line}/@acme/k", ADA, "k"),
        ("{line}/k", ADA, "k"),
        ("nightly-{name}", {}, "nightly-{name}"),
        ("orders/{name}", {"run_key": "order-42"}, "order-42"),
        ("orders/{name}", {}, None),
        ("{line}/@acme/k", {"user_id": "ada", "tenant_id": "evil"}, None),
    ],
)
async def test_a_run_that_the_temporal_command_has_started_has_the_key_that_its_workflow_id_names(
    temporal: Temporal, workflow_id: str, given: dict[str, Any], key: str | None
) -> None:
    flow, own = counting(temporal, gate=True), {"line": named(temporal, "line"), "name": temporal.name}
    key = key and key.format(**own)
    async with temporal.worker(pipelines=[flow]):
        run = await temporal.start_raw(flow.name, given, id=workflow_id.format(**own))
        await pending(run)
        assert (await status(run))["run_key"] == key
        await temporal.people.decide(run.id, "ok", "approve", by="ada")
        ended = await result(run)
        assert (ended["run_key"], ended["journal_key"]) == (key, run.result_run_id)
        of = {"restart": {"run_key": key or "k", "from": "b"}}
        again = await temporal.start_raw(flow.name, {**given, "run_key": "again", **of}, id=temporal.session())
        if key is None:
            assert "no earlier run with the run_key 'k'" in (await failure(again)).message
        else:
            await pending(again)
            assert (await status(again))["run_key"] == "again"


async def test_a_run_is_listed_with_one_count_of_the_runs_of_its_key(tmp_path: Path) -> None:
    class Reading(SQLiteStore):
        read: ClassVar[list[tuple[str, int]]] = []

        async def load_reply(self, journal_key: str, turn: int) -> str | None:
            self.read.append((journal_key, turn))
            return await super().load_reply(journal_key, turn)

    who = {"user_id": None, "tenant_id": None}
    async with Reading(tmp_path / "runs.db") as store:
        for number in range(20):
            store.read.clear()
            await list_run(store, "flow", "k", f"run {number}", who)
            repeated = [place for place, times in Counter(store.read).items() if times > 1]
            assert len(repeated) <= 1  # the last run of the key, which may be this one

        place = f"flow/runs/{to_json([None, None]).decode()}/k"
        assert [await store.load_reply(place, number) for number in (0, 19, 20)] == ["run 0", "run 19", None]


async def test_a_run_that_began_and_died_before_it_was_open_is_listed_once(temporal: Temporal) -> None:
    """Its activity is retried; until then the run cannot be restarted."""
    from standfast.runtime.pipeline_results import Kept

    flow, who = counting(temporal), {"user_id": None, "tenant_id": None}
    for _ in range(2):
        await list_run(temporal.store, flow.name, "k", "one", who)
    with pytest.raises(InputError, match="no earlier run"):
        await find_last(temporal.store, flow, "k", who, before="")
    await Kept("one", temporal.store).begin(None, who)
    await list_run(temporal.store, flow.name, "k", "two", who)
    assert (await find_last(temporal.store, flow, "k", who, before="")).name == "one"
