"""Decides what a person's answer means for a question about a tool call.

The verbs are docker-agent's and MCP's, and two of our own for calls whose outcome is unknown. A verb that
does not fit the question is rejected: "reject" must never mean "do not repeat it".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lastgood.errors import InvalidRequest
from lastgood.model.agents import Safety
from lastgood.model.answers import Answer, AnswerAction, QuestionKind

MOST_REASON_CHARACTERS = 4000


class Confirmation(StrEnum):
    APPROVE = "approve"  # this call
    APPROVE_TOOL = "approve-tool"  # and every later call of this tool in the session
    APPROVE_SESSION = "approve-session"  # and every later call of any tool in the session
    # docker-agent's: this call, and the session has this safety mode from now on, if the server allows it
    APPROVE_SAFE = "approve-safe"
    APPROVE_SAFER = "approve-safer"
    APPROVE_BALANCED = "approve-balanced"
    APPROVE_AUTONOMOUS = "approve-autonomous"  # as approve-session
    REJECT = "reject"
    REPEAT = "repeat"
    SKIP = "skip"
    ACCEPT = "accept"
    DECLINE = "decline"
    CANCEL = "cancel"


_FITS = {
    QuestionKind.APPROVAL: {
        Confirmation.APPROVE: AnswerAction.APPROVE,
        Confirmation.APPROVE_TOOL: AnswerAction.APPROVE,
        Confirmation.APPROVE_SESSION: AnswerAction.APPROVE,
        Confirmation.APPROVE_SAFE: AnswerAction.APPROVE,
        Confirmation.APPROVE_SAFER: AnswerAction.APPROVE,
        Confirmation.APPROVE_BALANCED: AnswerAction.APPROVE,
        Confirmation.APPROVE_AUTONOMOUS: AnswerAction.APPROVE,
        Confirmation.REJECT: AnswerAction.REJECT,
    },
    QuestionKind.UNKNOWN_OUTCOME: {
        Confirmation.REPEAT: AnswerAction.REPEAT,
        Confirmation.SKIP: AnswerAction.SKIP,
    },
    QuestionKind.ELICITATION: {
        Confirmation.ACCEPT: AnswerAction.ACCEPT,
        Confirmation.DECLINE: AnswerAction.DECLINE,
        Confirmation.CANCEL: AnswerAction.CANCEL,
    },
}


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """`allows`: the rule to add to the session, so that later calls need no approval; None: no rule.
    `safety`: the mode that the session gets; it cannot exceed that of the server."""

    answer: Answer
    allows: str | None = None
    safety: Safety | None = None


def decide(
    question: Mapping[str, Any],
    confirmation: Confirmation,
    reason: str = "",
    content: Mapping[str, Any] | None = None,
) -> ApprovalDecision:
    """InvalidRequest: this verb does not answer this question, or `content` does not match its schema."""
    kind = QuestionKind(question["kind"])
    action = _FITS[kind].get(confirmation)
    if action is None:
        fitting = ", ".join(f"`{word}`" for word in _FITS[kind])
        raise InvalidRequest(f"`{confirmation}` does not answer a question of kind {kind}; use {fitting}")
    if len(reason) > MOST_REASON_CHARACTERS:
        raise InvalidRequest(
            f"`reason` has {len(reason):,} characters; the limit is {MOST_REASON_CHARACTERS:,}"
        )
    if kind is QuestionKind.ELICITATION:
        if action is AnswerAction.ACCEPT:
            _check_content(question.get("schema") or {}, content or {})
        else:
            content = None
        return ApprovalDecision(Answer(action, reason.strip(), content, question.get("state")))
    answer = Answer(action, reason.strip())
    match confirmation:
        case Confirmation.APPROVE_TOOL:
            return ApprovalDecision(answer, literal_rule(str(question["tool"])))
        case Confirmation.APPROVE_SESSION | Confirmation.APPROVE_AUTONOMOUS:
            return ApprovalDecision(answer, "*")
        case Confirmation.APPROVE_SAFE | Confirmation.APPROVE_SAFER | Confirmation.APPROVE_BALANCED:
            return ApprovalDecision(answer, safety=Safety.BALANCED)
        case _:
            return ApprovalDecision(answer)


def shown(question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the question without what only the engine needs: the tool's own state and its definition."""
    return {key: value for key, value in question.items() if key not in ("state", "definition")}


def _check_content(schema: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """What a schema of primitive values can require. Keywords that are wrong or unknown require nothing:
    a model wrote the schema, and a person cannot repair it."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if content.get(name) is None:
            raise InvalidRequest(f"`content.{name}` is missing; the question requires it", param=str(name))
    for name, value in content.items():
        expected = known.get(name)
        if isinstance(expected, Mapping) and (problem := _mismatch(expected, value)):
            raise InvalidRequest(f"`content.{name}` {problem}", param=name)


def _mismatch(expected: Mapping[str, Any], value: Any) -> str:
    """What is wrong with the value; empty: nothing."""
    kind = expected.get("type")
    fits = _CONTENT_TYPES.get(kind) if isinstance(kind, str) else None
    # A bool is an int in Python, and no number in JSON.
    if fits is not None and (not isinstance(value, fits) or (isinstance(value, bool) and fits is not bool)):
        return f"must be of type {kind}"
    choices = expected.get("enum")
    if isinstance(choices, list) and value not in choices:
        return f"must be one of {', '.join(map(repr, choices))}"
    if isinstance(value, str):
        return _out_of_range(expected, len(value), "minLength", "maxLength", " characters")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _out_of_range(expected, value, "minimum", "maximum", "")
    return ""


def _out_of_range(expected: Mapping[str, Any], size: float, least_key: str, most_key: str, unit: str) -> str:
    least, most = (_number(expected.get(key)) for key in (least_key, most_key))
    if least is not None and size < least:
        return f"must be at least {least}{unit}"
    if most is not None and size > most:
        return f"must be at most {most}{unit}"
    return ""


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


_CONTENT_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


def literal_rule(tool: str) -> str:
    """The rule that matches this tool's name and no other."""
    return "".join(f"[{char}]" if char in "*?:" else char for char in tool)
