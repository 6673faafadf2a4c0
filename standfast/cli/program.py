"""The group of all commands, and their completion in a shell."""

import click
from click.shell_completion import get_completion_class

from standfast.cli.chat import chat
from standfast.cli.checks import doctor, replay
from standfast.cli.commands import Commands
from standfast.cli.decisions import approve, reject
from standfast.cli.dev import dev
from standfast.cli.mcp import mcp, serve
from standfast.cli.messages import answer, message, resolve, resume
from standfast.cli.runs import cancel, export_run, import_run, list_runs, show, start, watch
from standfast.cli.sessions import sessions
from standfast.cli.standing import standing
from standfast.cli.store_commands import prune, store
from standfast.cli.waiting import pending
from standfast.cli.web import web
from standfast.cli.workers import worker


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="standfast", message="%(version)s")
def main() -> None:
    """Durable LLM agents on Temporal.

    A RUN is a workflow id, such as triage/issue-42. The server is named as for the `temporal` command: by options,
    TEMPORAL_* or a profile.

    Exit codes: 0 success; 1 failure; 2 wrong usage; 3 the awaited run did not complete, or the started run failed at
    once; 130 Ctrl-C.
    """


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell: eval "$(standfast completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "standfast", "_STANDFAST_COMPLETE").source())


for command in (
    dev,
    worker,
    start,
    chat,
    list_runs,
    show,
    watch,
    pending,
    approve,
    reject,
    standing,
    answer,
    message,
    resume,
    resolve,
    cancel,
    export_run,
    import_run,
    sessions,
    store,
    mcp,
    web,
    replay,
    doctor,
    completion,
):
    main.add_command(command)
store.add_command(prune)
mcp.add_command(serve)
