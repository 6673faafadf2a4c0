"""Asks the people behind the agents. The run waits for the answer, for days if necessary."""

from standfast import InterruptError, tool


@tool(safe_to_retry=True)  # asking twice is harmless: one question waits, and one answer settles it
def ask_team(question: str) -> str:
    """Ask the team a question and wait for the answer.

    Args:
        question: with everything that is needed to answer it, since the reader has not seen the issue.
    """
    raise InterruptError(question)
