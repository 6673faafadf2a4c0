"""A local chat webhook and mail server that record all messages, to try the tools with real effects.

    python -m examples.sinks --dir sinks

writes posts to `sinks/posts.jsonl` and mails to `sinks/mails.jsonl`, and prints the settings for the tools. An effect
is recorded when it arrives and answered after a delay. If the sender is killed in between, the effect has happened,
but the sender has not learned of it.
"""

import argparse
import asyncio
import contextlib
import email
import http.server
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from email import policy
from functools import partial
from pathlib import Path
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session


@dataclass(frozen=True, slots=True)
class Sinks:
    """The addresses of the sinks, and their records."""

    webhook_url: str
    smtp: str
    folder: Path

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a worker whose tools use these sinks."""
        return {
            "STANDFAST_WEBHOOK_URL": self.webhook_url,
            "STANDFAST_SMTP": self.smtp,
            "STANDFAST_MAIL_FROM": "triage@saltmarsh.example",
        }

    def posts(self) -> list[dict[str, Any]]:
        """The messages that were posted: `channel`, `text`, `idempotency_key`."""
        return _read(self.folder / "posts.jsonl")

    def mails(self) -> list[dict[str, Any]]:
        """The mails that were sent: `from`, `to`, `subject`, `message_id`, `body`."""
        return _read(self.folder / "mails.jsonl")


@contextlib.asynccontextmanager
async def sinks(
    folder: Path,
    *,
    webhook_port: int = 0,
    smtp_port: int = 0,
    webhook_delay: float = 0,
    smtp_delay: float = 0,
) -> AsyncIterator[Sinks]:
    """Listen on 127.0.0.1, on free ports unless they are given, and write into `folder`.

    Args:
        webhook_delay, smtp_delay: seconds between recording an effect and answering.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    keep_post = partial(_append, folder / "posts.jsonl")
    webhook = _Webhook(("127.0.0.1", webhook_port), partial(_WebhookHandler, keep_post, webhook_delay))
    thread = threading.Thread(target=webhook.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    mailbox = _Mailbox(partial(_append, folder / "mails.jsonl"), smtp_delay)
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(lambda: SMTP(mailbox, hostname="localhost"), "127.0.0.1", smtp_port)
        try:
            port = server.sockets[0].getsockname()[1]
            yield Sinks(f"http://127.0.0.1:{webhook.server_port}/", f"127.0.0.1:{port}", folder)
        finally:
            server.close()
    finally:
        await asyncio.to_thread(webhook.shutdown)
        webhook.server_close()


def _append(path: Path, record: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


class _Webhook(http.server.ThreadingHTTPServer):
    daemon_threads = True  # a delayed answer must not keep the process alive


class _WebhookHandler(http.server.BaseHTTPRequestHandler):
    def __init__(self, keep: Callable[[dict[str, Any]], None], delay: float, *connection: Any) -> None:
        self.keep, self.delay = keep, delay
        super().__init__(*connection)

    def do_POST(self) -> None:
        try:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            record = {"channel": payload["channel"], "text": payload["text"]}
        except (ValueError, TypeError, KeyError):
            return self.answer(400, b"invalid_payload")
        self.keep({**record, "idempotency_key": self.headers.get("Idempotency-Key")})
        time.sleep(self.delay)
        return self.answer(200, b"ok")

    def answer(self, status: int, body: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the sender may be dead by now
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@dataclass(frozen=True)  # without slots, since aiosmtpd inspects it, which fails for slots on Python 3.11.2
class _Mailbox:
    keep: Callable[[dict[str, Any]], None]
    delay: float

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        mail = email.message_from_bytes(envelope.content, policy=policy.default)
        self.keep(
            {
                "from": envelope.mail_from,
                "to": envelope.rcpt_tos,
                "subject": mail["Subject"],
                "message_id": mail["Message-ID"],
                "body": mail.get_content(),
            }
        )
        await asyncio.sleep(self.delay)
        return "250 OK"


async def _serve(options: argparse.Namespace) -> None:
    ports_and_delays = {name: value for name, value in vars(options).items() if name != "dir"}
    async with sinks(options.dir, **ports_and_delays) as listening:
        for name, value in listening.settings.items():
            print(f"{name}={value}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.sinks", description="Keep posts and mails in files.")
    parser.add_argument("--dir", type=Path, default=Path("sinks"), help="where to write (default: sinks)")
    for name in ("webhook", "smtp"):
        parser.add_argument(f"--{name}-port", type=int, default=0, help="0 for a free port (default)")
        parser.add_argument(f"--{name}-delay", type=float, default=0, help="seconds before the answer (default: 0)")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
