"""Explains the errors of D1, of Cloudflare's HTTP API and of the network: what happened, and what to do about it."""

import re
from typing import Any, Literal

from standfast.errors import InputError, StandfastError, StoreError

Outcome = Literal["nothing", "unknown", "refused"]

REFUSED = re.compile(r"malformed JSON(: SQLITE_ERROR| at offset|$)")  # by a guard; see `statements`
_AWAY = "does not answer; the operation can be repeated once it is back"
_TOKEN = (
    "refuses the API token: it is wrong, expired or revoked, or may not use this account's databases; make one with "
    "the permission 'D1: Edit' for the account, and give it as CLOUDFLARE_API_TOKEN"
)
_DATABASE = (
    "cannot be opened: the account has no such database; check the account's id and the database's id (wrangler d1 "
    "list), or make it (wrangler d1 create)"
)
_LIMITED = "is asked too often: Cloudflare limits the requests of an account; wait, or let fewer workers use it"
_DAILY = "has used up what its account may read or write in a day; wait until 00:00 UTC, or change the account's plan"
# By Cloudflare's code, then by the status of the answer, then by words in it.
_CODES = {10000: _TOKEN, 9109: _TOKEN, 6003: _TOKEN, 6111: _TOKEN, 7403: _TOKEN, 7404: _DATABASE, 971: _LIMITED}
_STATUSES = {401: _TOKEN, 403: _TOKEN, 404: _DATABASE, 429: _LIMITED}
_WORDS = {
    re.compile(r"SQLITE_TOOBIG|too big|too large", re.I): (
        "refuses a value that is too large: D1 keeps 2,000,000 bytes in a row; make it shorter, or keep it elsewhere "
        "and refer to it"
    ),
    re.compile(r"SQLITE_FULL|maximum DB size", re.I): (
        "is full: D1 keeps 10 GB in a database; delete old sessions, or use another one"
    ),
    re.compile(r"daily", re.I): _DAILY,
    re.compile(r"no such (table|column)", re.I): (
        "lacks a table or a column that its schema version says it has; restore it to an earlier time (wrangler d1 "
        "time-travel), or give another database"
    ),
    re.compile(r"readonly|read-only", re.I): "is read-only; give a token with the permission 'D1: Edit'",
    re.compile(r"SQLITE_CORRUPT|SQLITE_NOTADB", re.I): (
        "is damaged; restore it to an earlier time (wrangler d1 time-travel)"
    ),
}
# Transient errors. It is unknown whether the batch ran.
_PASSING = re.compile(r"overloaded|reset|connection lost|timed? ?out|exceeded timeout|internal error|try again", re.I)
# httpx and httpx2 raise these before a request is sent.
_UNSENT = ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol")


class D1Error(Exception):
    """An answer in an unexpected form, or none.

    Args:
        outcome: "nothing" if the batch did not run, and may be sent again; "unknown" if it may have run; "refused" if
            it was refused for good.
        code: Cloudflare's number for the error.
        wait: seconds after which it may be sent again, if the answer tells.
    """

    def __init__(
        self,
        message: str,
        *,
        outcome: Outcome,
        status: int | None = None,
        code: int | None = None,
        wait: float | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome, self.status, self.code, self.wait = outcome, status, code, wait


def is_refused_by_guard(error: BaseException) -> bool:
    return REFUSED.search(str(error)) is not None


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of a batch."""
    if isinstance(error, D1Error):
        return error.outcome
    if isinstance(error, StandfastError):
        return "refused"
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & set(_UNSENT):
        return "nothing"
    if isinstance(error, OSError) or names & {"TransportError", "HTTPError"} or _PASSING.search(str(error)):
        return "unknown"
    return "refused"


def translated(error: Exception, store: str) -> Exception:
    """Return the exception to raise for an error.

    Args:
        store: the store's name in messages.
    """
    if isinstance(error, StandfastError):
        return error
    if isinstance(error, UnicodeEncodeError):  # a lone surrogate
        return StoreError(f"The store {store} refused a text that UTF-8 cannot write: {error}")
    if isinstance(error, TypeError | ValueError):  # found before anything was sent
        return InputError(f"The store {store} cannot keep a value: {_said(error)}")
    return StoreError(f"The store {store} {_meaning(error)} ({_said(error)})")


def _meaning(error: Exception) -> str:
    for table, key in ((_CODES, getattr(error, "code", None)), (_STATUSES, getattr(error, "status", None))):
        if isinstance(key, int) and key in table:
            return table[key]
    for words, meaning in _WORDS.items():
        if words.search(str(error)):
            return meaning
    return "refused" if outcome_of(error) == "refused" else _AWAY


def _said(error: Exception) -> str:
    return str(error).partition("\n")[0][:300] or type(error).__name__


def read_answer(status: int, wait: str | None, text: str, body: Any) -> list[Any]:
    """Return the results from an answer of Cloudflare's HTTP API.

    Args:
        wait: the answer's `Retry-After`.
        text: the answer, for messages.
        body: the answer's JSON; None if it is not JSON.

    Raises:
        D1Error: the results are missing.
    """
    result = body.get("result") if isinstance(body, dict) else None
    if status == 200 and isinstance(result, list) and isinstance(body, dict) and body.get("success"):
        return result
    first = next(iter(_errors(body)), {})
    code, message = first.get("code"), first.get("message")
    outcome: Outcome = "refused"
    if status == 429 or code == 971:
        outcome = "nothing"
    elif status >= 500 or status == 408 or not isinstance(body, dict) or _PASSING.search(str(message)):
        outcome = "unknown"
    if not message:
        what = "JSON that says neither a result nor an error" if isinstance(body, dict) else f"{text[:80]!r}, not JSON"
        message = f"the answer to the request is {what}"
        if status == 200:
            message += "; is there another server or a proxy at the API's address?"
    raise D1Error(f"{status}: {message}", outcome=outcome, status=status, code=code, wait=_seconds(wait))


def _errors(body: Any) -> list[dict[str, Any]]:
    errors = body.get("errors") if isinstance(body, dict) else None
    return [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []


def _seconds(wait: str | None) -> float | None:
    return float(wait) if wait is not None and re.fullmatch(r"\d{1,6}(\.\d{1,6})?", wait) else None
