"""Serves people over HTTP: the options for the address, the proxy and the people; serving until a stop."""

import asyncio
import os
import socket
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from standfast.cli.inputs import PORT
from standfast.cli.logs import log_safely
from standfast.errors import DefinitionError, InputError, did_you_mean
from standfast.runtime.processes import until_stopped

if TYPE_CHECKING:
    from standfast.web import Access, Person

Command = TypeVar("Command", bound=Callable[..., Any])


def listening_options(what: str, port: int) -> Callable[[Command], Command]:
    """Return a decorator that adds a server's options: the address, the proxy and the people.

    Args:
        what: the server, as text.
        port: the default port.
    """
    options = [
        click.option(
            "--host",
            default="127.0.0.1",
            show_default=True,
            help="Address to listen on; a non-local one needs --people.",
        ),
        click.option("--port", type=PORT, default=port, show_default=True, help="Port; 0 for a free one."),
        click.option("--name", "names", multiple=True, help=f"Host name of {what}; may be repeated."),
        click.option(
            "--people",
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE.toml",
            help=f"People who may use {what}.",
        ),
        click.option("--proxy-header", metavar="HEADER", help="Header in which a proxy names the signed-in person."),
        click.option(
            "--proxy-from",
            "proxies",
            multiple=True,
            metavar="ADDRESS|unix:PATH",
            help="Address of that proxy, or a socket only for it, whose X-Forwarded-* headers are trusted; may be "
            "repeated.",
        ),
        click.option(
            "--root-path",
            default="",
            metavar="PATH",
            help=f"Path under which a proxy serves {what}, such as /ops; the proxy may pass it on or remove it.",
        ),
        click.option(
            "--cors",
            multiple=True,
            metavar="ORIGIN",
            help="Origin whose pages may send requests with a token; may be repeated.",
        ),
        click.option(
            "--https", is_flag=True, help="People use https, which ends at a proxy; cookies are sent only by https."
        ),
    ]

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


def check_proxy(*, people: str | None, proxy_header: str | None, proxies: tuple[str, ...], **_: Any) -> None:
    if proxy_header is not None and people is None:
        raise click.UsageError(
            "--proxy-header needs --people: the header identifies people, but does not define their rights."
        )
    if proxy_header is not None and not proxies:
        raise click.UsageError("--proxy-header needs --proxy-from: otherwise anyone could send the header.")


def access_of(
    people: str | None,
    local: Any,
    https: bool,
    proxy_header: str | None,
    proxies: tuple[str, ...],
    note: Callable[[str], None],
) -> "Access":
    from standfast.web import Access
    from standfast.web.identity.people import is_digest, token_digest

    given: dict[str, Any] = {"people": [], "local": local, "https": https, "proxy_header": proxy_header}
    given["proxies"] = proxies
    for name, variable in (("secret", "STANDFAST_SECRET"), ("link_secret", "STANDFAST_LINK_SECRET")):
        if secret := os.environ.get(variable):
            given[name] = secret
    if people is not None:
        given["people"] = people_in(people)
        for person in given["people"]:
            if person.token is not None and not is_digest(person.token):
                note(
                    f"{people} has the token of {person.name} in the clear. Replace it with: token = "
                    f'"{token_digest(person.token)}"'
                )
    return Access(**given)


def people_in(path: str) -> "list[Person]":
    """Return the people of FILE.toml.

    Raises:
        InputError: it cannot be read; names the setting.
    """
    from standfast.web import Person

    tables = "must have tables [people.NAME] with role and token"
    try:
        read = tomllib.loads(Path(path).read_text())
        people = read.get("people")
        if not isinstance(people, dict):
            has = ", ".join(map(repr, read)) or "nothing"
            raise InputError(f"{path}: {tables}; it has {has}")
        for name, rules in people.items():
            if not isinstance(rules, dict):
                raise InputError(f"{path}: {tables}; under [people], {name} is not a table")
        return [Person(name=name, **_rules(name, rules)) for name, rules in people.items()]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError) as error:
        raise InputError(f"{path}: {tables}: {error}") from error
    except DefinitionError as error:
        raise InputError(f"{path}: {error}") from error


def _rules(name: str, rules: dict[str, Any]) -> dict[str, Any]:
    """Return a person's settings in FILE.toml.

    Raises:
        DefinitionError: one is unknown, or a name with dots is not quoted.
    """
    from standfast.web import Person

    known = [one.name for one in fields(Person) if one.name != "name"]
    for setting, value in rules.items():
        if isinstance(value, dict):
            raise DefinitionError(f'put a name with dots in quotes: [people."{name}.{setting}"]')
        if setting not in known:
            raise DefinitionError(
                f"person {name}: no setting is called '{setting}'; there are {', '.join(known)}"
                f"{did_you_mean(setting, known)}"
            )
    return rules


async def serve_until_stopped(
    app: Any, host: str, port: int, proxies: Sequence[str], tell: Callable[[str], None]
) -> None:
    """Serve an application until this process is stopped.

    Args:
        proxies: the server also listens at the sockets of proxies that have one.
        tell: called with the address.
    """
    from standfast.web.serving.servers import Sparing, server_of

    log_safely(Sparing())
    server = server_of(app)
    with ExitStack() as listening:
        listeners = [listening.enter_context(listening_at(host, port))]
        listeners += [listening.enter_context(_at_socket(one[5:])) for one in proxies if one.startswith("unix:")]
        at = listeners[0].getsockname()
        tell(f"http://{at[0]}:{at[1]}")
        await _serve(server, listeners, app.state.close)


async def _serve(server: Any, listeners: Sequence[socket.socket], close: Callable[[], object]) -> None:
    """Serve until this process is stopped.

    Args:
        close: ends connections that would keep the server from ending.
    """

    async def serve() -> None:
        serving = asyncio.ensure_future(server.serve(sockets=list(listeners)))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            close()
            server.should_exit = True
            await asyncio.wait({serving})
            raise

    await until_stopped(serve())


def listening_at(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(f"Cannot listen on {host}:{port}: {error.strerror or error}") from error


@contextmanager
def _at_socket(path: str) -> Iterator[socket.socket]:
    """Listen at a Unix socket for its owner and group, and remove it at the end."""
    with suppress(ConnectionRefusedError, FileNotFoundError), socket.socket(socket.AF_UNIX) as other:
        other.connect(path)
        raise InputError(f"Another process already listens on {path}")
    with suppress(FileNotFoundError):  # left by a killed process
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o117)
        try:
            listener.bind(path)
        finally:
            os.umask(before)
        try:
            yield listener
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)
