"""What a person says to a question about a tool call."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class QuestionKind(StrEnum):
    APPROVAL = "approval"  # may this call run?
    UNKNOWN_OUTCOME = "unknown_outcome"  # it may have run before a crash; shall it run again?


class AnswerAction(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"
    REPEAT = "repeat"  # a call whose outcome is unknown
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Answer:
    """`reason` is for the model."""

    action: AnswerAction
    reason: str = ""

    @property
    def is_about_approval(self) -> bool:
        """The call had not begun when the question was asked."""
        return self.action in (AnswerAction.APPROVE, AnswerAction.REJECT)
