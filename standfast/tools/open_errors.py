"""Decides from an error whether the call that raised it may still have taken effect.

A read timeout or a connection that broke after the request was sent leaves the outcome open: the other side may have
done the work. A refused connection or a connect timeout does not. The table names the classes of common libraries, so
none of them must be imported.
"""

from collections.abc import Callable, Iterator
from typing import Any

from standfast.errors import DefinitionError

ErrorTypes = tuple[type[BaseException], ...]
_Judge = Callable[[Any], bool | None]
GATEWAY_STATUSES = (502, 504, 520, 524)  # which a server behind the gateway may not have sent
_LIBPQ_UNSENT = ("connection failed", "connection to server ", "could not connect", "could not translate host name")


def leaves_open(error: BaseException, *, unknown: ErrorTypes = (), not_run: ErrorTypes = ()) -> bool:
    """Return whether the call that raised an error may have taken effect.

    This looks at the error, the errors behind it (`__cause__`, or `__context__` unless it is suppressed) and the
    members of a group. A library's own error explains the Python errors behind it: a connect timeout, for instance, has
    a plain `TimeoutError` as its cause.

    Args:
        unknown, not_run: further classes, which take precedence over the table. The class nearest to the error's own
            decides.
    """
    waiting = [error]
    while waiting:
        in_doubt = is_known = False
        for one in _behind(waiting.pop()):
            if (said := _nearest(type(one), unknown, not_run)) is not None:
                in_doubt, is_known = said, not said
                break
            if isinstance(one, BaseExceptionGroup):
                waiting += one.exceptions
                break
            if (found := _judged(one)) is None:
                continue
            judge, is_builtin = found
            is_open = _asked(judge, one) if callable(judge) else judge
            if is_open and not (is_known and is_builtin):
                return True
            is_known = is_known or is_open is False
            in_doubt = in_doubt or judge is None
        if in_doubt and not is_known:
            return True
    return False


def check_error_types(owner: str, name: str, value: object) -> None:
    """Check that a declaration lists error classes.

    Raises:
        DefinitionError: it does not.
    """
    if not isinstance(value, tuple) or not all(
        isinstance(one, type) and issubclass(one, BaseException) for one in value
    ):
        raise DefinitionError(f"{owner}: {name} must be a tuple of classes of errors, got {value!r:.80}")


def check_open_errors(owner: str, unknown: object, not_run: object) -> None:
    """Check both lists of a declaration.

    Raises:
        DefinitionError: one of them is invalid, or a class is in both.
    """
    check_error_types(owner, "unknown", unknown)
    check_error_types(owner, "not_run", not_run)
    if both := {*unknown} & {*not_run}:  # type: ignore[misc]  # they are tuples by now
        raise DefinitionError(f"{owner}: {min(one.__name__ for one in both)} is in both unknown and not_run")


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors behind it, as a traceback shows them."""
    seen = set[int]()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        context = None if following.__suppress_context__ else following.__context__
        following = following.__cause__ or context


def _nearest(kind: type[BaseException], unknown: ErrorTypes, not_run: ErrorTypes) -> bool | None:
    return next((one in unknown for one in kind.__mro__ if one in unknown or one in not_run), None)


def _judged(error: BaseException) -> tuple[bool | _Judge | None, bool] | None:
    """Return the table's entry for an error, and whether it is for a built-in class; None without an entry."""
    for kind in type(error).__mro__:
        name = f"{str(kind.__module__).partition('.')[0]}.{kind.__name__}"
        if name in _TABLE:
            return _TABLE[name], name.partition(".")[0] in _PYTHON
    return None


def _asked(judge: _Judge, error: BaseException) -> bool | None:
    try:
        return judge(error)
    except Exception:  # a __str__ or a property of the error that raises: it is unknown
        return True


# --- errors that carry a code ---------------------------------------------------------------------------------------


def _gateway(error: Any) -> bool | None:
    """A gateway's status leaves open what the server behind it did; any other status is the server's own answer."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        names = ("status", "status_code", "http_status", "code")
        places = [(response, "status_code"), *((error, name) for name in names)]
        status = next((getattr(one, name) for one, name in places if hasattr(one, name)), None)
    return True if status in GATEWAY_STATUSES else None


def _timeout(error: Any) -> bool | None:
    """A TLS handshake that timed out does not have a separate class; nothing was sent before it."""
    return "handshake operation timed out" not in str(error)


def _rpc(error: Any) -> bool | None:
    """gRPC statuses that the library itself creates when it loses a call."""
    code = getattr(error, "code", None)
    found = code() if callable(code) else getattr(error, "status", None)
    details = getattr(error, "details", None)
    text = str((details() if callable(details) else None) or error)
    if any(said in text for said in ("failed to connect", "Connection refused", "DNS resolution failed", "dns error")):
        return False
    name = getattr(found, "name", None)
    return name is None or name in ("CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE")


def _answered(error: Any) -> bool | None:
    """An unreadable answer: of a success, the content is unknown."""
    return _gateway(error) or getattr(error, "status", 200) < 300


def _mcp(error: Any) -> bool | None:
    """MCP: a request that timed out, or whose connection was closed."""
    return getattr(getattr(error, "error", None), "code", None) in (408, -32000, -32001)


def _odbc(error: Any) -> bool | None:
    """ODBC: the states of a lost connection, of an unconfirmed commit, and of a timeout."""
    return next(iter(error.args), None) in ("08S01", "08007", "HYT00", "40003")


def _postgres(error: Any) -> bool | None:
    """PostgreSQL drivers: without a state, the connection was not made or was lost; with one, the server answered."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state is None:
        return not str(error).startswith(_LIBPQ_UNSENT)
    return state in ("08000", "08003", "08006", "08007", "08P01", "40003", "57P01", "57P02", "57P05")


def _mysql(error: Any) -> bool | None:
    """MySQL drivers: the codes of a connection that was lost, or a server that shut down, during a statement."""
    code = getattr(error, "errno", None) or next(iter(error.args), None)
    return code in (1053, 1927, 2006, 2013, 2055)


# --- the table ------------------------------------------------------------------------------------------------------

_PYTHON = ("builtins", "asyncio", "http", "smtplib", "socket", "ssl", "subprocess", "urllib")
_HTTPX = (
    "TransportError TimeoutException NetworkError RemoteProtocolError DecodingError TooManyRedirects",
    "ConnectError ConnectTimeout PoolTimeout ProxyError UnsupportedProtocol LocalProtocolError ConnectionNotAvailable",
)

# By library: classes that leave the outcome open, and their subclasses that do not.
_CLASSES: dict[str, tuple[str, str]] = {
    "builtins": (
        "ConnectionResetError ConnectionAbortedError BrokenPipeError",
        "ConnectionRefusedError",
    ),
    "asyncio": ("IncompleteReadError", ""),
    "http": ("RemoteDisconnected BadStatusLine IncompleteRead", ""),
    "smtplib": ("SMTPServerDisconnected", "SMTPConnectError SMTPHeloError SMTPAuthenticationError"),
    "socket": ("", "gaierror herror"),
    "ssl": ("", "SSLError"),
    "subprocess": ("TimeoutExpired", ""),
    "standfast": ("ToolDurabilityError", "ModelError"),  # a model's answer is not an effect
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "httpcore": _HTTPX,
    "httpcore2": _HTTPX,
    "requests": (
        "Timeout ChunkedEncodingError ContentDecodingError TooManyRedirects",
        "ConnectTimeout ProxyError SSLError",
    ),
    "urllib3": (
        "TimeoutError ProtocolError DecodeError",
        "ConnectTimeoutError NewConnectionError EmptyPoolError ClosedPoolError FullPoolError ProxyError SSLError",
    ),
    "aiohttp": (
        "ClientConnectionError ClientPayloadError TooManyRedirects BadHttpMessage",
        "ClientConnectorError ConnectionTimeoutError ServerFingerprintMismatch ClientHttpProxyError",
    ),
    "grpc": ("FutureTimeoutError", ""),
    "botocore": (
        "ReadTimeoutError ConnectionClosedError ResponseStreamingError IncompleteReadError",
        "ConnectTimeoutError EndpointConnectionError ProxyConnectionError SSLError",
    ),
    "aiosmtplib": (
        "SMTPServerDisconnected SMTPTimeoutError SMTPReadTimeoutError",
        "SMTPConnectError SMTPConnectTimeoutError SMTPConnectResponseError",
    ),
    "mysql": ("ReadTimeoutError WriteTimeoutError", "ConnectionTimeoutError PoolError"),
    "psycopg": ("", "PipelineAborted ConnectionTimeout"),
    "psycopg_pool": ("", "PoolTimeout PoolClosed TooManyRequests"),
    "redis": ("TimeoutError", "MaxConnectionsError AuthenticationError AuthorizationError BusyLoadingError"),
    "pymongo": (
        "ConnectionFailure WriteConcernError",
        "ServerSelectionTimeoutError WaitQueueTimeoutError",
    ),
    "valkey": ("TimeoutError", "MaxConnectionsError AuthenticationError AuthorizationError BusyLoadingError"),
    "websockets": ("ConnectionClosed", ""),
    "azure": (
        "ServiceResponseError ServiceResponseTimeoutError IncompleteReadError DecodeError",
        "ServiceRequestError ServiceRequestTimeoutError",
    ),
    "grpclib": ("StreamTerminatedError", ""),
    "elastic_transport": ("ConnectionTimeout", "TlsError"),
    "pika": (
        "ConnectionClosed StreamLostError AMQPHeartbeatTimeout",
        "AMQPConnectorException ProbableAuthenticationError ProbableAccessDeniedError",
    ),
    "kafka": ("KafkaTimeoutError RequestTimedOutError KafkaConnectionError", "NoBrokersAvailable"),
    "aiokafka": ("KafkaTimeoutError RequestTimedOutError KafkaConnectionError", ""),
    "nats": ("TimeoutError", "NoServersError NoRespondersError"),
    "cassandra": ("OperationTimedOut WriteTimeout WriteFailure ConnectionShutdown", ""),
    "tornado": ("HTTPTimeoutError HTTPStreamClosedError StreamClosedError", ""),
    "anyio": ("BrokenResourceError EndOfStream IncompleteRead", ""),
    "asyncssh": ("ConnectionLost", ""),
    "playwright": ("TimeoutError TargetClosedError", ""),
    "selenium": ("TimeoutException", ""),
}

_TABLE: dict[str, bool | _Judge | None] = {
    f"{library}.{name}": is_open
    for library, classes in _CLASSES.items()
    for is_open, names in zip((True, False), classes, strict=True)
    for name in names.split()
} | {
    # None: the error behind it decides; without one, the outcome is open.
    "builtins.ConnectionError": None,
    "requests.ConnectionError": None,
    "urllib3.MaxRetryError": None,
    "botocore.ConnectionError": None,
    "botocore.HTTPClientError": None,
    "redis.ConnectionError": None,
    "valkey.ConnectionError": None,
    "elastic_transport.ConnectionError": None,
    "builtins.TimeoutError": _timeout,
    "httpx.HTTPStatusError": _gateway,
    "httpx2.HTTPStatusError": _gateway,
    "requests.HTTPError": _gateway,
    "aiohttp.ClientResponseError": _gateway,
    "aiohttp.ContentTypeError": _answered,
    "urllib.HTTPError": _gateway,
    "botocore.ClientError": _gateway,
    "google.GoogleAPICallError": _gateway,
    "azure.HttpResponseError": _gateway,
    "github.GithubException": _gateway,
    "googleapiclient.HttpError": _gateway,
    "kubernetes.ApiException": _gateway,
    "slack_sdk.SlackApiError": _gateway,
    "stripe.StripeError": _gateway,
    "twilio.TwilioRestException": _gateway,
    "mcp.McpError": _mcp,
    "mcp.MCPError": _mcp,
    "grpc.RpcError": _rpc,
    "grpclib.GRPCError": _rpc,
    "temporalio.RPCError": _rpc,
    "psycopg.OperationalError": _postgres,
    "psycopg2.OperationalError": _postgres,
    "asyncpg.PostgresError": _postgres,
    "pymysql.MySQLError": _mysql,
    "MySQLdb.MySQLError": _mysql,
    "asyncmy.MySQLError": _mysql,
    "mysql.Error": _mysql,
    "pyodbc.Error": _odbc,
}
