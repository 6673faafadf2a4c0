"""The command `standfast` with a real server: start, watch, decide, answer, repair, export."""

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
from support.commands import ASKS, asking, data, done, refused, standfast
from support.doubles import echo
from support.questions import ask_user
from support.temporal_runs import Temporal, ask_models_once, pending, result, until
from support.transcripts import asks_for, call

from standfast import Agent, Approval, Loop, ModelError, RetryPolicy, pipeline, tool
from standfast.temporal import start_pipeline
from standfast.testing import ScriptedModel


@tool(approval=Approval(message="Charge the customer?", approvers=["ada"]))
async def charge(amount: int) -> str:
    """Charge."""
    return f"charged {amount}"


CHARGES = asks_for(call("charge", "c1", amount=5), tokens=10)


# --- starting and looking ---


async def test_a_start_that_no_worker_can_take_says_so(temporal: Temporal) -> None:
    async with temporal.worker(Agent("clerk"), llm=asking()):
        queue = ("--task-queue", temporal.name, "--session", temporal.session())
        said = await standfast(temporal, "start", "clark", "-m", "hello", *queue)
    assert said.exit_code == 0
    assert "No worker has 'clark', so the run waits for a worker" in said.stderr


@pytest.mark.parametrize("command", [("start", "-m", "hi"), ("chat",)])
async def test_what_cannot_be_the_name_of_an_agent_starts_no_run(temporal: Temporal, command: tuple[str, ...]) -> None:
    """It waited for a worker for ever."""
    first, *more = command
    for name in ("app.py", "Clerk", "a/b", ""):
        said = await refused(temporal, first, name, *more, code=2)
        assert f"{name!r} cannot be the name of an agent or a pipeline" in said
        assert ("`standfast worker app.py`" in said) == (name == "app.py")


async def test_a_mistyped_status_is_refused_and_the_right_one_proposed(temporal: Temporal) -> None:
    said = await refused(temporal, "ls", "--status", "complet", code=2)
    assert "No run has the status 'complet'; the statuses are running, waiting," in said
    assert said.endswith("Did you mean 'complete'?\n")


async def test_an_agent_is_started_and_its_result_shown(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[echo])
    async with temporal.worker(agent, llm=asking(asks_for(call("echo", "c1", text="x"), tokens=1_200))):
        queue = ("--task-queue", temporal.name, "--session", temporal.session())
        shown = await done(temporal, "start", "clerk", "-m", "hello", "--wait", "--user", "ada", *queue)
    assert "Status   complete" in shown
    assert "Usage    1,200 tokens in, 0 out" in shown
    assert shown.endswith("\ndone\n")


async def test_a_run_that_does_not_complete_has_its_own_exit_code(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[echo], loop=Loop(max_iterations=1))
    async with temporal.worker(agent, llm=asking(asks_for(call("echo", "c1", text="x")))):
        started = await data(temporal, "start", "clerk", "-m", "hello", "--task-queue", temporal.name)
        ended = await standfast(temporal, "watch", started["workflow_id"], "-o", "jsonl")
    assert ended.exit_code == 3
    assert json.loads(ended.stdout.splitlines()[-1])["result"]["status"] == "max-iterations"


async def test_a_start_that_finds_its_run_says_so(temporal: Temporal) -> None:
    line = pipeline("line").step("ok", approval=Approval(message="Publish?")).build()
    agent = Agent("clerk", tools=[ask_user])
    at = ("--task-queue", temporal.name)
    message = ("clerk", "-m", "hi", "-s", temporal.session(), "--message-id", "m1")
    keyed = ("line", "--input", "7", "--run-key", temporal.session())
    async with temporal.worker(agent, pipelines=[line], llm=asking(ASKS)):
        for words in (message, keyed):
            run = f"{words[0]}/{temporal.session()}"
            assert await done(temporal, "start", *words, *at) == f"Started {run}\n"
            assert await done(temporal, "start", *words, *at) == f"Started before: {run}\n"
            assert (await data(temporal, "start", *words, *at))["is_new"] is False
            await done(temporal, "cancel", run)


async def test_a_pipeline_is_started_with_json(temporal: Temporal, tmp_path: Path) -> None:
    clerk = Agent("clerk")
    line = pipeline("line").step("say", agent=clerk, input=lambda ctx: f"hear {ctx.input['n']}").build()
    (tmp_path / "input.json").write_text('{"n": 1}')
    async with temporal.worker(clerk, pipelines=[line], llm=ScriptedModel(["a", "b"])):
        for given in (f"@{tmp_path / 'input.json'}", '{"n": 2}'):
            seen = await data(temporal, "start", "line", "-i", given, "-w", "--task-queue", temporal.name)
            assert seen["result"]["status"] == "complete"


async def test_a_pipeline_is_restarted_with_the_input_that_it_had(temporal: Temporal) -> None:
    clerk = Agent("clerk")
    line = (
        pipeline("line")
        .step("say", agent=clerk, input=lambda ctx: f"hear {ctx.input['n']}")
        .step("again", agent=clerk, input=lambda ctx: f"hear {ctx.input['n']} again")
        .build()
    )
    model = ScriptedModel(lambda messages, tools: messages[-1].content)
    first, queue = temporal.session(), ("--task-queue", temporal.name, "-w")
    async with temporal.worker(clerk, pipelines=[line], llm=model):
        await data(temporal, "start", "line", "-i", '{"n": 2}', "--run-key", first, *queue)
        again = ("--restart-of", first, "--restart-from", "again")
        seen = await data(temporal, "start", "line", *again, *queue)
    assert seen["result"]["outputs"]["again"]["response"] == "hear 2 again"


async def test_a_run_that_fails_at_once_is_told_at_its_start(temporal: Temporal) -> None:
    clerk = Agent("clerk")
    line = pipeline("line", input=int).step("say", agent=clerk).build()
    queue = ("--task-queue", temporal.name)
    async with temporal.worker(clerk, pipelines=[line], llm=ScriptedModel([])):
        says = await refused(temporal, "start", "line", "-i", '"one"', *queue, code=3)
        assert re.fullmatch(r"Error: Run line/\w+ failed at once: InputError: .* validation failed.*\n", says)
        ended = await standfast(temporal, "start", "line", "-m", "hello", "-o", "json", *queue)
        told = json.loads(ended.stdout)
        assert (ended.exit_code, told["status"], told["error"] in ended.stderr) == (3, "failed", True)
        assert told["run_id"] == (await data(temporal, "show", told["workflow_id"]))["run_id"]


async def test_a_start_that_no_worker_takes_is_a_start_and_says_so(temporal: Temporal) -> None:
    started = await standfast(temporal, "start", "clerk", "-m", "hello", "--task-queue", temporal.name, "-o", "json")
    assert (started.exit_code, json.loads(started.stdout)["workflow_id"][:6]) == (0, "clerk/")
    assert started.stderr.startswith("No worker has begun it yet")


WRONG_STARTS: list[tuple[list[str], str, int]] = [
    ([], "Give --message for an agent, or --input for a pipeline", 2),
    (["-m", "x", "-i", "1"], "Give --message for an agent, or --input for a pipeline", 2),
    (["-m", "x", "--run-key", "k"], "--run-key is of a pipeline. An agent has a session: use --session.", 2),
    (["-i", "1", "--session", "s"], "--session is of an agent. A pipeline has a run key: use --run-key.", 2),
    (["-i", "{oops"], "--input is not JSON: Expecting property name", 2),
    (["-m", "x", "--session", "a/b"], "--session must be 1 to 200 characters", 2),
    (["--restart-of", "k"], "--restart-of and --restart-from go together", 2),
    (["-m", "x", "--restart-of", "k"], "Give --message for an agent, or --input for a pipeline", 2),
    (["-i", "1", "--restart-of", "k"], "--restart-of and --restart-from go together", 2),
    (["-m", "x", "--image", "cat.txt"], "--image cat.txt: neither a URL nor a file", 2),
    (["-i", "@nowhere.json"], "--input: there is no file 'nowhere.json'", 2),
    (["-m", "x", "--image", "nowhere.png"], "--image nowhere.png: there is no such file", 2),
]


@pytest.mark.parametrize(("words", "says", "code"), WRONG_STARTS, ids=[says for _, says, _ in WRONG_STARTS])
async def test_a_start_that_cannot_be_is_refused_with_the_reason(
    temporal: Temporal, words: list[str], says: str, code: int
) -> None:
    assert says in await refused(temporal, "start", "clerk", *words, code=code)


async def test_an_error_names_options_where_the_library_names_parameters(temporal: Temporal, tmp_path: Path) -> None:
    agent = Agent("clerk", tools=[charge])
    (tmp_path / "bare.py").write_text("from standfast import Agent\nclerk = Agent('clerk')")
    line = pipeline("line").step("say", agent=agent).build()
    async with temporal.worker(agent, pipelines=[line], llm=asking(CHARGES)):
        session = ("--session", temporal.session(), "--task-queue", temporal.name)
        run = (await data(temporal, "start", "clerk", "-m", "go", *session))["workflow_id"]
        again = await refused(temporal, "start", "clerk", "-m", "more", *session)
        assert "wait for its result, or send it the message with --say" in again
        await pending(temporal.people.run(run))
        assert "`standfast approve` decides" in await refused(temporal, "answer", run, "yes")
        key = ("--run-key", temporal.session(), "--task-queue", temporal.name)
        await done(temporal, "start", "line", "-i", "1", *key)
        again = await refused(temporal, "start", "line", "-i", "2", *key)
        assert "give another --run-key, and --restart-of to use" in again
    assert "or define llm in the application" in await refused(temporal, "worker", str(tmp_path / "bare.py"))


async def test_runs_are_listed_and_found(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    async with temporal.worker(agent, llm=ScriptedModel([ASKS, "fine"])):
        waits = await temporal.start(agent, session="waits")
        await pending(waits)
        await result(await temporal.start(agent, session="ends"))

        async def both() -> Any:
            runs = {run["workflow_id"]: run for run in await data(temporal, "ls", "-t", "clerk", "--limit", "1000")}
            ended = runs.get(f"clerk/{temporal.session('ends')}", {})
            return runs if waits.id in runs and ended.get("status") == "complete" else None

        runs = await until(both)
        assert runs[waits.id]["waiting"] == ["question"]
        found = await data(temporal, "ls", "--waiting", "--session", temporal.session("waits"), "--status", "waiting")
        assert [run["workflow_id"] for run in found] == [waits.id]
        table = await done(temporal, "ls", "--session", temporal.session("waits"))
        assert table.splitlines()[0].split()[:3] == ["RUN", "TYPE", "STATUS"]
        assert waits.id in table
        quoted = await data(temporal, "ls", "--session", "it's' OR 1=1")
        assert quoted == []
        assert (await standfast(temporal, "ls", "-t", "no-such-agent")).stderr == "No runs match.\n"


@pytest.mark.parametrize("columns", ["200", "60", "40", "20"])
async def test_what_is_copied_from_a_table_is_whole_however_narrow_the_terminal(
    temporal: Temporal, columns: str
) -> None:
    agent, call_id = Agent("clerk", tools=[ask_user]), "toolu_0123456789"
    asks = asks_for(call("ask_user", call_id, question="Which of the accounts that are to be seen here?"))
    async with temporal.worker(agent, llm=ScriptedModel([asks, asks])):
        for session in ("another", "s"):
            run = await temporal.start(agent, session=session)
            await pending(run)

        async def line_of(*words: str) -> str:
            table = await done(temporal, *words, "--color", "always", COLUMNS=columns)
            lines = re.sub(r"\x1b\[[\d;]*m", "", table).splitlines()
            return next((line for line in lines if run.id in line), "")

        assert await until(lambda: line_of("ls", "--session", temporal.session(), "--waiting"))
        waits = await line_of("pending")
        assert call_id in waits
        assert ("Which" in waits) == (columns == "200")  # the part that is not an id is shortened


async def test_a_run_that_failed_at_its_input_is_found(temporal: Temporal) -> None:
    agent = Agent("clerk")
    async with temporal.worker(agent, llm=ScriptedModel([])):
        run = await temporal.start_raw("clerk", {"nonsense": 1})

        async def listed() -> bool:
            runs = await data(temporal, "ls", "--status", "failed", "--limit", "1000")
            return run.id in {one["workflow_id"] for one in runs}

        await until(listed)
        assert "unknown key 'nonsense'" in await done(temporal, "show", run.id)


async def test_how_to_decide_is_safe_to_paste(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    async with temporal.worker(agent, llm=asking(ASKS)):
        odd = f"clerk/{temporal.session()}; rm -rf $HOME"
        run = await temporal.start_raw("clerk", {"message": "go", "session_id": temporal.session()}, id=odd)
        await pending(run)
        assert f"standfast answer '{odd}' TEXT" in await done(temporal, "show", odd)


async def test_nothing_is_sent_where_there_is_no_text(temporal: Temporal) -> None:
    for words in (["start", "clerk", "-m", " "], ["message", "r", ""], ["answer", "r", "-"]):
        assert "There is no text: nothing was sent" in await refused(temporal, *words, stdin="\n")


async def test_what_a_model_says_does_not_reach_the_terminal_as_a_command(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    async with temporal.worker(agent, llm=asking(ASKS)):
        run = await temporal.start(agent)
        await pending(run)
        for words in (("show", run.id), ("pending", run.id)):
            shown = await done(temporal, *words)
            assert "Which ‹U+001B›[31maccount‹U+202E›?" in shown
            assert "\x1b" not in shown


async def test_what_was_said_in_a_run_is_shown_with_it(temporal: Temporal, tmp_path: Path) -> None:
    """It comes from the store; what could be hidden in it is made visible."""
    agent, store = Agent("clerk", tools=[echo]), ("--store", str(tmp_path / "standfast.db"))
    line = pipeline("line").step("say", agent=agent, input=lambda ctx: "hear").build()
    odd = asks_for(call("echo", "c1", text="\x1b[2Jodd"))
    async with temporal.worker(agent, pipelines=[line], llm=ScriptedModel([odd, "done", "said"])):
        run = await temporal.start(agent)
        await result(run)
        shown = await done(temporal, "show", run.id, *store, "--messages")
        assert shown.splitlines()[-4:] == [
            "user: go",
            'assistant: -> echo({"text": "\\u001b[2Jodd"})',
            "echo: ‹U+001B›[2Jodd",
            "assistant: done",
        ]
        assert (await data(temporal, "show", run.id, *store, "--messages", "1"))["messages"][0]["content"] == "done"
        assert "messages" not in await data(temporal, "show", run.id, *store)
        (tmp_path / "empty.db").touch()
        empty = ("--messages", "--store", str(tmp_path / "empty.db"))
        assert "the workers of namespace default have another one" in await refused(temporal, "show", run.id, *empty)
        key = ("--run-key", temporal.session(), "--task-queue", temporal.name, "--wait")
        steps = (await data(temporal, "start", "line", "-i", "null", *key))["workflow_id"]
        assert "does not have a session" in await refused(temporal, "show", steps, "--messages", *store)


# --- deciding and answering ---


async def test_a_call_is_approved_with_an_edit(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=asking(CHARGES)):
        run = await temporal.start(agent)
        await pending(run)
        shown = await done(temporal, "pending", run.id)
        assert "Waits for approval c1: Charge the customer?" in shown
        assert '  Arguments  {"amount": 5}' in shown
        assert "  Approvers  ada" in shown
        assert "root may not decide it; ada may" in await refused(
            temporal, "approve", run.id, "--yes", STANDFAST_USER="root"
        )
        assert "an approval 'c2'; open: c1" in await refused(temporal, "approve", run.id, "c2")
        assert "digest" in await refused(temporal, "approve", run.id, "--digest", "0123")
        approved = await done(temporal, "approve", run.id, "--yes", "--edit", '{"amount": 7}', "--comment", "less")
        assert approved == f"Approved c1 of {run.id}, by ada\n"
        await result(run)
        assert "does not wait for an approval" in await refused(temporal, "approve", run.id)
    assert "charged 7" in (await temporal.messages())[2].content


@pytest.mark.parametrize("form", ["text", "json"])
async def test_nothing_is_approved_in_a_pipe_unless_it_says_what_or_that_it_need_not_ask(
    temporal: Temporal, form: str
) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=asking(CHARGES)):
        run = await temporal.start(agent)
        (item,) = await pending(run)
        for stdin in (None, "y\n"):
            words = await refused(temporal, "approve", run.id, "-o", form, stdin=stdin)
            assert "Cannot ask here" in words
            assert "--yes" in words
        assert await pending(run) == [item]
        await done(temporal, "approve", run.id, "-o", form, "--digest", item["digest"])
        await result(run)


async def test_a_call_is_rejected_with_a_reason_that_the_model_reads(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=asking(CHARGES)):
        run = await temporal.start(agent)
        await pending(run)
        await done(temporal, "reject", run.id, "c1", "--comment", "too much")
        await result(run)
    assert "rejected by ada: too much" in (await temporal.messages())[2].content


async def test_of_several_gates_one_is_named(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(
        agent, llm=asking(asks_for(call("charge", "c1", amount=1), call("charge", "c2", amount=2)))
    ):
        run = await temporal.start(agent)
        await pending(run, 2)
        assert "waits for 2 approvals; name one of c1, c2" in await refused(temporal, "approve", run.id)
        for gate in ("c1", "c2"):
            await done(temporal, "approve", run.id, gate, "--yes")
        await result(run)


async def test_several_gates_are_decided_at_once_each_by_its_own_digest(temporal: Temporal) -> None:
    agent, ids = Agent("clerk", tools=[charge]), ("c1", "c2", "c3")
    asked = asks_for(*(call("charge", one, amount=number) for number, one in enumerate(ids)))
    async with temporal.worker(agent, llm=asking(asked)):
        run = await temporal.start(agent)
        digests = [item["digest"] for item in await pending(run, 3)]
        said = await refused(temporal, "approve", run.id, "c1", "c2", "--digest", digests[0])
        assert "1 --digest for 2 gates" in said
        said = await refused(temporal, "approve", run.id, "c1", "c2", "c3", "--edit", "{}", "--yes")
        assert "--edit is for one gate" in said
        each = [word for digest in (digests[0], digests[0]) for word in ("--digest", digest)]
        both = await standfast(temporal, "approve", run.id, "c1", "c2", *each)
        assert both.exit_code == 1
        assert both.stdout == f"Approved c1 of {run.id}, by ada\n"
        assert "1 of 2 gates were not decided: gate c2 has changed" in both.stderr
        assert [item["name"] for item in await pending(run, 2)] == ["c2", "c3"]
        rows = await data(temporal, "approve", run.id, "c2", "c3", "--yes")
        assert [(row["gate"], row["decision"]) for row in rows] == [("c2", "approve"), ("c3", "approve")]
        await result(run)


async def test_a_question_is_answered_from_the_arguments_or_from_the_prompt(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    for number, (words, stdin) in enumerate([(["savings"], None), (["-"], "savings"), ([], "savings\n")]):
        async with temporal.worker(agent, llm=asking(ASKS)):
            run = await temporal.start(agent, session=str(number))
            await pending(run)
            await done(temporal, "answer", run.id, *words, stdin=stdin)
            await result(run)
        assert (await temporal.messages(str(number)))[2].content == "savings"


async def test_a_question_that_nobody_asks_is_not_answered(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[charge])
    async with temporal.worker(agent, llm=asking(CHARGES)):
        run = await temporal.start(agent)
        await pending(run)
        assert f"Run {run.id} has no open question" in await refused(temporal, "answer", run.id)


async def test_a_run_is_told_something_with_an_image(temporal: Temporal, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"\x89PNG")
    agent, model = Agent("clerk", tools=[ask_user]), asking(ASKS)
    async with temporal.worker(agent, llm=model):
        run = await temporal.start(agent)
        await pending(run)
        await done(temporal, "message", run.id, "Look:", "--image", str(tmp_path / "cat.png"))
        await done(temporal, "answer", run.id, "savings")
        await result(run)
    (image,) = next(message.images for message in model.calls[-1].messages if message.images)
    assert image.address == "data:image/png;base64,iVBORw=="


async def test_a_paused_run_continues_with_another_model_or_gives_up(
    temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_models_once(monkeypatch)
    down = ScriptedModel([ModelError("down", transient=True)] * 9)
    agent = Agent("clerk", model="down")
    async with temporal.worker(agent, llm=lambda name: down if name == "down" else ScriptedModel(["up again"])):
        for words, status in ((["--model", "up"], "complete"), (["--abort"], "error")):
            run = await temporal.start(agent, session=status)
            await pending(run)
            assert f"standfast resume {run.id}" in await done(temporal, "show", run.id)
            await done(temporal, "resume", run.id, *words, "--reason", "tested")
            assert (await result(run))["status"] == status
        assert "Run" in await refused(temporal, "resume", run.id)


async def test_what_is_tried_again_is_shown_with_the_reason(temporal: Temporal) -> None:
    down = ScriptedModel([ModelError("provider down", transient=True)] * 99)
    agent = Agent("clerk", loop=Loop(model_retry=RetryPolicy(initial_interval=0.2, maximum_attempts=99)))
    async with temporal.worker(agent, llm=down):
        run = await temporal.start(agent)
        await until(lambda: len(down.calls) > 2)
        assert re.search(r"Tries again +call_model, attempt \d+: provider down", await done(temporal, "show", run.id))
        await done(temporal, "cancel", run.id, "--wait")


async def test_a_run_is_cancelled(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    async with temporal.worker(agent, llm=asking(ASKS)):
        run = await temporal.start(agent)
        await pending(run)
        await done(temporal, "cancel", run.id, "--wait")
        assert (await data(temporal, "show", run.id))["status"] in ("cancelled", "canceled")
        assert "has already ended" in await refused(temporal, "cancel", run.id)


async def test_a_cancel_that_no_worker_has_taken_is_not_told_as_done(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[ask_user])
    async with temporal.worker(agent, llm=asking(ASKS)):
        run = await temporal.start(agent)
        await pending(run)
    assert (await done(temporal, "cancel", run.id)).startswith(f"Asked {run.id} to cancel")
    assert "closed" not in await data(temporal, "show", run.id)
    async with temporal.worker(agent, llm=asking(ASKS)):
        assert await done(temporal, "cancel", run.id, "--wait") == f"Cancelled {run.id}\n"


async def test_an_export_says_that_no_worker_is_there_and_waits_for_one(temporal: Temporal) -> None:
    agent, at = Agent("clerk", tools=[ask_user]), temporal.client.service_client.config.target_host
    async with temporal.worker(agent, llm=asking(ASKS)):
        run = await temporal.start(agent)
        await pending(run)
    words = (sys.executable, "-m", "standfast", "export", run.id, "--address", at)
    export = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE)
    try:
        assert export.stderr is not None
        told = (await export.stderr.readline()).decode()
        why = "none has within 5 s, although one has polled recently: it may have died, or be busy"
        assert told.startswith(f"No worker answers for run {run.id}: {why}")
        assert told.endswith(". The export waits until one does; Ctrl-C ends it\n")
        async with temporal.worker(agent, llm=asking(ASKS)):
            exported, _ = await export.communicate()
        assert json.loads(exported)["exported_from"].startswith(run.id.removeprefix("clerk/"))
    finally:
        if export.returncode is None:
            export.kill()
            await export.wait()


async def test_a_run_is_carried_away_and_continues_elsewhere(temporal: Temporal, tmp_path: Path) -> None:
    agent, file = Agent("clerk", tools=[ask_user]), tmp_path / "run.json"
    async with temporal.worker(agent, llm=asking(ASKS)):
        run = await temporal.start(agent)
        await pending(run)
        await done(temporal, "export", run.id, "--file", str(file))
        assert json.loads(await done(temporal, "export", run.id)) == json.loads(file.read_text())
        await done(temporal, "cancel", run.id, "--wait")
        moved = ("--session", temporal.session("moved"), "--task-queue", temporal.name)
        there = await data(temporal, "import", "clerk", str(file), *moved)
        await done(temporal, "answer", there["workflow_id"], "savings")
        assert (await result(temporal.people.run(there["workflow_id"])))["response"] == "done"


async def test_a_gate_says_how_many_of_those_it_needs_have_approved(temporal: Temporal) -> None:
    both = Approval(message="Publish?", approvers=["ada", "bob"], quorum=2)
    line = pipeline("line").step("ok", approval=both).build()
    async with temporal.worker(pipelines=[line]):
        run = await start_pipeline(temporal.client, line, task_queue=temporal.name, run_key=temporal.session())
        await pending(run)
        for by, says in ((None, "0 of 2"), ("ada", "1 of 2: ada")):
            if by is not None:
                said = await done(temporal, "approve", run.id, "ok", "--by", by, "--yes")
                assert said == f"Approved ok of {run.id}, by ada: 1 of 2 approvals\n"
            shown = " ".join((await done(temporal, "pending", run.id)).split())
            assert f"Approved {says} Since" in shown
        said = await done(temporal, "approve", run.id, "ok", "--by", "bob", "--yes")
        assert said == f"Approved ok of {run.id}, by bob\n"
