"""Arguments too large for a card: read completely, in parts or as a file, or not approved there."""

import hashlib
import json
import re
from typing import Any

from support.pages import browser, send
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call

from standfast import Agent, Approval, sqlite_store, tool
from standfast.testing import ScriptedModel

BOOK = " ".join(f"line{number}" for number in range(9_000))  # 80 KB
PARTS = len(json.dumps({"text": BOOK}, indent=2)) // 20_000 + 1


@tool(approval=Approval(message="Print?"))
async def print_book(text: str) -> str:
    return f"printed {len(text)}"


def asking() -> ScriptedModel:
    return ScriptedModel([asks_for(call("print_book", "c1", text=BOOK)), "done"])


async def test_all_of_it_is_read_in_parts_and_as_a_file_and_approved(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[print_book])
    async with temporal.worker(agent, llm=asking()), browser(temporal) as client:
        run = await temporal.start(agent)
        (item,) = await pending(run)
        card = (await client.get(f"/runs/{run.id}")).text
        assert "line0 line1" in card
        assert item["digest"] in card
        assert 'name="edit"' not in card
        read = ""
        for number in range(1, PARTS + 1):
            part = await client.get(f"/arguments/{run.id}", params={"gate": "c1", "page": str(number)})
            assert f"Part {number} of {PARTS}" in part.text
            read += re.findall(r"<pre>(.*?)</pre>", part.text, re.DOTALL)[0]
        assert BOOK in read
        file = await client.get(f"/arguments/{run.id}", params={"gate": "c1", "file": "1"})
        assert json.loads(file.text) == {"text": BOOK}
        assert file.headers["Content-Disposition"] == 'attachment; filename="arguments.json"'
        assert hashlib.sha256(file.content).hexdigest() in card
        await send(client, f"/runs/{run.id}", run.id, "decide", decision="approve")
        await result(run)
    assert (await temporal.messages())[2].content == f"printed {len(BOOK)}"


async def test_what_cannot_be_shown_whole_can_only_be_rejected_there(temporal: Temporal, tmp_path: Any) -> None:
    agent = Agent("clerk", tools=[print_book])
    async with temporal.worker(agent, llm=asking()), sqlite_store(tmp_path / "other.db") as other:
        run = await temporal.start(agent)
        await pending(run)
        for store, why in ((None, "This page has no store"), (other, "are not in this store")):
            elsewhere = Temporal(temporal.client, store, temporal.name)  # type: ignore[arg-type]
            async with browser(elsewhere) as client:
                for page in ("/", f"/runs/{run.id}"):
                    shown = (await client.get(page)).text
                    assert "Here it can only be rejected" in shown
                    assert why in shown
                    assert 'value="approve"' not in shown
                told = await client.get(f"/arguments/{run.id}", params={"gate": "c1"})
                assert (told.status_code, why in told.text) == (404, True)
        async with browser(elsewhere) as client:
            await send(client, f"/runs/{run.id}", run.id, "decide", decision="reject", comment="cannot read it")
        await result(run)
    assert "rejected by ada: cannot read it" in (await temporal.messages())[2].content


async def test_odd_questions_for_arguments_are_answered(temporal: Temporal) -> None:
    agent = Agent("clerk", tools=[print_book])
    async with temporal.worker(agent, llm=asking()), browser(temporal) as client:
        run = await temporal.start(agent)
        await pending(run)
        for page, number in (("0", 1), ("-1", 1), ("99", PARTS), ("x", 1), ("9" * 5_000, 1)):
            part = await client.get(f"/arguments/{run.id}", params={"gate": "c1", "page": page})
            assert f"Part {number} of {PARTS}" in part.text
        assert (await client.get(f"/arguments/{run.id}", params={"gate": "c9"})).status_code == 404
        assert (await client.get("/arguments/no/body", params={"gate": "c1"})).status_code == 404
