"""Errors that leave the outcome of a call open: which libraries' classes do, and their causes."""

import asyncio
import http.client
import smtplib
import socket
import ssl
import subprocess
import urllib.error
from collections.abc import Callable
from typing import Any

import asyncpg
import httpx
import httpx2
import pytest
import requests
import urllib3.exceptions

from standfast.errors import ModelError, ToolDurabilityError
from standfast.tools.open_errors import leaves_open


def made(name: str, *bases: type[BaseException], **attributes: Any) -> type[BaseException]:
    """Return a class of a library that is not installed here, by its qualified name."""
    module, _, kind = name.rpartition(".")
    return type(kind, bases or (Exception,), {"__module__": module, **attributes})


def broken(error: BaseException) -> str:
    raise ValueError("an error that cannot be read")


REQUEST = httpx.Request("POST", "http://shop")


def status(number: int) -> Exception:
    return httpx.HTTPStatusError("an error", request=REQUEST, response=httpx.Response(number))


ServerConnectionError = made("aiohttp.client_exceptions.ClientConnectionError")
ServerTimeoutError = made("aiohttp.client_exceptions.ServerTimeoutError", ServerConnectionError, TimeoutError)
RpcError = made("grpc.RpcError")


class Rpc(RpcError):  # type: ignore[misc, valid-type]  # noqa: N818
    """A call as grpc reports it: a subclass of its own, with the code and the details as methods."""

    def __init__(self, code: str, details: str = "") -> None:
        super().__init__(details)
        self._code, self._details = code, details

    def code(self) -> Any:
        return type("Code", (), {"name": self._code})

    def details(self) -> str:
        return self._details


MySQLError = made("pymysql.err.MySQLError")
OperationalError = made("psycopg.OperationalError", sqlstate=None)


@pytest.mark.parametrize(
    ("error", "is_open"),
    [
        # Python's own
        (TimeoutError(), True),
        (TimeoutError("_ssl.c:990: The handshake operation timed out"), False),
        (asyncio.IncompleteReadError(b"", 5), True),
        (ConnectionResetError(), True),
        (BrokenPipeError(), True),
        (ConnectionError("no answer"), True),
        (ConnectionRefusedError(), False),
        (socket.gaierror(), False),
        (ssl.SSLCertVerificationError(), False),
        (http.client.RemoteDisconnected(), True),
        (http.client.IncompleteRead(b""), True),
        (http.client.NotConnected(), False),
        (urllib.error.URLError(ConnectionRefusedError()), False),
        (subprocess.TimeoutExpired("pay", 5), True),
        (smtplib.SMTPServerDisconnected(), True),
        (smtplib.SMTPDataError(554, b"no"), False),
        (OSError("disk full"), False),
        (ValueError("no such customer"), False),
        # ours
        (ToolDurabilityError("pay", "c1"), True),
        (ModelError("no answer"), False),
        # clients of HTTP
        (httpx.ReadTimeout("x"), True),
        (httpx2.ReadTimeout("x"), True),
        (httpx.WriteError("x"), True),
        (httpx.RemoteProtocolError("x"), True),
        (httpx.DecodingError("x"), True),
        (httpx.ConnectError("x"), False),
        (httpx2.ConnectError("x"), False),
        (httpx.ConnectTimeout("x"), False),
        (httpx.PoolTimeout("x"), False),
        (httpx.UnsupportedProtocol("x"), False),
        (status(504), True),
        (status(502), True),
        (status(500), False),
        (status(404), False),
        (requests.ReadTimeout(), True),
        (requests.exceptions.ChunkedEncodingError(), True),
        (requests.ConnectionError(), True),
        (requests.ConnectTimeout(), False),
        (requests.exceptions.SSLError(), False),
        (requests.exceptions.InvalidURL(), False),
        (urllib3.exceptions.ProtocolError(), True),
        (urllib3.exceptions.ReadTimeoutError(None, "", "x"), True),  # type: ignore[arg-type]
        (urllib3.exceptions.ConnectTimeoutError(), False),
        (urllib3.exceptions.EmptyPoolError(None, "x"), False),  # type: ignore[arg-type]
        (ServerConnectionError(), True),
        (ServerTimeoutError(), True),
        (made("aiohttp.client_exceptions.ConnectionTimeoutError", ServerTimeoutError)(), False),
        (made("aiohttp.client_exceptions.ClientConnectorError", ServerConnectionError, OSError)(), False),
        (made("aiohttp.client_exceptions.ClientResponseError", status=504)(), True),
        (made("aiohttp.client_exceptions.ClientResponseError", status=400)(), False),
        (made("botocore.exceptions.ReadTimeoutError")(), True),
        (made("botocore.exceptions.HTTPClientError")(), True),
        (made("botocore.exceptions.EndpointConnectionError", made("botocore.exceptions.ConnectionError"))(), False),
        (made("botocore.exceptions.ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 504}})(), True),
        (made("botocore.exceptions.ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 400}})(), False),
        # remote calls
        (Rpc("DEADLINE_EXCEEDED"), True),
        (Rpc("UNAVAILABLE", "Socket closed"), True),
        (Rpc("UNAVAILABLE", "failed to connect to all addresses; last error: Connection refused"), False),
        (Rpc("UNAVAILABLE", "DNS resolution failed for shop:443"), False),
        (Rpc("INVALID_ARGUMENT"), False),
        (RpcError(), True),
        # databases
        (asyncpg.ConnectionDoesNotExistError(), True),
        (asyncpg.exceptions.TransactionResolutionUnknownError(), True),
        (asyncpg.CannotConnectNowError(), False),
        (asyncpg.UniqueViolationError(), False),
        (OperationalError("server closed the connection unexpectedly"), True),
        (OperationalError('connection to server at "db" failed: Connection refused'), False),
        (made("psycopg.errors.SerializationFailure", OperationalError, sqlstate="40001")(), False),
        (made("psycopg.errors.AdminShutdown", OperationalError, sqlstate="57P01")(), True),
        (made("psycopg_pool.PoolTimeout", OperationalError)(), False),
        (made("pymysql.err.OperationalError", MySQLError)(2013, "Lost connection to MySQL server"), True),
        (made("pymysql.err.OperationalError", MySQLError)(2003, "Can't connect to MySQL server"), False),
        (made("redis.exceptions.TimeoutError")(), True),
        (made("redis.exceptions.ConnectionError")(), True),
        (made("redis.exceptions.MaxConnectionsError", made("redis.exceptions.ConnectionError"))(), False),
        (made("aiohttp.client_exceptions.TooManyRedirects", status=307)(), True),
        (made("aiohttp.client_exceptions.ContentTypeError", status=200)(), True),
        (made("aiohttp.client_exceptions.ContentTypeError", status=403)(), False),
        (made("azure.core.exceptions.ServiceResponseError")(), True),
        (made("azure.core.exceptions.ServiceRequestError")(), False),
        (made("azure.core.exceptions.HttpResponseError", status_code=504)(), True),
        (made("stripe._error.APIError", made("stripe._error.StripeError", http_status=502))(), True),
        (made("stripe._error.CardError", made("stripe._error.StripeError", http_status=402))(), False),
        (made("grpclib.exceptions.StreamTerminatedError")(), True),
        (made("elastic_transport.ConnectionTimeout")(), True),
        (made("pika.exceptions.StreamLostError")(), True),
        (made("kafka.errors.KafkaTimeoutError")(), True),
        (made("playwright._impl._errors.TimeoutError")(), True),
        (made("mcp.shared.exceptions.McpError", error=made("mcp.types.ErrorData", code=408))(), True),
        (made("mcp.shared.exceptions.McpError", error=made("mcp.types.ErrorData", code=-32602))(), False),
        (made("pyodbc.OperationalError", made("pyodbc.Error"))("08S01", "link failure"), True),
        (made("pyodbc.IntegrityError", made("pyodbc.Error"))("23000", "duplicate"), False),
        # what cannot be looked at
        (made("shop.ShopTimeout", TimeoutError, __str__=broken)(), True),
        (made("shop.ShopError", httpx.HTTPStatusError, __init__=Exception.__init__, response=property(broken))(), True),
        (made("shop.ShopError", __str__=broken)(), False),
        (type("Nowhere", (Exception,), {"__module__": None})(), False),
        (made("pymongo.errors.AutoReconnect", made("pymongo.errors.ConnectionFailure"))(), True),
    ],
    ids=lambda one: f"{type(one).__module__}.{one!r}"[:90] if isinstance(one, BaseException) else str(one),
)
def test_the_class_of_an_error_says_whether_it_leaves_the_outcome_open(error: BaseException, is_open: bool) -> None:
    assert leaves_open(error) is is_open


def raised(*steps: Callable[[], BaseException], explicitly: bool = False) -> BaseException:
    """Return the last of some errors, each raised while the one before it was handled."""
    found: BaseException | None = None
    for step in steps:
        error = step()
        error.__context__ = found
        if explicitly:
            error.__cause__ = found
        found = error
    assert found is not None
    return found


def hidden() -> BaseException:
    error = raised(lambda: httpx.ReadTimeout("x"), ValueError)
    error.__suppress_context__ = True
    return error


def circle() -> BaseException:
    one, two = ValueError(), ValueError()
    one.__context__, two.__context__ = two, one
    return one


@pytest.mark.parametrize(
    ("error", "is_open"),
    [
        (raised(lambda: httpx.ReadTimeout("x"), ValueError), True),
        (raised(lambda: httpx.ReadTimeout("x"), ValueError, explicitly=True), True),
        (raised(lambda: httpx.ReadTimeout("x"), ValueError, KeyError), True),
        (raised(lambda: httpx.ConnectError("x"), ValueError), False),
        (raised(TimeoutError, lambda: httpx.ConnectTimeout("x")), False),
        (raised(ConnectionRefusedError, requests.ConnectionError), False),
        (raised(lambda: urllib3.exceptions.ProtocolError("x"), requests.ConnectionError), True),
        (raised(TimeoutError, urllib3.exceptions.ConnectTimeoutError, requests.ConnectTimeout), False),
        (raised(lambda: httpx.ReadTimeout("x"), lambda: status(404)), True),
        (raised(lambda: httpx.ReadTimeout("x"), lambda: httpx.ConnectError("x")), True),
        (hidden(), False),
        (circle(), False),
        (ExceptionGroup("x", [ValueError(), ExceptionGroup("y", [httpx.ReadTimeout("x")])]), True),
        (ExceptionGroup("x", [ValueError(), httpx.ConnectError("x")]), False),
        (raised(lambda: ExceptionGroup("x", [TimeoutError()]), ValueError), True),
    ],
    ids=ascii,
)
def test_what_is_behind_an_error_counts(error: BaseException, is_open: bool) -> None:
    assert leaves_open(error) is is_open


class ShopError(Exception):
    pass


class ShopBusyError(ShopError):
    pass


@pytest.mark.parametrize(
    ("error", "is_open"),
    [
        (ShopError(), True),
        (ShopBusyError(), False),
        (raised(ShopError, ValueError), True),
        (raised(TimeoutError, ShopBusyError), False),
        (ConnectionRefusedError(), False),
        (ExceptionGroup("x", [ShopBusyError(), ShopError()]), True),
        (ExceptionGroup("x", [ShopBusyError()]), False),
    ],
    ids=ascii,
)
def test_the_nearest_class_that_a_tool_names_decides(error: BaseException, is_open: bool) -> None:
    assert leaves_open(error, unknown=(ShopError,), not_run=(ShopBusyError,)) is is_open


def test_a_thousand_groups_in_each_other_are_looked_through() -> None:
    error: Exception = TimeoutError()
    for _ in range(5_000):
        error = ExceptionGroup("x", [error])
    assert leaves_open(error)
