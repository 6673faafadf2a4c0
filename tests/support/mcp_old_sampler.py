"""An MCP server of an earlier protocol that asks for a model's answers: `python mcp_old_sampler.py FILE`.

FILE records each answer. Its tool `think` has as arguments, besides the `text`: `times`, how often it asks at once;
`size`, of a long text in bytes; `late`, whether it asks when the call is over; `params`, more of
each request. If there is a `FILE.hold`, it does not end a call as long as that is there; if there is a `FILE.early`,
it asks before it lists its tools.
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

heard = Path(sys.argv[1])
hold = heard.with_suffix(".hold")
waiting: dict[str, list[Any]] = {}  # by the id of a call, what was answered
wanted: dict[str, int] = {}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def end(call: Any, answers: list[Any]) -> None:
    while hold.exists():
        time.sleep(0.05)
    text = json.dumps(answers)
    say({"id": call, "result": {"content": [{"type": "text", "text": text}]}})


def ask(call: Any, *, text: str, times: int = 1, size: int = 0, late: bool = False, params: Any = None) -> None:
    waiting[str(call)], wanted[str(call)] = [], times
    if late:
        end(call, ["not asked yet"])
    messages = [{"role": "user", "content": {"type": "text", "text": "x" * size or text}}]
    for number in range(times):
        request = {"messages": messages, "maxTokens": 50, **(params or {})}
        say({"id": f"{call}/{number}", "method": "sampling/createMessage", "params": request})


def list_tools(asked: Any) -> None:
    tools = [{"name": "think", "description": "Think.", "inputSchema": {"type": "object"}}]
    say({"id": asked, "result": {"tools": tools}})


def take(answer: dict[str, Any]) -> None:
    call, _, which = answer["id"].rpartition("/")
    result = answer.get("result")
    said = answer["error"]["message"] if result is None else result["content"]["text"]
    with heard.open("a") as file:
        file.write(f"{said}\n")
    if call == "early":
        list_tools(int(which))
        return
    waiting[call].append(said)
    if len(waiting[call]) == wanted[call]:
        threading.Thread(target=end, args=(int(call) if call.isdigit() else call, waiting[call])).start()


for line in sys.stdin:
    got = json.loads(line)
    match got.get("method"):
        case "initialize":
            info = {"name": "old", "version": "1"}
            known = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            say({"id": got["id"], "result": known})
        case "tools/list":
            if heard.with_suffix(".early").exists():
                said = [{"role": "user", "content": {"type": "text", "text": "?"}}]
                request = {"messages": said, "maxTokens": 50}
                say({"id": f"early/{got['id']}", "method": "sampling/createMessage", "params": request})
            else:
                list_tools(got["id"])
        case "tools/call":
            ask(got["id"], **got["params"]["arguments"])
        case None if "/" in str(got.get("id")):
            take(got)
        case _ if "id" in got:
            say({"id": got["id"], "error": {"code": -32601, "message": "Method not found"}})
