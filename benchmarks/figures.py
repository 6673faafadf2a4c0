"""The figures in the documents: each comes from saved rows of the benchmarks.

    python benchmarks/figures.py           writes them into README.md and docs/performance.md
    python benchmarks/figures.py --check   lists rows that are older than the engine, and fails if there are any

Of each figure, the newest rows count: all that were saved at the same commit. Several give a range.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
ENGINE = ("agent_loop", "pipeline_loop", "stores", "runtime", "local", "temporal")  # below standfast/
MOST_COMMITS = 20  # to the engine since a row was saved; more of them may have made it slower
RENEWED_BY = {
    "in_process": "python benchmarks/in_process.py --save",
    "temporal": "python benchmarks/temporal.py --save --only {}",
}

# By document: what is measured, of which file and figure, and how it is written. `--only` is how Temporal's is renewed.
TABLE = [
    (
        "a tool step with its two durable writes",
        "in_process: a tool step against its two bare transactions",
        "{step_ms:.2f} ms; the two bare, blocking commits {blocking_floor_ms:.2f} ms: **{ratio_to_blocking:.2f}×**",
    ),
    (
        "the same against two commits awaited from a thread, as a server must make them",
        "in_process: a tool step against its two bare transactions",
        "**{ratio_to_awaited:.2f}×**",
    ),
    ("50 runs at once", "in_process: 50 runs at once", "**{steps_per_second:,.0f} steps a second**"),
    ("200 runs at once", "in_process: 200 runs at once", "**{steps_per_second:,.0f} steps a second**"),
    (
        "a step of a session of 1,000 steps, against one of 10",
        "in_process: a session of 1,000 steps against one of 10",
        "**{ratio:.2f}×**",
    ),
    (
        "deciding what comes next (`next_action`): a model call, tool calls",
        "in_process: next_action",
        "{call_model_us:.1f} µs, {call_tools_us:.1f} µs",
    ),
    (
        "a step on Temporal, against a bare workflow with the same activities and no store: a lone run",
        "temporal one-run: one run alone",
        "{step_ms:.0f} ms against {floor_ms:.0f} ms: **{ratio:.2f}×**",
    ),
    (
        "50 runs at once, steps a second against those of bare workflows",
        "temporal load: 50 runs at once",
        "{steps_per_second:.0f} against {floor_steps_per_second:.0f}: **{ratio:.2f}×**",
    ),
    (
        "200 runs at once",
        "temporal load: 200 runs at once",
        "{steps_per_second:.0f} against {floor_steps_per_second:.0f}: **{ratio:.2f}×**",
    ),
    (
        "with a PostgreSQL store: a lone run",
        "temporal postgres: PostgreSQL, one run alone",
        "{step_ms:.0f} ms against {floor_ms:.0f} ms: **{ratio:.2f}×**",
    ),
    (
        "history of a step with a result of 100 bytes, and of 10 KB",
        "temporal history: history, 100-byte results; history, 10,000-byte results",
        "{events_at_step_300:.0f} events, {bytes_at_step_300:,.0f} bytes",
    ),
    (
        "a worker is killed: until the run continues, on the same machine",
        "temporal killed: killed, restarted (at most once); killed, another one here (at most once)",
        "{seconds:.1f} s",
    ),
    (
        "a worker's memory for a pipeline that waits at a gate; effects of 1,000 of them, all approved",
        "temporal gates: 1,000 pipelines parked at a gate, then approved",
        "{kb_a_run:.0f} KB; {calls:,}",
    ),
    (
        "a worker's memory in the first and the last quarter of 1,000 steps with results of 10 KB",
        "temporal long: 1,000 steps of 10 KB",
        "{rss_first_quarter_mb:.0f} MB, {rss_last_quarter_mb:.0f} MB",
    ),
]
SENTENCES = (
    "On two slow shared cores, a tool step with its two durable writes takes {0[step_ms]:.2f} ms in process, "
    "{0[ratio_to_blocking]:.2f} times as long as the two bare commits. On Temporal a lone run takes {1[ratio]:.2f} "
    "times as long as a bare workflow with the same activities and no store."
)


class Spread(list[float]):
    """The values of a figure in several rows, written as a range."""

    def __format__(self, form: str) -> str:
        low, high = format(min(self), form), format(max(self), form)
        return low if low == high else f"{low}–{high}"


Row = dict[str, Any]


def rows_of(file: str) -> list[Row]:
    return [json.loads(line) for line in (RESULTS / f"{file}.jsonl").read_text().splitlines()]


def newest(where: str) -> list[Row]:
    """Return the rows that count for a figure: the last one that has it, and others of its commit."""
    file, _, names = where.partition(": ")
    first = names.split("; ")[0]
    having = [row for row in rows_of(file.split()[0]) if first in row["results"]]
    return [row for row in having if row["commit"] == having[-1]["commit"]]


def measured(where: str) -> dict[str, Spread]:
    names = where.partition(": ")[2].split("; ")
    found: dict[str, Spread] = {}
    for row in newest(where):
        for name in names:
            for key, value in row["results"][name].items():
                if not isinstance(value, str):
                    found.setdefault(key, Spread()).append(value)
    return found


def texts() -> dict[str, str]:
    """Return the figures as they stand in each document."""
    lines = [f"| {what} | {how.format_map(measured(where))} |" for what, where, how in TABLE]
    sentences = SENTENCES.format(measured(TABLE[0][1]), measured("temporal one-run: one run alone"))
    dates = sorted(row["date"] for _, where, _ in TABLE for row in newest(where))
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return {
        "docs/performance.md": "\n".join(["| | measured |", "|---|---|", *lines, "", f"Saved on {when}."]),
        "README.md": wrapped(sentences),
    }


def wrapped(text: str) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= 100:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


_BLOCK = re.compile(r"(?<=<!-- figures -->\n\n).*?(?=\n\n<!-- end of figures -->)", re.DOTALL)


def block_of(document: str) -> str:
    """Return what a document has between its marks."""
    (found,) = _BLOCK.findall((ROOT / document).read_text())
    return str(found)


def provenance() -> dict[str, str]:
    """Return what a new row records of the code that it measures."""
    return {"standfast": version("standfast"), "commit": _git("rev-parse", "HEAD")[:12]}


def stale(commits_since: Mapping[str, int]) -> list[str]:
    """Return the figures whose rows are older than the engine, and how to renew them.

    Args:
        commits_since: to the engine, since the commit of a row.
    """
    found = []
    for what, where, _ in TABLE:
        row = newest(where)[-1]
        if (count := commits_since[row["commit"]]) > MOST_COMMITS:
            file, _, only = where.partition(":")[0].partition(" ")
            found.append(
                f"{what}: of {row['date']}, {count} commits to the engine ago. "
                f"{RENEWED_BY[file].format(only)} renews it"
            )
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def _commits_since(commit: str) -> int:
    folders = [f"standfast/{folder}" for folder in ENGINE]
    return int(_git("rev-list", "--count", f"{commit}..HEAD", "--", *folders))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="list rows that are older than the engine")
    if parser.parse_args().check:
        commits = {row["commit"] for _, where, _ in TABLE for row in newest(where)}
        old = stale({commit: _commits_since(commit) for commit in commits})
        print(
            "\n".join([*old, "Then `python benchmarks/figures.py` writes the documents."] if old else ["All are new."])
        )
        return int(bool(old))
    for document, text in texts().items():
        path = ROOT / document
        path.write_text(path.read_text().replace(block_of(document), text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
