"""A stand-in for a model: it triages by rules, so that the application runs without a key.

It has no state and no randomness: the same transcript always gets the same answer, so a run can continue in another
process. `rules` judges the issues.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from activities.issues import Issue, IssueSummary
from standfast import LLMResponse, Message, ToolCall, ToolDurabilityError
from standfast.llm import ToolDescription
from workflows import scripted_documents
from workflows.rules import Assessment, Severity, assess
from workflows.triage import CHANNEL, ON_CALL

Call = tuple[str, dict[str, Any]]

SIGNATURE = "(Scripted: rules decided this, without a model.)"


class ScriptedTriage:
    """An adapter that answers with the next move."""

    async def chat(self, messages: Sequence[Message], tools: Sequence[ToolDescription], **settings: Any) -> LLMResponse:
        if (text := scripted_documents.answer(messages)) is not None:
            return LLMResponse(text=text)
        move = next_move(messages)
        if isinstance(move, str):
            return LLMResponse(text=f"{move}\n{SIGNATURE}")
        name, arguments = move
        return LLMResponse(tool_calls=(ToolCall(id=f"call_{len(messages)}", name=name, arguments=arguments),))


def next_move(messages: Sequence[Message]) -> Call | str:
    """Return the next tool call, or the final text, from the transcript since an issue was last named."""
    issue_id, results = _read(messages)
    if issue_id is None:
        return _ask_for_an_issue(results)
    if "get_issue" not in results:
        return "get_issue", {"issue_id": issue_id}
    issue: Issue | None = _parse(Issue, results["get_issue"])
    if issue is None:
        return f"I could not read {issue_id}: {(_error(results['get_issue']) or {}).get('error', 'it is not an issue')}"
    if "search_issues" not in results:
        return "search_issues", {"query": issue.title}
    verdict = assess(issue, _parse(list[IssueSummary], results["search_issues"]) or ())
    if verdict.severity == "unclear":
        if "ask_team" not in results:
            return "ask_team", {"question": _question(issue)}
        verdict = replace(verdict, severity=_severity(results["ask_team"]))
    plan = _plan(issue, verdict)
    for name, arguments in plan:
        if name not in results:
            return name, arguments
    return _summary(issue, verdict, {name: results[name] for name, _ in plan})


def _read(messages: Sequence[Message]) -> tuple[str | None, dict[str, Message]]:
    """Return the issue that a user named last, and the results of the calls since then by tool."""
    users = [(at, message.content) for at, message in enumerate(messages) if message.role == "user"]
    naming = [(at, named[0].upper()) for at, text in users if (named := re.search(r"\bISSUE-\d{1,9}\b", text, re.I))]
    start, issue_id = naming[-1] if naming else (users[-1][0] if users else 0, None)
    return issue_id, {str(message.tool_name): message for message in messages[start:] if message.role == "tool"}


def _parse(kind: Any, message: Message) -> Any:
    try:
        return TypeAdapter(kind).validate_json(message.content)
    except ValidationError:
        return None


def _ask_for_an_issue(results: dict[str, Message]) -> Call | str:
    if "list_issues" not in results:
        return "list_issues", {"limit": 10}
    newest: list[IssueSummary] = _parse(list[IssueSummary], results["list_issues"]) or []
    return "\n".join(["Name an issue, such as one of these:", *(f"{issue.id} {issue.title}" for issue in newest)])


def _question(issue: Issue) -> str:
    return (
        f'Is {issue.id} "{issue.title}" severe? Something is broken, but the rules cannot tell for whom. '
        f"If it is, {ON_CALL} gets a mail. Please answer: severe, or not severe."
    )


def _severity(answer: Message) -> Severity:
    text = answer.content.lower()
    if re.search(r"\A\W*no\b|\b(not|isn't) (severe|critical|high)\b", text):
        return "normal"
    if _error(answer) is None and re.search(r"\b(severe|yes|critical|high)\b", text):
        return "severe"
    return "unclear"  # the team reads this in the chat; no one is woken up


def _plan(issue: Issue, verdict: Assessment) -> list[Call]:
    """Return the calls that carry out a verdict, in order; each is made once."""
    labels = [*verdict.labels, *(["severe"] if verdict.severity == "severe" else [])]
    same = f", duplicate of {verdict.original}" if verdict.original else ""
    notice = f"{issue.id} {issue.title}\n{', '.join(labels)}; severity: {verdict.severity}{same}"
    plan: list[Call] = [("label_issue", {"issue_id": issue.id, "labels": labels})]
    if "spam" not in labels:
        plan.append(("comment_on_issue", {"issue_id": issue.id, "body": _comment(verdict)}))
    plan.append(("post_message", {"channel": CHANNEL, "text": notice[:4_000]}))
    if verdict.severity == "severe":
        subject = " ".join(f"Severe: {issue.id} {issue.title}".split())[:200]
        plan.append(("send_email", {"to": ON_CALL, "subject": subject, "body": f"{notice}\n\n{issue.body}"[:20_000]}))
    return plan


def _comment(verdict: Assessment) -> str:
    if verdict.original:
        return f"This looks like {verdict.original}; please follow that one."
    if "security" in verdict.labels:
        return "Thank you. The people on call have been told; please keep details out of the comments."
    if "needs-info" in verdict.labels:
        return "Which version is it, what did you do, and what happened instead of what you expected?"
    return f"Thank you. The team has labelled it: {', '.join(verdict.labels)}."


def _summary(issue: Issue, verdict: Assessment, results: dict[str, Message]) -> str:
    same = f" It looks like {verdict.original}." if verdict.original else ""
    lines = [f"{issue.id}: {', '.join(verdict.labels)}; severity {verdict.severity}.{same}"]
    for name, result in results.items():
        error = _error(result)
        if error is None:
            lines.append(f"{name}: done.")
        elif error.get("kind") == ToolDurabilityError.kind or "may or may not have taken effect" in str(error["error"]):
            lines.append(f"{name}: may or may not have taken effect. I have not repeated it; a person must check.")
        else:
            lines.append(f"{name}: failed. {error['error']}")
    return "\n".join(lines)


def _error(result: Message) -> dict[str, Any] | None:
    try:
        content = json.loads(result.content)
    except ValueError:
        return None
    return content if isinstance(content, dict) and "error" in content else None
