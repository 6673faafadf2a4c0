"""The group of all commands, and their completion in a shell."""

from importlib import import_module

import click
from click.shell_completion import get_completion_class

from standfast.cli.commands import Commands

# Loading all of them takes longer than most commands run. Each is loaded when it is used; `--help` needs these lines.
_COMMANDS = {
    "dev": ("dev:dev", "Run a Temporal server, its Web UI, the page, and a worker, until Ctrl-C."),
    "worker": ("workers:worker", "Run a worker of an application until Ctrl-C."),
    "start": ("runs:start", "Start an agent (--message) or a pipeline (--input)."),
    "chat": ("chat:chat", "Talk with an agent in the terminal."),
    "ls": ("runs:list_runs", "List runs, the latest first."),
    "show": ("runs:show", "Show the progress of a run, or its result."),
    "watch": ("runs:watch", "Follow a run until it ends."),
    "pending": (
        "waiting:pending",
        "Show the items that wait for people, for one RUN or for all, the nearest deadline first.",
    ),
    "approve": ("decisions:approve", "Approve at gates of a run, after showing their contents."),
    "reject": ("decisions:reject", "Reject at gates of a run."),
    "standing": ("standing:standing", "List and end standing approvals, which approve later calls in advance."),
    "answer": ("messages:answer", "Answer a question of a run."),
    "message": ("messages:message", "Send a message to a run."),
    "resume": (
        "messages:resume",
        "Let a paused run try again, give up, or continue without a call or step that no worker has.",
    ),
    "resolve": ("messages:resolve", "Settle a call whose outcome is unknown."),
    "cancel": ("runs:cancel", "Cancel a run."),
    "export": ("runs:export_run", "Write a run as a checkpoint, plain JSON."),
    "import": ("runs:import_run", "Start a run that continues from a checkpoint."),
    "sessions": ("sessions:sessions", "List sessions in a store, show the messages of one, or delete one."),
    "store": ("store_commands:store", "Maintain a store: show its identity, place and size, move it, and restore it."),
    "mcp": ("mcp:mcp", "Log in at MCP servers, review their tool declarations, and serve agents as tools."),
    "web": ("web:web", "Serve the page: waiting items, runs, decisions; with --app also forms to start runs."),
    "replay": ("checks:replay", "Replay histories with this version of the code."),
    "doctor": ("checks:doctor", "Check versions, server, workers, runs and store."),
}


class Program(Commands):
    """The commands of `_COMMANDS`, each of which is loaded when it is used."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS and self.commands[cmd_name].callback is None:
            module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
            self.add_command(getattr(import_module(f"standfast.cli.{module}"), attribute), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        room = formatter.width - 6 - max(map(len, self.commands))
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(room)) for name, one in self.commands.items()])


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="standfast", message="%(version)s")
def main() -> None:
    """Durable LLM agents on Temporal.

    A RUN is a workflow id, such as triage/issue-42. The server is named as for the `temporal` command: by options,
    TEMPORAL_* or a profile.

    Exit codes: 0 success; 1 failure; 2 wrong usage; 3 the awaited run did not complete, or the started run failed at
    once; 130 Ctrl-C.
    """


for name, (_, text) in _COMMANDS.items():
    main.add_command(click.Command(name, help=text))


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands in a shell: eval "$(standfast completion bash)"."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "standfast", "_STANDFAST_COMPLETE").source())
