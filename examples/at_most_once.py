"""A shop's agent is killed between "the card was charged" and "the result was saved", and continues in a new process.

    python examples/at_most_once.py

Everything but the model is real: the tools read a file and call an HTTP service on this machine, the session is a
SQLite file, and the agent's process dies by SIGKILL. The model is scripted, so that the demo needs no key.
"""

import asyncio
import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any

from standfast import Agent, LLMResponse, Message, ToolCall, ToolContext, assert_complete, run, sqlite_store, tool
from standfast.testing import ScriptedModel

ORDERS = {"A-7": {"customer": "Ada", "total": 49}, "A-8": {"customer": "Grace", "total": 12}}

# --- the agent ----------------------------------------------------------------------------------------------------


def call_service(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(os.environ["PAYMENTS"] + path, data, timeout=10) as answer:
        return dict(json.load(answer))


@tool(safe_to_retry=True)
def get_order(order: str) -> dict[str, Any]:
    """Look up an order."""
    return dict(json.loads(Path(os.environ["ORDERS"]).read_text())[order])


@tool  # has effects: runs at most once
def charge_card(order: str, amount: int, ctx: ToolContext) -> dict[str, Any]:
    """Charge the customer's card."""
    return call_service("/charges", {"order": order, "amount": amount, "pid": os.getpid(), "key": ctx.idempotency_key})


@tool(safe_to_retry=True)
def find_charges(order: str) -> dict[str, Any]:
    """List the charges of an order at the payment service."""
    return call_service(f"/charges/{order}")


@tool(name="charge_card", safe_to_retry=True)  # as in a loop that repeats lost calls
def charge_card_again_and_again(order: str, amount: int, ctx: ToolContext) -> dict[str, Any]:
    """Charge the customer's card."""
    return charge_card(order, amount, ctx)


def clerk(messages: list[Message], tools: list[Any]) -> LLMResponse:
    """Answer from the transcript, as a sensible model would."""
    results = {message.tool_name: message for message in messages if message.role == "tool"}
    if "get_order" not in results:
        return call("get_order", order="A-7")
    if "charge_card" not in results:
        return call("charge_card", order="A-7", amount=49)
    if "tool-durability-error" in results["charge_card"].content and "find_charges" not in results:
        return call("find_charges", order="A-7")
    return LLMResponse(text="Order A-7 is paid: 49 euros, charged to Ada's card.")


def call(name: str, **arguments: Any) -> LLMResponse:
    return LLMResponse(tool_calls=(ToolCall(id=f"call_{name}", name=name, arguments=arguments),))


async def serve_customer(store: str, careful: bool) -> None:
    charge = charge_card if careful else charge_card_again_and_again
    agent = Agent("clerk", instructions="Settle orders.", tools=[get_order, charge, find_charges])
    async with sqlite_store(store) as sessions:
        known = await sessions.load_session("order-A-7")
        message = None if known else "Please settle order A-7."
        model = ScriptedModel(clerk)
        result = assert_complete(await run(agent, message=message, session_id="order-A-7", store=sessions, llm=model))
        for line in map(told, result.messages):
            print(line)


def told(message: Message) -> str:
    if message.role == "tool":
        lost = "tool-durability-error" in message.content
        return f"    {'!' if lost else '<'} {message.content[:96]}{'…' if len(message.content) > 96 else ''}"
    if message.tool_calls:
        asked = message.tool_calls[0]
        return f"    > {asked.name}({json.dumps(asked.arguments)[1:-1]})"
    return f"  {message.role}: {message.content}"


# --- the world around it ------------------------------------------------------------------------------------------


class Payments(http.server.ThreadingHTTPServer):
    """Accepts every charge, and kills the sender of the first one before the answer arrives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PaymentsHandler)
        self.charges: list[dict[str, Any]] = []


class PaymentsHandler(http.server.BaseHTTPRequestHandler):
    server: Payments

    def do_POST(self) -> None:
        charge = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.charges.append(charge)
        if len(self.server.charges) == 1:
            os.kill(charge["pid"], signal.SIGKILL)
            return
        self.answer({"paid": charge["amount"]})

    def do_GET(self) -> None:
        order = self.path.rsplit("/", 1)[-1]
        self.answer({"charges": [charge["amount"] for charge in self.server.charges if charge["order"] == order]})

    def answer(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


def act(folder: Path, careful: bool) -> int:
    """Run the agent until it dies, then again; return how often the card was charged."""
    payments = Payments()
    threading.Thread(target=payments.serve_forever, daemon=True).start()
    orders = folder / "orders.json"
    orders.write_text(json.dumps(ORDERS))
    environment = os.environ | {"PAYMENTS": f"http://127.0.0.1:{payments.server_port}", "ORDERS": str(orders)}
    store = folder / ("careful.db" if careful else "careless.db")
    command = [sys.executable, __file__, "agent", str(store), "careful" if careful else "careless"]
    print("process 1: Please settle order A-7.")
    killed = subprocess.run(command, env=environment, check=False)
    print(f"process 1: died by signal {-killed.returncode}, in the middle of charge_card. Its result was never saved.")
    print("process 2: the same session, the same code. The final transcript:")
    subprocess.run(command, env=environment, check=True)
    payments.shutdown()
    payments.server_close()
    return len(payments.charges)


def main() -> None:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # in order with the agent's own lines
    with tempfile.TemporaryDirectory() as name:
        print("\n== A loop that repeats lost calls ==\n")
        careless = act(Path(name), careful=False)
        print("\n== standfast: a tool with effects runs at most once, and the model learns of it ==\n")
        careful = act(Path(name), careful=True)
    print("\nHow often Ada's card was charged for one order:")
    print(f"    a loop that repeats lost calls      {careless}")
    print(f"    standfast                           {careful}")
    print("\n(The model was scripted. The tools, the HTTP service, the SQLite file and the kill were real.)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["agent"]:
        asyncio.run(serve_customer(sys.argv[2], careful=sys.argv[3] == "careful"))
    else:
        main()
