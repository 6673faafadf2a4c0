"""Commands of `standfast` that work without a server: conversations, and the stored sessions."""

import json
import sys
from pathlib import Path

import pytest
from support.commands import data, done, refused, standfast
from support.questions import ask
from support.temporal_runs import Temporal, ask_once, pending
from support.transcripts import says

from standfast import Agent, Message, Usage, run, sqlite_store
from standfast.cli.applications import load_application
from standfast.testing import ScriptedModel

APP = '''
from standfast import Agent, Approval, InterruptError, tool
from standfast.testing import ScriptedModel


@tool(approval=Approval(message="Charge?"))
async def charge(amount: int) -> str:
    """Charge."""
    return f"charged {amount}"


@tool
async def ask(question: str) -> str:
    """Ask."""
    raise InterruptError(question)


def answer(messages, tools):
    last = messages[-1]
    if last.role == "tool":
        return f"so: {last.content}"
    name, _, rest = last.content.partition(" ")
    arguments = {"charge": {"amount": 5}, "ask": {"question": rest}}.get(name)
    if arguments is None:
        return f"you said {last.content}"
    return {"tool_calls": [{"id": f"c{len(messages)}", "name": name, "arguments": arguments}]}


llm = ScriptedModel(answer)
AGENTS = [Agent("clerk", tools=[charge, ask])]
'''


FAILING = """
from standfast import Agent, ModelError
from standfast.testing import ScriptedModel

answers = iter([ModelError("the model is away", transient=False)])
llm = ScriptedModel(lambda messages, tools: next(answers, f"you said {messages[-1].content}"))
AGENTS = [Agent("clerk")]
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(APP)
    return str(tmp_path / "shop.py")


async def test_a_conversation_in_the_terminal(app: str) -> None:
    """Questions are answered and calls approved in place; the session is kept, and continues."""
    lines = ["hello", "ask which?", "savings", "charge", "edit {oops", 'edit {"amount": 7}', "charge", "reject no"]
    said = await done(None, "chat", "clerk", "--app", app, "--session", "s", stdin="\n".join(lines))
    assert [line for line in said.splitlines() if line.startswith(("you", "so", "which"))] == [
        "you said hello",
        "which?",
        "so: savings",
        'so: {"note":"ada changed the arguments before it ran","arguments":{"amount":7},"result":"charged 7"}',
        'so: {"error": "Not run: it was rejected by ada: no"}',
    ]
    again = await done(None, "chat", "clerk", "--app", app, "--session", "s", stdin="bye\n/quit\nnot said\n")
    assert again == "you said bye\n"
    async with sqlite_store("standfast.db") as store:
        messages = await store.load_messages("s")
    assert [message.content for message in messages if message.role == "user"] == [
        "hello", "ask which?", "charge", "charge", "bye"
    ]  # fmt: skip


async def test_a_conversation_says_which_new_file_it_is_kept_in(app: str) -> None:
    begun = await standfast(None, "chat", "clerk", "--app", app, stdin="hello\n")
    assert "standfast.db, a new file, which other commands in this folder read unless --store" in begun.stderr
    assert "a new file" not in (await standfast(None, "chat", "clerk", "--app", app, stdin="hello\n")).stderr
    other = await standfast(None, "chat", "clerk", "--app", app, "--store", "other.db", stdin="hello\n")
    assert "other.db, a new file." in other.stderr


@pytest.mark.parametrize(("answers", "ended"), [('["", ""]', "Ended with empty"), ('["hi"]', "")])
async def test_a_conversation_says_how_a_turn_without_words_ended(
    app: str, tmp_path: Path, answers: str, ended: str
) -> None:
    head = "from standfast import Agent\nfrom standfast.testing import ScriptedModel\n"
    (tmp_path / "shop.py").write_text(f'{head}llm = ScriptedModel({answers})\nAGENTS = [Agent("clerk")]\n')
    told = await standfast(None, "chat", "clerk", "--app", app, "--session", "s", stdin="hello\n")
    assert [line for line in told.stderr.splitlines() if line.startswith("Ended")] == ([ended] if ended else [])


async def test_a_line_that_is_typed_again_after_a_failure_is_said_once(app: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FAILING)
    said = await done(None, "chat", "clerk", "--app", app, "--session", "s", stdin="hello\nhello\nhello\n")
    assert said.splitlines() == ["you said hello"] * 2
    async with sqlite_store("standfast.db") as store:
        kept = [message for message in await store.load_messages("s") if message.role == "user"]
    assert [message.content for message in kept] == ["hello"] * 2
    assert len({message.message_id for message in kept}) == 2


async def test_a_conversation_that_is_left_at_a_gate_continues_there(app: str) -> None:
    await done(None, "chat", "clerk", "--app", app, "--session", "s", stdin="charge\n")
    said = await done(None, "chat", "clerk", "--app", app, "--session", "s", stdin="what?\ny\nhello\n")
    assert said.splitlines()[-3:] == ["<- charge: charged 5", "so: charged 5", "you said hello"]


async def test_an_edit_in_a_conversation_may_be_bare_json_and_what_is_wrong_with_it_is_said(app: str) -> None:
    lines = ["charge", "edit {oops", "perhaps", '{"amount": 8}']
    result = await standfast(None, "chat", "clerk", "--app", app, stdin="\n".join(lines))
    assert "That is not JSON" in result.stderr
    assert "Type approve (y), or reject (n) and why" in result.stderr
    assert "charged 8" in result.stdout


async def test_a_file_that_raises_is_told_by_its_own_lines(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from standfast import Agent\n\nclerk = Agent('no such name')\n")
    told = await refused(None, "chat", "clerk", "--app", str(tmp_path / "shop.py"))
    lines = [line.strip() for line in told.splitlines()]
    assert "clerk = Agent('no such name')" in lines
    assert lines[-1].startswith("standfast.errors.DefinitionError: Agent name must match")
    assert told.count("File ") == 1


async def test_an_agent_or_application_that_is_not_there_is_named(app: str, tmp_path: Path) -> None:
    assert "No agent 'clark' here; there is clerk" in await refused(None, "chat", "clark", "--app", app)
    assert "There is neither a file nor a module 'nowhere'" in await refused(None, "chat", "a", "--app", "nowhere")
    assert "There is no file" in await refused(None, "chat", "a", "--app", "nowhere.py")
    assert "There is no file '../nowhere'" in await refused(None, "chat", "a", "--app", "../nowhere")
    (tmp_path / "app.good").write_text(APP)
    assert "its name must end with .py" in await refused(None, "chat", "a", "--app", "app.good")
    (tmp_path / "empty.py").write_text("x = 1")
    assert "neither an Agent nor a Pipeline" in await refused(None, "chat", "a", "--app", "empty.py")
    unfinished = "from standfast import Agent, pipeline\n"
    Path("factory.py").write_text(unfinished + "def make():\n    return Agent('a')\n")
    assert "make is a function: if it makes an agent or" in await refused(None, "chat", "a", "--app", "factory.py")
    Path("builder.py").write_text(unfinished + "line = pipeline('line')\n")
    assert "write `line = line.build()`" in await refused(None, "chat", "a", "--app", "builder.py")


async def test_sessions_of_a_store_are_listed_and_shown(tmp_path: Path) -> None:
    path = str(tmp_path / "standfast.db")
    async with sqlite_store(path) as store:
        for session, text in (("one", "hello"), ("two", "good \x1b[2Jday")):
            model = ScriptedModel([says(text, 1_500)])
            await run(Agent("greeter"), message="Hi", llm=model, store=store, session_id=session, user_id="ada")
    listed = await data(None, "sessions", "--store", path)
    assert [(row["id"], row["usage"]) for row in listed] == [
        ("two", {"input_tokens": 1_500, "output_tokens": 0}), ("one", {"input_tokens": 1_500, "output_tokens": 0})
    ]  # fmt: skip
    table = await done(None, "sessions", "--store", path, "--user", "ada")
    assert table.splitlines()[1].split()[:4] == ["two", "greeter", "ada", "2"]
    shown = await standfast(None, "sessions", "two", "--store", path)
    assert shown.stdout == "user: Hi\nassistant: good ‹U+001B›[2Jday\n"
    assert "1,500 tokens in" in shown.stderr
    lines = (await done(None, "sessions", "two", "--store", path, "-o", "jsonl")).splitlines()
    assert [Message(**json.loads(line)).content for line in lines] == ["Hi", "good \x1b[2Jday"]
    whole = await data(None, "sessions", "one", "--store", path)
    assert (whole["agent_name"], Usage(**whole["usage"]), len(whole["messages"])) == (
        "greeter", Usage(input_tokens=1_500), 2
    )  # fmt: skip


async def test_a_store_or_session_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    assert "There is no store" in await refused(None, "sessions", "--store", str(tmp_path / "none.db"))
    async with sqlite_store(tmp_path / "a.db") as store:
        assert await store.list_sessions() == []
    assert "There is no session 's' in store" in await refused(None, "sessions", "s", "--store", str(tmp_path / "a.db"))
    (tmp_path / "text.db").write_text("no database, but a text that is long enough to look like one" * 20)
    assert "is not a SQLite database" in await refused(None, "sessions", "--store", str(tmp_path / "text.db"))


@pytest.mark.parametrize(
    "words", [["nonsense"], ["show"], ["ls", "--limit", "0"], ["ls", "-o", "xml"], ["resolve", "r", "c"]]
)
async def test_wrong_usage_has_its_own_exit_code(words: list[str]) -> None:
    assert "Usage: " in await refused(None, *words, code=2)


async def test_what_was_said_to_a_session_and_not_heard_yet_is_shown(temporal: Temporal, tmp_path: Path) -> None:
    path = str(tmp_path / "standfast.db")
    async with temporal.worker(Agent("a", tools=[ask]), llm=ScriptedModel(ask_once)):
        handle = await temporal.start("a")
        await pending(handle)
        await temporal.people.message(handle.id, "one more \x1b[2Jthing")
        await handle.terminate()
    shown = await done(None, "sessions", temporal.session(), "--store", path)
    assert shown.splitlines()[-1] == "user, not read yet: one more ‹U+001B›[2Jthing"
    (unheard,) = (await data(None, "sessions", temporal.session(), "--store", path))["unheard"]
    assert unheard["content"] == "one more \x1b[2Jthing"


async def test_an_application_may_use_asyncio_run_when_it_is_loaded_within_an_event_loop(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(f"import asyncio\n\n{APP}\nasyncio.run(asyncio.sleep(0))\n")
    assert list(load_application(str(tmp_path / "app.py"), ":memory:").agents) == ["clerk"]


def test_no_file_beside_an_application_takes_the_place_of_an_installed_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (tmp_path / "colorsys.py").write_text("raise SystemExit('the file beside it')")
    (tmp_path / "beside.py").write_text("name = 'clerk'")
    (tmp_path / "shop_app.py").write_text(
        "import colorsys\nfrom beside import name\nfrom standfast import Agent\nclerk = Agent(name)\n"
    )
    monkeypatch.chdir(tmp_path)
    for where in ("json.py", "openai.py", "standfast.py"):  # which `import` must still find
        (tmp_path / where).write_text(
            "import json\nfrom standfast import Agent\nclerk = Agent('clerk')\njson.dumps(1)\n"
        )
        assert list(load_application(where, ":memory:").agents) == ["clerk"]
        (tmp_path / where).unlink()
    assert not [one for one in sys.modules.values() if getattr(one, "__name__", "") in ("json", "openai", "standfast")
                and str(getattr(one, "__file__", "")).startswith(str(tmp_path))]  # fmt: skip
    for where in ("shop_app.py", "shop_app"):
        assert list(load_application(where, ":memory:").agents) == ["clerk"]
    assert "colorsys" in sys.modules
