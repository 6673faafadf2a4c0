"""The scripted model's rules: words that show the kind and severity of an issue, and how similar two titles are.

An issue's text is only compared with these words. Instructions in it are not followed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from activities.issues import Issue, IssueSummary, Label

Severity = Literal["severe", "normal", "unclear"]

Rule = tuple[re.Pattern[str], tuple[Label, ...], Severity]
# The first match decides. Severe rules come first, so that other words cannot hide them.
RULES: tuple[Rule, ...] = (
    (re.compile(r"\bssrf\b|\bxss\b|vulnerab|private articles"), ("bug", "security"), "severe"),
    (re.compile(r"\bis down\b|(is|are) gone\b|data loss|empty archive"), ("bug",), "severe"),
    (re.compile(r"casino|free spins|cheap followers"), ("spam",), "normal"),
    (
        re.compile(
            r"traceback|file \"[^\"\n]*\", line \d+|crash|killed|\b(answers|answering) 5\d\d\b|archives articles"
        ),
        ("bug",),
        "unclear",
    ),
    (re.compile(r"\A.{0,40}\n.{0,80}\Z"), ("needs-info",), "normal"),
    (re.compile(r"\A(how|is there|can i)\b"), ("question",), "normal"),
    (
        re.compile(r"please add|would be (nice|great|good|enough)|support for|\ballow\b|\bi'd like\b"),
        ("feature",),
        "normal",
    ),
    (re.compile(r"\btypo\b"), ("documentation",), "normal"),
    (re.compile(r"memory|rate limit|\bslow\b.{0,200}\d"), ("bug", "performance"), "normal"),
    (
        re.compile(r"expected:|\bfails?\b|does nothing|does not|do not|\blose|ignores|sorted by|stops"),
        ("bug",),
        "normal",
    ),
)
UNKNOWN: Rule = (re.compile(""), ("bug",), "unclear")  # for example, in another language
ORDERS = r"ignore (all |any )?(previous|prior|earlier) instructions|you (must|are) now\b"  # prompt injections
STOPWORDS = {"a", "all", "an", "and", "at", "for", "from", "in", "is", "of", "on", "the", "to", "with"}


@dataclass(frozen=True, slots=True)
class Assessment:
    """The rules' verdict on an issue."""

    labels: tuple[Label, ...]
    severity: Severity
    original: str | None = None


def assess(issue: Issue, found: Sequence[IssueSummary] = ()) -> Assessment:
    """Judge an issue by its words, and by the older issues that a search for its title found."""
    text = f"{issue.title}\n{issue.body}".lower()
    matching = (rule for rule in RULES if rule[0].search(text))
    _, labels, severity = next(matching, UNKNOWN)
    if re.search(ORDERS, text):  # one more label; the topic decides the rest
        labels = (*labels, "suspicious")
    older = [other for other in found if _number(other.id) < _number(issue.id)]
    original = max(older, key=lambda other: _likeness(issue.title, other.title), default=None)
    if original is not None and _likeness(issue.title, original.title) >= 0.5:
        return Assessment((*labels, "duplicate"), "normal", original.id)
    return Assessment(labels, severity)


def _number(issue_id: str) -> int:
    return int(issue_id.rpartition("-")[2])


def _likeness(one: str, other: str) -> float:
    first, second = (set(re.findall(r"\w+", title.lower())) - STOPWORDS for title in (one, other))
    return len(first & second) / len(first | second) if first | second else 0.0
