"""Tools for the issue feed. Reads may be repeated; a comment explains for each write whether it may be."""

import re
import sqlite3
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from activities.feed import open_feed
from standfast import Happened, NotHappened, ToolContext, tool

IssueId = Annotated[str, Field(pattern=r"^ISSUE-[0-9]{1,9}$", description="such as ISSUE-101")]
Limit = Annotated[int, Field(ge=1, le=50)]
Label = Literal[
    "bug", "documentation", "duplicate", "feature", "needs-info", "performance", "question", "security", "severe",
    "spam", "suspicious",
]  # fmt: skip


class Comment(BaseModel):
    """A comment on an issue."""

    model_config = ConfigDict(frozen=True)

    id: int
    issue_id: str
    author: str
    body: str
    created_at: str


class IssueSummary(BaseModel):
    """An issue in a list."""

    model_config = ConfigDict(frozen=True)

    id: str
    title: str
    state: Literal["open", "closed"]
    labels: list[str]


class Issue(IssueSummary):
    """An issue with its text and comments."""

    body: str
    author: str
    created_at: str
    comments: list[Comment]


class Labels(BaseModel):
    """The labels of an issue."""

    model_config = ConfigDict(frozen=True)

    issue_id: str
    labels: list[str]


@tool(safe_to_retry=True, parallel=True)
def list_issues(
    state: Literal["open", "closed", "all"] = "open", label: str | None = None, limit: Limit = 20
) -> list[IssueSummary]:
    """List issues, newest first.

    Args:
        label: lists only issues with this label.
    """
    with open_feed() as feed:
        rows = feed.execute(
            "SELECT * FROM issues WHERE :state IN (state, 'all') AND (:label IS NULL OR EXISTS "
            "(SELECT 1 FROM labels WHERE issue_id = id AND label = :label)) ORDER BY created_at DESC LIMIT :limit",
            {"state": state, "label": label, "limit": limit},
        ).fetchall()
        return [_summary(feed, row) for row in rows]


@tool(safe_to_retry=True, parallel=True)
def get_issue(issue_id: IssueId) -> Issue:
    """Fetch an issue with its comments."""
    with open_feed() as feed:
        row = _existing(feed, issue_id)
        comments = _comments(feed, "issue_id", issue_id)
        return Issue(**row, labels=_labels(feed, issue_id), comments=comments)


@tool(safe_to_retry=True, parallel=True)
def search_issues(query: str, limit: Limit = 10) -> list[IssueSummary]:
    """Search open and closed issues by words, best first. An issue matches if it has any of the words.

    Args:
        query: words from the title, the text, or an error message.
    """
    # Each word is quoted, since a model's query may contain search operators.
    words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
    if not words:
        return []
    with open_feed() as feed:
        rows = feed.execute(
            "SELECT issues.* FROM words JOIN issues ON id = issue_id WHERE words MATCH ? "
            "ORDER BY bm25(words, 0, 5, 1) LIMIT ?",
            (words, limit),
        ).fetchall()
        return [_summary(feed, row) for row in rows]


# Safe, although it has effects: adding a label twice equals adding it once, and no one is notified. Setting all labels
# at once would also be repeatable, but a late attempt would undo other people's changes.
@tool(safe_to_retry=True)
def label_issue(issue_id: IssueId, labels: Annotated[list[Label], Field(min_length=1)]) -> Labels:
    """Add labels to an issue. Its other labels stay."""
    with open_feed() as feed:
        _existing(feed, issue_id)
        feed.executemany("INSERT OR IGNORE INTO labels VALUES (?, ?)", [(issue_id, label) for label in labels])
        return Labels(issue_id=issue_id, labels=_labels(feed, issue_id))


def find_comment(issue_id: str, body: str, ctx: ToolContext) -> Happened | NotHappened:
    """Check whether a lost call has written its comment.

    `NotHappened` must stay true. If a lost attempt writes after this check, the unique key lets the next attempt find
    that comment instead of writing another.
    """
    with open_feed() as feed:
        comments = _comments(feed, "idempotency_key", ctx.idempotency_key)
    return Happened(comments[0]) if comments else NotHappened()


@tool(verify=find_comment)
def comment_on_issue(
    issue_id: IssueId, body: Annotated[str, Field(min_length=1, max_length=10_000)], ctx: ToolContext
) -> Comment:
    """Comment on an issue, publicly.

    Args:
        body: Markdown.
    """
    with open_feed() as feed:
        _existing(feed, issue_id)
        feed.execute(
            "INSERT INTO comments (issue_id, author, body, created_at, idempotency_key) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (idempotency_key) DO NOTHING",
            (issue_id, ctx.agent_name, body, datetime.now(UTC).isoformat(timespec="seconds"), ctx.idempotency_key),
        )
        (comment,) = _comments(feed, "idempotency_key", ctx.idempotency_key)
        return comment


def _existing(feed: sqlite3.Connection, issue_id: str) -> sqlite3.Row:
    row: sqlite3.Row | None = feed.execute("SELECT * FROM issues WHERE id = ?", (issue_id,)).fetchone()
    if row is None:
        raise LookupError(f"There is no issue {issue_id}")
    return row


def _labels(feed: sqlite3.Connection, issue_id: str) -> list[str]:
    rows = feed.execute("SELECT label FROM labels WHERE issue_id = ? ORDER BY label", (issue_id,))
    return [label for (label,) in rows]


def _summary(feed: sqlite3.Connection, row: sqlite3.Row) -> IssueSummary:
    return IssueSummary(id=row["id"], title=row["title"], state=row["state"], labels=_labels(feed, row["id"]))


def _comments(feed: sqlite3.Connection, column: Literal["issue_id", "idempotency_key"], value: str) -> list[Comment]:
    rows = feed.execute(f"SELECT * FROM comments WHERE {column} = ? ORDER BY id", (value,))
    return [Comment(**row) for row in rows]
