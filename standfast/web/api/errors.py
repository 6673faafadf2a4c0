"""Turns errors into answers of one shape: a code, what happened, and what to do."""

from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from temporalio.service import RPCError, RPCStatusCode

from standfast.errors import InputError, NotConfirmedError, SessionAccessDeniedError, StandfastError, StoreError
from standfast.messages import explain
from standfast.web.serving.statuses import NO_RUN

_CODES = {400: "BAD_REQUEST", 401: "UNAUTHENTICATED", 403: "FORBIDDEN", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED",
          406: "NOT_ACCEPTABLE", 409: "CONFLICT", 413: "TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE", 422: "INPUT_ERROR",
          429: "TOO_MANY_REQUESTS", 500: "BROKEN", 502: "TEMPORAL_UNAVAILABLE", 503: "STORE_ERROR",
          504: "NOT_CONFIRMED"}  # fmt: skip
TOKEN = "Send the header Authorization: Bearer <token>."
_DO = {
    400: "Fix the request; see /api/v1/openapi.json.",
    401: TOKEN,
    403: "Ask the maintainer of the people file for the role, scope or tenant.",
    404: "GET /api/v1/runs lists the runs that you may see.",
    405: "Use a method from the header Allow.",
    406: "Accept application/json or text/event-stream.",
    409: "Read the run again (GET /api/v1/runs/{run}), and act on its current state.",
    413: "Send less, or pass large data by URL.",
    415: "Send JSON, with Content-Type: application/json.",
    422: "Fix the field named in the message.",
    429: "Wait for the time in the header Retry-After.",
    500: "See the log of the page.",
    502: "Try again later, with the same Idempotency-Key.",
    503: "Try again later, with the same Idempotency-Key.",
    504: "Send it again with the same Idempotency-Key: it counts once. Or check the run.",
}


class ForbiddenError(HTTPException):
    """A request that is refused because it lacks something, not because of its sender.

    Args:
        do: advice for its sender.
    """

    def __init__(self, detail: str, *, do: str) -> None:
        super().__init__(403, detail)
        self.do = do


def status_of(error: Exception) -> int:
    """Return the HTTP status for an error."""
    match error:
        case HTTPException():
            return error.status_code
        case ValidationError():
            return 422
        case RPCError():
            return 400 if error.status == RPCStatusCode.INVALID_ARGUMENT else 502
        case NotConfirmedError():
            return 504
        case StoreError():
            return 503
        case SessionAccessDeniedError():
            return 404
        case _ if any(words in str(error) for words in NO_RUN):
            return 404
        case InputError() | StandfastError():
            return 409
    return 500


def problem(error: Exception) -> dict[str, str]:
    """Return an error in the answer's shape."""
    status = status_of(error)
    code, message = _CODES.get(status, "BAD_REQUEST"), str(error)
    if isinstance(error, HTTPException):
        message = error.detail
    elif isinstance(error, ValidationError):
        message = explain(error)
    elif isinstance(error, StandfastError) and status not in (404, 422):
        code = error.code
    elif isinstance(error, RPCError) and status == 502:
        message = "The Temporal server does not answer"
    elif status == 500:
        message = "The page itself has failed; see its log"
    return {"code": code, "message": message, "do": getattr(error, "do", _DO.get(status, _DO[400]))}


def refusal(error: Exception) -> Response:
    """Return the answer to a request that was not done."""
    headers: dict[str, Any] = dict(getattr(error, "headers", None) or {})
    if status_of(error) == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": problem(error)}, status_of(error), headers)
