"""`python -m examples.demo`: its options, its errors, its exit code."""

import argparse
import asyncio
import sys
from pathlib import Path

from standfast import StandfastError


def main() -> int:
    """Run the demo; 0 if everything came out as it has to, 1 if not, 130 if it was stopped before that was known."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal need not know every character
    try:
        return asyncio.run(_play(_options()))
    except StandfastError as error:
        print(f"demo: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"demo: {error}. All that it needs: pip install -e '.[application]'", file=sys.stderr)
    except KeyboardInterrupt:  # before there was anything to stop
        return 130
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=sys.modules[__package__].__doc__)
    folder = Path(__file__).parents[2] / ".cache" / "demo"
    parser.add_argument(
        "--folder", type=_absolute, default=folder, help="for data and logs, emptied first (.cache/demo)"
    )
    for name, usual in (("port", 7233), ("ui-port", 8233)):
        parser.add_argument(f"--{name}", type=int, help=f"0 for a free one ({usual}, or a free one if it is in use)")
    return parser.parse_args()


def _absolute(text: str) -> Path:
    return Path(text).absolute()


async def _play(options: argparse.Namespace) -> int:
    from examples.demo.screen import Screen
    from examples.demo.story import Story
    from examples.demo.world import open_world
    from standfast.testing import until_stopped

    screen, stories = Screen(), list[Story]()

    async def tell() -> None:
        async with open_world(options.folder, options.port, options.ui_port) as world:
            stories.append(Story(world, screen))
            await stories[0].tell()

    screen.say(screen.bold("standfast: an agent on Temporal, and a worker that dies in the middle of a post"), "")
    if await until_stopped(tell()):
        screen.say("", "Stopped.")
    wrong = stories[0].wrong if stories else None
    return 130 if wrong is None else 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
