"""The common part of every command: server options, secrets from files, one-line errors, and true exit codes."""

import functools
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from standfast.errors import InputError, StandfastError

if TYPE_CHECKING:  # `--help` needs none of them
    from temporalio.client import Client

    from standfast.cli.outputs import Output

FAILED = 1  # the command failed
INCOMPLETE = 3  # the command succeeded, but the run that it waited for did not complete, or failed at once
STOPPED = 130  # by Ctrl-C, as in shells
SDK_LOG = "temporalio.core"  # the logger of the SDK's Rust core

_DEBUG = "standfast.debug"
_OPTIONS = {  # texts in the library's errors, and the command's terms for them
    'if_running="message"': "--say",
    "session_id": "--session",
    "user_id": "--user",
    "tenant_id": "--tenant",
    "run_key": "--run-key",
    "restart_of=": "--restart-of",
    "restart_from=": "--restart-from",
    "max_iterations": "--max-iterations",
    "db_filename": "--db-filename",
    "single_machine=True": "--single-machine",
    "send `decide`": "`standfast approve` decides",
    "pass llm=": "define llm in the application",
}

NAMES = (
    "STANDFAST_STORE",
    "STANDFAST_SECRET",
    "STANDFAST_LINK_SECRET",
    "STANDFAST_MCP_KEY",
    "STANDFAST_SLACK_SIGNING_SECRET",
    "STANDFAST_SLACK_TOKEN",
    "TEMPORAL_API_KEY",
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "CLOUDFLARE_API_TOKEN",
    "MINIMAX_API_KEY",
)


def read_secret_files() -> None:
    """Put each secret from a file into the environment of this process.

    Raises:
        InputError: a file cannot be read or is empty, or its variable is also set.
    """
    for name in NAMES:
        if not (path := os.environ.get(f"{name}_FILE")):
            continue
        if os.environ.get(name):
            raise InputError(f"{name} and {name}_FILE are both set: set one of them")
        try:
            value = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{name}_FILE: {path} cannot be read: {error}") from error
        if not value:
            raise InputError(f"{name}_FILE: {path} is empty")
        os.environ[name] = value


class IncompleteError(click.ClickException):
    """A run that a command started has failed."""

    exit_code = INCOMPLETE


class Commands(click.Group):
    """A group whose expected errors produce a message and an exit code instead of a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of use."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            read_secret_files()
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise  # click exits quietly on each of these, even if `head` has read enough
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            sys.exit(STOPPED)
        except Exception as error:
            if ctx.meta.get(_DEBUG) or not isinstance(error, _expected()):
                raise
            raise click.ClickException(_words(error)) from error


def _expected() -> tuple[type[Exception], ...]:
    # An OSError is about a file or an address from the user. The SDK is loaded only if a command has used it.
    service = sys.modules.get("temporalio.service")
    return (StandfastError, OSError, *(() if service is None else (service.RPCError,)))


def _words(error: Exception) -> str:
    from standfast.cli.outputs import shown

    text = str(error) or type(error).__name__
    if status := getattr(error, "status", None):  # of an RPCError
        says = "does not answer" if status.name == "UNAVAILABLE" else "says"
        text = f"The Temporal server {says}: {text}"
    if isinstance(error, StandfastError):
        for known, here in _OPTIONS.items():
            text = text.replace(known, here)
    text = shown(text)
    return f"{text}\n(--debug shows the traceback)" if isinstance(error, OSError) else text


def _remember_debug(ctx: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[_DEBUG] = ctx.meta.get(_DEBUG, False) or value
    return value


_OUTPUT = [
    click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(["text", "json", "jsonl"]),
        default="text",
        show_default=True,
        help="Format: text for people, one JSON document, or one line of JSON per item.",
    ),
    click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        show_default=True,
        help="Colours; auto means none in pipes or with NO_COLOR.",
    ),
    click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_remember_debug,
        help="Show the traceback of an error.",
    ),
]
_FILE = click.Path(exists=True, dir_okay=False)
_SERVER = {
    "address": click.option("--address", metavar="HOST:PORT", help="Temporal server.  [env: TEMPORAL_ADDRESS]"),
    "namespace": click.option("-n", "--namespace", help="Namespace.  [env: TEMPORAL_NAMESPACE]"),
    "profile": click.option("--profile", help="Profile of Temporal's configuration file.  [env: TEMPORAL_PROFILE]"),
    "api_key": click.option("--api-key", help="API key; turns TLS on.  [env: TEMPORAL_API_KEY]"),
    "tls": click.option("--tls/--no-tls", default=None, help="Use TLS, or do not.  [env: TEMPORAL_TLS]"),
    "tls_cert_path": click.option("--tls-cert-path", type=_FILE, help="Client certificate."),
    "tls_key_path": click.option("--tls-key-path", type=_FILE, help="Private key of the client certificate."),
    "tls_ca_path": click.option("--tls-ca-path", type=_FILE, help="CA of the server."),
    "tls_server_name": click.option("--tls-server-name", help="Name in the server's certificate."),
    "codec": click.option(
        "--codec",
        metavar="MODULE:ATTRIBUTE",
        help="Payload codec of the workers, for instance for encryption.  [env: STANDFAST_CODEC]",
    ),
}


def with_output(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its output options, and `output` as its first argument."""

    @functools.wraps(function)
    def run(*, form: Any, color: str, **options: Any) -> Any:
        from standfast.cli.outputs import Output

        return function(Output(form, {"always": True, "never": False}.get(color)), **options)

    for option in reversed(_OUTPUT):
        run = option(run)
    return run


ServerOptions = dict[str, Any]  # by the names of `_SERVER`


def server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the server options, as its argument `server`; see `client_of`."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        server = {name: options.pop(name) for name in _SERVER}
        return function(*arguments, server=server, **options)

    for option in reversed(_SERVER.values()):
        run = option(run)
    return run


def on_temporal(
    function: Callable[..., Awaitable[Any]],
    *,
    check: Callable[..., None] = lambda **options: None,
    needs_server: Callable[..., Awaitable[bool]] | None = None,
) -> Callable[..., Any]:
    """Give an async command the server and output options; its first arguments are the client and `output`.

    Args:
        check: gets the command's own options, and refuses wrong ones before a connection is made.
        needs_server: also gets them, and returns whether a server must answer; otherwise the client connects when it is
            used.
    """

    @functools.wraps(function)
    def run(output: "Output", server: dict[str, Any], **options: Any) -> Any:
        import asyncio

        check(**options)

        async def connected() -> Any:
            lazy = needs_server is not None and not await needs_server(**options)
            return await function(await client_of(server, lazy=lazy), output, **options)

        return asyncio.run(connected())

    return server_options(with_output(run))


async def client_of(server: ServerOptions, *, lazy: bool = False) -> "Client":
    """Connect to the server named by options.

    Args:
        lazy: connect when the client is first used.

    Raises:
        InputError: they contradict each other.
        StandfastError: no server answers.
    """
    from temporalio.service import TLSConfig

    from standfast.temporal import connect  # half a second, which `--help` need not wait for

    files = {name: server[name] for name in ("tls_cert_path", "tls_key_path", "tls_ca_path")}
    if (files["tls_cert_path"] is None) != (files["tls_key_path"] is None):
        raise click.UsageError("--tls-cert-path and --tls-key-path go together")
    read = {name: None if path is None else _read(path) for name, path in files.items()}
    more: dict[str, Any] = {"lazy": True} if lazy else {}
    if any(read.values()) or server["tls_server_name"]:
        if server["tls"] is False:
            raise click.UsageError("--no-tls does not go with other options of TLS")
        more["tls"] = TLSConfig(
            server_root_ca_cert=read["tls_ca_path"],
            domain=server["tls_server_name"],
            client_cert=read["tls_cert_path"],
            client_private_key=read["tls_key_path"],
        )
    elif server["tls"] is not None:
        more["tls"] = server["tls"]
    if server["api_key"] is not None:
        more["api_key"] = server["api_key"]
    if codec := server["codec"] or os.environ.get("STANDFAST_CODEC"):
        sys.path.append(os.getcwd())  # so that the user's modules are found, as for APP
        more["codec"] = codec
    log_as_python_does()
    return await connect(server["address"], namespace=server["namespace"], profile=server["profile"], **more)


def log_as_python_does(metrics: str | None = None) -> None:
    """Keep the SDK's Rust core off standard output, where programs read JSON; only workers show its log.

    It reports a lost server for every call and attempt; here the command that needs the server reports it once. Done
    once per process.

    Args:
        metrics: `HOST:PORT` at which the SDK serves its own and standfast's metrics for Prometheus.

    Raises:
        InputError: the address cannot be used.
    """
    import logging

    from temporalio.runtime import LogForwardingConfig, LoggingConfig, PrometheusConfig, Runtime, TelemetryConfig

    log = logging.getLogger(SDK_LOG)
    if log.handlers:
        return
    log.addHandler(logging.NullHandler())
    plain = LogForwardingConfig(log, append_target_to_name=False, prepend_target_on_message=False)
    served = None if metrics is None else PrometheusConfig(bind_address=metrics, durations_as_seconds=True)
    telemetry = TelemetryConfig(logging=LoggingConfig(LoggingConfig.default.filter, plain), metrics=served)
    try:
        runtime = Runtime(telemetry=telemetry)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"Cannot serve metrics on {metrics}: {error}") from error
    Runtime.set_default(runtime, error_if_already_set=False)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
