"""The options of `approval(…)`, which user workflows call."""

from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from standfast.temporal import approval


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"quorum": 2}, "approval.quorum is 2: name approvers="),
        ({"timeout": "3 days"}, "approval.timeout must be like"),
        ({"on_timeout": "wait"}, "approval.on_timeout must be one of"),
        ({"message": lambda ctx: "Ship?"}, "approval.message must be a text here"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_when_the_gate_is_called(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ApplicationError, match=text) as refused:
        approval("ship", **options)
    assert (refused.value.type, refused.value.non_retryable) == ("DefinitionError", True)


def test_an_option_that_there_is_not_is_refused_when_the_gate_is_called() -> None:
    with pytest.raises(TypeError, match="mesage"):
        approval("ship", mesage="Ship?")  # type: ignore[call-arg]
