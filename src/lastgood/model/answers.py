"""Answers of people to questions about tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from lastgood.model.messages import ToolCall


class QuestionKind(StrEnum):
    APPROVAL = "approval"  # may this call run?
    UNKNOWN_OUTCOME = "unknown_outcome"  # it may have run before a crash; shall it run again?
    ELICITATION = "elicitation"  # a tool needs information from a person


class AnswerAction(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"
    REPEAT = "repeat"  # a call whose outcome is unknown
    SKIP = "skip"
    ACCEPT = "accept"  # the information is in `content`
    DECLINE = "decline"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Answer:
    """`reason` is for the model; `content` for the tool that needed it, with the `state` of its question.
    `call`: the call that the question showed. `definition`: the digest of its tool's definition then."""

    action: AnswerAction
    reason: str = ""
    content: Mapping[str, Any] | None = None
    state: Mapping[str, Any] | None = None
    call: ToolCall | None = None
    definition: str = ""

    @property
    def is_about_approval(self) -> bool:
        """The call had not begun when the question was asked."""
        return self.action in (AnswerAction.APPROVE, AnswerAction.REJECT)

    @property
    def is_about_input(self) -> bool:
        """The call had stopped to ask, and expects to be made again with the answer."""
        return self.action in (AnswerAction.ACCEPT, AnswerAction.DECLINE, AnswerAction.CANCEL)


def answer_about(answer: Answer, question: Mapping[str, Any]) -> Answer:
    """The answer, bound to what the question showed."""
    call = ToolCall(str(question["call"]), str(question["tool"]), str(question["arguments"]))
    return replace(answer, call=call, definition=str(question.get("definition", "")))


def question_id(attempt: str, question: Mapping[str, Any]) -> str:
    """Names a place in an attempt: its arguments are in the journal and cannot change."""
    return f"{attempt}:{question['place']}"
