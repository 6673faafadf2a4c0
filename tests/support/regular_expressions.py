"""Finds every regular expression of the code, and runs each on hostile texts; also the functions that read such data.

A separate program, since `re` lets nothing else run until it is done: only the kernel can end one that never is. Its
last line names the expression at which it was ended.

Each text has its own time limit, so that one on which a single expression takes quadratic time is noticed.
"""

import ast
import importlib
import math
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import combinations, permutations
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

ROOT = Path(__file__).parents[2]
SIZE = 300_000  # characters
MANY = 32  # texts of an expression; of one that has more, each is a quarter as long
CPU_SECONDS = 4  # for one text, which takes 0.3 s alone; in quadratic time, at a nanosecond a step, 90 s or 5.6 s
_OF_RE = {"compile", "search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"}


def sources() -> list[Path]:
    return sorted(path for name in ("standfast", "activities", "workflows") for path in (ROOT / name).rglob("*.py"))


def expressions() -> dict[tuple[str, int], set[str]]:
    """Return the expressions that are written down for `re`, with their flags, and how each is used.

    Raises:
        NameError: one is made while the program runs, and cannot be predicted.
    """
    found: dict[tuple[str, int], set[str]] = {}
    trees = {path: ast.parse(path.read_text()) for path in sources()}
    uses: dict[str, set[str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _OF_RE:
                    uses.setdefault(name, set()).add(method)
    for path, tree in trees.items():
        names = {
            id(node.value): node.targets[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[first, *_]) if (
                    method in _OF_RE
                ):
                    flags = [node.args[1]] if method == "compile" and len(node.args) > 1 else []
                    flags += [keyword.value for keyword in node.keywords if keyword.arg == "flags"]
                    pattern, number = _value(path, first), sum(int(_value(path, flag)) for flag in flags)
                    methods = {method} if method != "compile" else uses.get(names.get(id(node), ""), {"search"})
                    found.setdefault((pattern, number), set()).update(methods)
    return found


def declared() -> list[str]:
    """Return the patterns of arguments and fields, which pydantic reads with its own engine."""
    return [
        _value(path, keyword.value)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and not any(keyword.arg == "regex_engine" for keyword in node.keywords)
        for keyword in node.keywords
        if keyword.arg == "pattern"
    ]


def _value(path: Path, expression: ast.expr) -> Any:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    code = compile(ast.Expression(expression), str(path), "eval")
    with suppress(NameError):
        return eval(code, {"re": re})  # without its module: a framework's cannot be imported here
    try:
        return eval(code, vars(importlib.import_module(name)))
    except NameError as error:
        raise NameError(f"{path}:{expression.lineno}: write the expression down, at the top of the module") from error


def hostile_texts(pattern: str, flags: int = 0) -> Iterator[str]:
    """Yield texts that begin as the expression wants it, go on with much of the same, and end otherwise."""
    beginnings = list(_beginnings(pattern, flags))
    size = SIZE if len(beginnings) <= MANY else SIZE // 4
    for beginning, filler in beginnings:
        yield beginning + filler * (size // len(filler)) + "\x01"


def _beginnings(pattern: str, flags: int) -> Iterator[tuple[str, str]]:
    """Yield what a text begins with, and what it continues with."""
    for example in _examples(_parser.parse(pattern, flags)):
        for at in range(len(example) + 1):
            beside = example[max(0, at - 1) : at + 1]
            if len(beside) == 2 and beside.isalnum():
                continue  # in the middle of a word
            for filler in dict.fromkeys(["\n", "a", *beside, example[:at] or example]):
                yield example[:at], filler


def _examples(parsed: Any) -> list[str]:
    """Return short texts that an expression takes, one for each branch of it."""
    match list(parsed):
        case [(operation, (_, branches))] if str(operation) == "BRANCH":
            examples = [example for branch in branches for example in _examples(branch)]
        case _:
            examples = [_example(parsed)]
    return [example[:24] or "a" for example in examples]


def _example(parsed: Any) -> str:
    """Return a short text that an expression takes; each part that may be left out is there once."""
    return "".join(_of(operation, argument) for operation, argument in parsed)


def _of(operation: Any, argument: Any) -> str:
    match str(operation):
        case "LITERAL":
            return chr(argument)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _example(argument[2]) * max(1, min(argument[0], 3))
        case "SUBPATTERN":
            return _example(argument[3])
        case "BRANCH":
            return _example(argument[1][0])
        case "IN":
            return _of(*argument[0]) if str(argument[0][0]) != "NEGATE" else "a"
        case "CATEGORY":
            digit, space = _constants.CATEGORY_DIGIT, _constants.CATEGORY_SPACE
            return "0" if argument == digit else " " if argument == space else "a"
        case "RANGE":
            return chr(argument[0])
        case "ANY" | "NOT_LITERAL":
            return "a"
        case _:
            return ""


def run(pattern: str, flags: int, methods: set[str]) -> None:
    compiled = re.compile(pattern, flags)
    for text in hostile_texts(pattern, flags):
        _limit()
        for method in methods:
            match method:
                case "sub" | "subn":
                    getattr(compiled, method)("", text)
                case "finditer":
                    list(compiled.finditer(text))
                case _:
                    getattr(compiled, method)(text)


def hostile_calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls, with names, of functions that show or compare what anyone may have written."""
    from standfast.agent_loop.transcripts import read_transcript, repair_transcript
    from standfast.llm.json_tool_calls import plain_messages
    from standfast.llm.strict_schemas import held_schema
    from standfast.mcp.schemas import shown_schema
    from standfast.mcp.servers import tool_names
    from standfast.messages import changed_lines, edit_in_words, line_difference, person, visible, visible_json
    from standfast.notices.slack_messages import approval_message
    from standfast.notices.teams_messages import approval_card
    from standfast.temporal.client.history.audits import changes_between
    from standfast.web.page.forms import filled_form
    from standfast.web.page.rendering import render, render_whole

    chance = random.Random(7)

    def lines(size: int, width: int) -> str:
        return "\n".join("".join(chance.choices("ab", k=width)) for _ in range(size // (width + 1)))

    differing = [(lines(size, width), lines(size, width)) for size in (1_200, SIZE) for width in (5, 20)]
    # Lines that are alike, of which none is equal to another: 2.4 KB kept difflib.ndiff busy for a minute.
    shuffled = ["".join(letters) for letters in permutations("abcdef", 5)]
    even = {line for line in shuffled if sum(x > y for x, y in combinations(line, 2)) % 2}
    differing += [("\n".join(sorted(even)[:200]), "\n".join(sorted({*shuffled} - even)[:200]))]
    differing += [("a\nb\n" * SIZE, "b\na\n" * SIZE), ("a\n" * SIZE, "a\n" * (SIZE // 2))]
    for before, after in differing:
        item = {
            "kind": "approval", "name": "g", "message": "?", "since": "2026-01-01T00:00:00+00:00", "digest": "d",
            "shown": [{"kind": "diff", "before": before, "after": after}],
        }  # fmt: skip
        yield "line_difference", partial(line_difference, before, after)
        yield "changed_lines", partial(changed_lines, before, after)
        yield "Slack's message", partial(approval_message, "w", item, None)
        yield "Teams' card", partial(approval_card, "w", item, None)
        yield "changes", lambda before=before, after=after: [one.lines for one in changes_between(before, after)]
    for mark in (
        "*a ",
        "**a",
        "[",
        "![",
        "> ",
        "- ",
        "|",
        "|-\n",
        "a|b\n-|-\n",
        "`",
        "``a`",
        "~~a",
        "<",
        "&#",
        "\n",
        "1. ",
        "*_",
    ):
        for text in (mark * SIZE, mark * (20_000 // len(mark)), "\n".join(mark * depth for depth in range(140))):
            yield f"Markdown of {mark!r}", partial(render, text)
            yield f"Markdown of a gate of {mark!r}", partial(render_whole, text)
    for piece in ("\u0430b", "\u05d0 ", "\u2068", "\u2068a\u2069", "\u202e", "\xb9"):
        text = piece * (SIZE // len(piece))
        yield f"visible of {text[:2]!r}", partial(visible, text)
        yield f"visible_json of {text[:2]!r}", partial(visible_json, [text])
        yield f"person of {text[:2]!r}", partial(person, text)
    alike = [f"{'n' * 100}{number}" for number in range(4_000)]  # which are cut to the same name
    shape: dict[str, Any] = {"type": "object", "properties": {name: {} for name in alike}}
    yield "shown_schema of names alike", partial(shown_schema, shape)
    yield "tool_names of names alike", partial(tool_names, alike, "")
    wide, other = ({name: [number, {"a": at}] for number, name in enumerate(alike)} for at in "ab")
    yield "edit_in_words", partial(edit_in_words, wide, other)
    yield "edit_in_words of others", partial(edit_in_words, wide, {f"x{name}": 1 for name in wide})
    yield "filled_form", partial(filled_form, shape, wide)
    yield "held_schema", partial(held_schema, shape, recursive=True)
    said = [{"role": "user", "content": "a" * 100}] * 3_000
    yield "read_transcript", partial(read_transcript, said)
    yield "repair_transcript", lambda: repair_transcript(read_transcript(said))
    yield "plain_messages", lambda: plain_messages(read_transcript(said), [])
    calls = [{"id": f"c{number}", "name": "t", "arguments": {}} for number in range(3_000)]
    results = [{"role": "tool", "tool_call_id": f"c{number}", "content": "x"} for number in reversed(range(3_000))]
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    yield "read_transcript of many calls", partial(read_transcript, asked)
    yield "repair_transcript of many calls", lambda: repair_transcript(read_transcript(asked))


def _limit(seconds: int = CPU_SECONDS) -> None:
    end = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (end, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _done() -> None:
    _limit(60)  # the process still has to clear up
    _say("done")


def call_all() -> None:
    for name, call in hostile_calls():
        _say(name)
        _limit()
        call()
    _done()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(*given: str) -> None:
    if given == ("--calls",):
        call_all()
        return
    found = {(pattern, 0): {"fullmatch"} for pattern in given} or expressions()
    for (pattern, flags), methods in found.items():
        _say(ascii(pattern))
        run(pattern, flags, methods)
    _done()


if __name__ == "__main__":
    main(*sys.argv[1:])
