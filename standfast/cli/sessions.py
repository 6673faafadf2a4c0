"""`standfast sessions`: the conversations in a store."""

import asyncio
import json
from typing import Any

import click

from standfast.cli.audits import BY
from standfast.cli.commands import with_output
from standfast.cli.inputs import who
from standfast.cli.outputs import Output, ago
from standfast.cli.stores import BOARD, Named, existing_store, shown_address
from standfast.errors import InputError
from standfast.messages import JSONObject, Message, Usage
from standfast.runtime.message_ids import Unheard
from standfast.runtime.retention import delete_session
from standfast.stores import Session, session_key_of
from standfast.stores.protocol import session_id_of


@click.command()
@click.argument("session", required=False)
@BOARD
@click.option("--agent", help="Sessions of an agent.")
@click.option("--user", help="Sessions of a user.")
@click.option("--tenant", help="Sessions of a tenant; each tenant has its own.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Show at most this many.")
@click.option("--delete", is_flag=True, help="Delete the session, with all stored data of its runs.")
@click.option("--keep-decisions", is_flag=True, help="With --delete: keep who decided what and when, without texts.")
@BY
@with_output
def sessions(
    output: Output,
    session: str | None,
    store: str,
    tenant: str | None,
    delete: bool,
    keep_decisions: bool,
    by: str | None,
    **wanted: Any,
) -> None:
    """List sessions in a store, show the messages of one, or delete one.

    A session is not deleted while a run is working on it. A run that waits, or is reset later, then ends.
    """
    if session is None and delete:
        raise click.UsageError("--delete needs a SESSION.")
    if keep_decisions and not delete:
        raise click.UsageError("--keep-decisions goes with --delete.")
    if session is not None and delete:
        asyncio.run(_delete(output, store, session, tenant, keep_decisions, by))
        return
    asyncio.run(_list(output, store, tenant, **wanted) if session is None else _show(output, store, session, tenant))


async def _delete(
    output: Output, path: str, session_id: str, tenant: str | None, keep_decisions: bool, by: str | None
) -> None:
    await transcript(path, session_id, tenant)  # raises an error if there is none
    async with existing_store(path) as store:
        key = session_key_of(tenant, session_id)
        session = await delete_session(store, key, keep_decisions=keep_decisions, by=who(by))
    found = {"session_id": session_id, "messages": session.last_seq, "deleted": True}
    output.item(found, lambda: output.line(f"Deleted session {session_id}."))


async def _list(output: Output, path: str, tenant: str | None, agent: str | None, user: str | None, limit: int) -> None:
    async with existing_store(path) as store:
        found = await store.list_sessions(agent_name=agent, user_id=user, limit=limit if tenant is None else None)
    found = [one for one in found if tenant in (None, one.tenant_id)][:limit]
    output.rows(
        [
            one.model_dump(mode="json", exclude={"state", "questions"})
            | {"id": session_id_of(one.id), "waits": bool(one.questions)}
            for one in found
        ],
        {
            "SESSION": lambda row: row["id"],
            "AGENT": lambda row: row["agent_name"],
            "USER": lambda row: row.get("user_id"),
            "TENANT": lambda row: row.get("tenant_id"),
            "MESSAGES": lambda row: str(row["last_seq"]),
            "USED": lambda row: Usage(**row["usage"]).in_words if row.get("usage") else "",
            "WAITS": lambda row: "for a person" if row["waits"] else "",
            "UPDATED": lambda row: ago(row["updated_at"]),
        },
        nothing="No sessions.",
    )


async def _show(output: Output, path: str, session_id: str, tenant: str | None) -> None:
    session, messages = await transcript(path, session_id, tenant)
    async with existing_store(path) as store:
        unheard = [one.message for one in await Unheard(session, store).load(messages)]
    if output.is_text:
        for message in messages:
            write_message(output, message)
        for said in unheard:
            output.line(f"user, not read yet: {said.content}", style="bold")
        if session.usage is not None:
            output.note(session.usage.in_words)
        return
    plain = [message.model_dump(mode="json") for message in messages]
    waits = [message.model_dump(mode="json") for message in unheard]
    if output.form == "json":
        item = session.model_dump(mode="json") | {"id": session_id, "messages": plain, "unheard": waits}
        output.item(item, lambda: None)
    else:
        output.rows(plain, {}, nothing="")


async def transcript(path: Named, session_id: str, tenant: str | None = None) -> tuple[Session, list[Message]]:
    """Return a session of a store, and its messages.

    Raises:
        InputError: the store does not exist, or does not contain the session.
    """
    async with existing_store(path) as store:
        key = session_key_of(tenant, session_id)
        session = await store.load_session(key)
        if session is None:
            of = "" if tenant is None else f" of tenant {tenant!r}"
            where = f"{shown_address(path)!r}; --store or STANDFAST_STORE names another"
            raise InputError(f"There is no session {session_id!r}{of} in store {where}")
        return session, await store.load_messages(key)


_STYLES = {"user": "bold", "tool": "dim", "assistant": None, "system": "dim"}


def write_message(output: Output, message: Message) -> None:
    """Write a message for people: its author, its text, and its calls."""
    who = message.tool_name or "tool" if message.role == "tool" else message.role
    lines = [message.content] if message.content else []
    lines += [f"[image {image.address[:60]}]" for image in message.images or ()]
    lines += [f"-> {call.name}({_arguments(call.arguments)})" for call in message.tool_calls or ()]
    if message.status not in (None, "completed"):
        who = f"{who}, {message.status}"
    output.line(f"{who}: " + "\n    ".join(lines), style=_STYLES[message.role])


def _arguments(arguments: JSONObject | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
