"""The command `holdfast`: a thin face of `holdfast.temporal`. What a command does stands in the module of its name."""

from typing import Any

import click

from holdfast.cli.dev import dev
from holdfast.errors import HoldfastError

__all__ = ["main"]


class _Commands(click.Group):
    """Commands whose expected errors are a message and exit code 1, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (HoldfastError, OSError) as error:  # an OSError is about a file or an address that the user gave
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="holdfast", message="%(version)s")
def main() -> None:
    """Durable LLM agents on Temporal."""


main.add_command(dev)
