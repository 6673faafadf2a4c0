"""An agent of Google's ADK whose tool dies behind its charge: `shop FOLDER (bare | guarded) DEATHS`.

Started again, it resumes the invocation from its session in a database, and prints what the model has read.
"""

import asyncio
import json
import sys
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.genai import types
from support.mortal_programs import charge_and_die

from standfast import sqlite_store
from standfast.integrations.google_adk import AtMostOnce

Answer = str | tuple[str, dict[str, Any], str | None]


class ScriptedModel(BaseLlm):
    """Answers with texts, and with calls: a name, arguments and an id."""

    model: str = "scripted"
    script: list[Answer]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[LlmResponse]:
        answer = self.script.pop(0)
        if isinstance(answer, str):
            part = types.Part(text=answer)
        else:
            name, arguments, call_id = answer
            part = types.Part(function_call=types.FunctionCall(id=call_id, name=name, args=arguments))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def runner(script: list[Answer], tools: list[Any], sessions: Any, *plugins: Any, **options: Any) -> Runner:
    with warnings.catch_warnings(action="ignore"):  # what is experimental
        app = App(
            name="shop",
            root_agent=LlmAgent(name="seller", model=ScriptedModel(script=script), tools=tools, **options),
            plugins=[*plugins],
            resumability_config=ResumabilityConfig(is_resumable=True),
        )
        return Runner(app=app, session_service=sessions, auto_create_session=True)


async def events_of(
    runner: Runner, message: str | types.Part | None, session: str = "order-7", **options: Any
) -> list[Event]:
    part = types.Part(text=message) if isinstance(message, str) else message
    said = None if part is None else types.Content(role="user", parts=[part])
    run = runner.run_async(user_id="ada", session_id=session, new_message=said, **options)
    return [event async for event in run]


def read_of(events: list[Event]) -> list[dict[str, Any]]:
    """Return what the model has read of its calls."""
    return [dict(part.response) for event in events for part in event.get_function_responses()]


def said_in(events: list[Event]) -> str:
    """Return the last text."""
    parts = [part for event in events if event.content for part in event.content.parts or []]
    return [part.text for part in parts if part.text][-1]


async def main(folder: Path, kind: str, deaths: int) -> None:
    def charge(cents: int) -> str:
        """Charge the card."""
        charge_and_die(str(folder), deaths, cents)
        return f"charged {cents}"

    guards = [AtMostOnce(sqlite_store(folder / "effects.db"))] if kind == "guarded" else []
    sessions = DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/sessions.db")
    begun = await sessions.get_session(app_name="shop", user_id="ada", session_id="order-7")
    if begun is None:
        seller = runner([("charge", {"cents": 5}, "call_1"), "done"], [charge], sessions, *guards)
        events = await events_of(seller, "Charge it.")
    else:
        seller = runner(["done"], [charge], sessions, *guards)
        events = await events_of(seller, None, invocation_id=begun.events[-1].invocation_id)
    [read] = read_of(events)
    await sessions.close()
    print(json.dumps({"read": read, "said": said_in(events)}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
