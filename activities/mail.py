"""Sends mail over SMTP, to the sender's own domain.

A mail cannot be recalled, so it is sent at most once. SMTP defines the boundary: until the server has received the end
of the text, nothing was sent. Once it has returned 250, the mail is on its way. In between, the outcome is unknown.
"""

import contextlib
import hashlib
import smtplib
from email import policy
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from activities.settings import required
from standfast import RetryableError, TerminalError, ToolContext, ToolDurabilityError, tool

# One plain address, so that neither a header nor a second recipient can hide in it.
Address = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$", max_length=254)
]
# One line: a line break would begin another header.
Subject = Annotated[str, Field(pattern=r"^[^\u0000-\u001F\u007F\u0085\u2028\u2029]+$", max_length=200)]
SEVEN_BIT = policy.SMTP.clone(cte_type="7bit")  # every server accepts this

HANDSHAKE = 5.0  # seconds for each step before the text
DELIVERY = 60.0  # for the answer to the text; the tool's `timeout` is shorter, and reports an unknown outcome


class Sent(BaseModel):
    """A mail that the server has accepted."""

    model_config = ConfigDict(frozen=True)

    to: str
    message_id: str


@tool(timeout="30s")  # has effects: runs at most once
def send_email(
    to: Address, subject: Subject, body: Annotated[str, Field(max_length=100_000)], ctx: ToolContext
) -> Sent:
    """Send a plain-text mail to a member of the team."""
    mail_from = required("STANDFAST_MAIL_FROM", "triage@saltmarsh.example")
    server = required("STANDFAST_SMTP", "localhost:25")
    sender = parseaddr(mail_from)[1]
    domain = sender.lower().partition("@")[2]
    if not domain:
        raise TerminalError(f"Not sent: STANDFAST_MAIL_FROM must be an address, got {mail_from!r}")
    if to.rpartition("@")[2].lower() != domain:
        # A prompt injection must not be able to send data outside.
        raise TerminalError(f"Not sent: mail goes to addresses at {domain} only", status_code=403)
    # The same for all attempts of a call, so that a duplicate shows. A hash, since keys may contain any character.
    message_id = f"<{hashlib.sha256(ctx.idempotency_key.encode()).hexdigest()[:32]}@{domain}>"
    message = EmailMessage(policy=SEVEN_BIT)
    message["From"], message["To"], message["Subject"] = mail_from, to, subject
    message["Date"], message["Message-ID"], message["Auto-Submitted"] = formatdate(), message_id, "auto-generated"
    message.set_content(body)
    _deliver(message.as_bytes(), server, sender, to, ctx)
    return Sent(to=to, message_id=message_id)


def _deliver(text: bytes, server: str, sender: str, to: str, ctx: ToolContext) -> None:
    host, _, port = server.rpartition(":")
    if not host or not port.isdigit():
        raise TerminalError(f"Not sent: STANDFAST_SMTP must be host:port, got {server!r}")
    smtp = smtplib.SMTP(timeout=HANDSHAKE)
    try:
        _announce(smtp, (host.strip("[]"), int(port)), sender, to)
        _hand_over(smtp, text, ctx)
        with contextlib.suppress(OSError):  # the mail is on its way, even if the goodbye fails
            smtp.quit()
    finally:
        smtp.close()


def _announce(smtp: smtplib.SMTP, server: tuple[str, int], sender: str, to: str) -> None:
    try:
        _accepted(smtp.connect(*server))
        smtp.ehlo_or_helo_if_needed()
        _accepted(smtp.mail(sender))
        _accepted(smtp.rcpt(to))
    except OSError as error:  # smtplib's errors are also OSErrors
        raise RetryableError(f"Not sent: the mail server could not be reached or understood ({error})") from error


def _hand_over(smtp: smtplib.SMTP, text: bytes, ctx: ToolContext) -> None:
    assert smtp.sock is not None
    smtp.sock.settimeout(DELIVERY)
    try:
        code, answer = smtp.data(text)
    except smtplib.SMTPDataError as refusal:  # the command was refused, so no text was sent
        return _accepted((refusal.smtp_code, refusal.smtp_error))
    except OSError as error:
        raise ToolDurabilityError("send_email", ctx.tool_call_id, reason=f"{type(error).__name__}: {error}") from error
    if not 200 <= code < 600:
        raise ToolDurabilityError("send_email", ctx.tool_call_id, reason="the mail server's answer makes no sense")
    smtp.sock.settimeout(HANDSHAKE)
    return _accepted((code, answer))


def _accepted(answer: tuple[int, bytes | str]) -> None:
    code, said = answer
    text = said if isinstance(said, str) else said.decode(errors="replace")
    what = f"the mail server answered {code} {text[:200]}".rstrip()
    if 400 <= code < 500:
        raise RetryableError(f"Not sent: {what}. It can be retried later")
    if not 200 <= code < 300:
        raise TerminalError(f"Not sent: {what}")
