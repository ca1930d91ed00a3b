"""Decides what a person's word means for a question about a tool call.

The words are docker-agent's, and two of our own for calls whose outcome is unknown. A word that does not
fit the question is refused: "reject" must never be taken for "do not repeat it".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lastgood.errors import InvalidRequest
from lastgood.model.answers import Answer, AnswerAction, QuestionKind

MOST_REASON_CHARACTERS = 4000


class Confirmation(StrEnum):
    APPROVE = "approve"  # this call
    APPROVE_TOOL = "approve-tool"  # and every later call of this tool in the session
    APPROVE_SESSION = "approve-session"  # and every later call of any tool in the session
    REJECT = "reject"
    REPEAT = "repeat"
    SKIP = "skip"


_FITS = {
    QuestionKind.APPROVAL: {
        Confirmation.APPROVE: AnswerAction.APPROVE,
        Confirmation.APPROVE_TOOL: AnswerAction.APPROVE,
        Confirmation.APPROVE_SESSION: AnswerAction.APPROVE,
        Confirmation.REJECT: AnswerAction.REJECT,
    },
    QuestionKind.UNKNOWN_OUTCOME: {
        Confirmation.REPEAT: AnswerAction.REPEAT,
        Confirmation.SKIP: AnswerAction.SKIP,
    },
}


@dataclass(frozen=True, slots=True)
class Decision:
    """`allows`: the rule that is added to the session, so that nobody is asked again; None: none is."""

    answer: Answer
    allows: str | None = None


def decide(question: dict[str, Any], confirmation: Confirmation, reason: str = "") -> Decision:
    """InvalidRequest: this word does not answer this question."""
    kind = QuestionKind(question["kind"])
    action = _FITS[kind].get(confirmation)
    if action is None:
        fitting = ", ".join(f"`{word}`" for word in _FITS[kind])
        raise InvalidRequest(f"`{confirmation}` does not answer a question of kind {kind}; use {fitting}")
    if len(reason) > MOST_REASON_CHARACTERS:
        raise InvalidRequest(
            f"`reason` has {len(reason):,} characters; the limit is {MOST_REASON_CHARACTERS:,}"
        )
    answer = Answer(action, reason.strip())
    match confirmation:
        case Confirmation.APPROVE_TOOL:
            return Decision(answer, literal_rule(str(question["tool"])))
        case Confirmation.APPROVE_SESSION:
            return Decision(answer, "*")
        case _:
            return Decision(answer)


def literal_rule(tool: str) -> str:
    """The rule that matches this tool's name and no other."""
    return "".join(f"[{char}]" if char in "*?:" else char for char in tool)
