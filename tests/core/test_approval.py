"""What a person's word means for a question, and the rules that "always" adds."""

from __future__ import annotations

from typing import Any

import pytest

from lastgood.core.approval import (
    MOST_REASON_CHARACTERS,
    ApprovalDecision,
    Confirmation,
    decide,
    literal_rule,
    shown,
)
from lastgood.core.session_rules import RulesRefused, with_allowed
from lastgood.core.tool_permissions import Allowed, judge
from lastgood.errors import InvalidRequest
from lastgood.model.agents import Effect, Permissions, Safety
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.rules import RuleLayer, Setter
from lastgood.model.tokens import Scope

APPROVAL = {"kind": "approval", "tool": "shell"}
UNKNOWN = {"kind": "unknown_outcome", "tool": "shell"}
INPUT = {"kind": "elicitation", "tool": "user_prompt", "state": {"a": 1}}
C, A = Confirmation, AnswerAction


@pytest.mark.parametrize(
    ("question", "confirmation", "decision"),
    [
        (APPROVAL, C.APPROVE, ApprovalDecision(Answer(A.APPROVE))),
        (APPROVAL, C.APPROVE_TOOL, ApprovalDecision(Answer(A.APPROVE), "shell")),
        (APPROVAL, C.APPROVE_SESSION, ApprovalDecision(Answer(A.APPROVE), "*")),
        (APPROVAL, C.APPROVE_AUTONOMOUS, ApprovalDecision(Answer(A.APPROVE), "*")),
        (APPROVAL, C.APPROVE_SAFE, ApprovalDecision(Answer(A.APPROVE), safety=Safety.BALANCED)),
        (APPROVAL, C.APPROVE_SAFER, ApprovalDecision(Answer(A.APPROVE), safety=Safety.BALANCED)),
        (APPROVAL, C.APPROVE_BALANCED, ApprovalDecision(Answer(A.APPROVE), safety=Safety.BALANCED)),
        (APPROVAL, C.REJECT, ApprovalDecision(Answer(A.REJECT))),
        (UNKNOWN, C.REPEAT, ApprovalDecision(Answer(A.REPEAT))),
        (UNKNOWN, C.SKIP, ApprovalDecision(Answer(A.SKIP))),
        (INPUT, C.ACCEPT, ApprovalDecision(Answer(A.ACCEPT, state={"a": 1}))),
        (INPUT, C.DECLINE, ApprovalDecision(Answer(A.DECLINE, state={"a": 1}))),
        (INPUT, C.CANCEL, ApprovalDecision(Answer(A.CANCEL, state={"a": 1}))),
    ],
)
def test_answer_of_the_same_kind_is_accepted(
    question: dict[str, Any], confirmation: Confirmation, decision: ApprovalDecision
) -> None:
    assert decide(question, confirmation) == decision


@pytest.mark.parametrize(
    ("question", "confirmation"),
    [
        (APPROVAL, C.REPEAT),
        (APPROVAL, C.SKIP),
        (APPROVAL, C.ACCEPT),
        (UNKNOWN, C.APPROVE),
        (UNKNOWN, C.APPROVE_SAFE),
        (UNKNOWN, C.REJECT),
        (INPUT, C.APPROVE),
        (INPUT, C.REJECT),
    ],
)
def test_answer_of_another_kind_is_rejected(question: dict[str, Any], confirmation: Confirmation) -> None:
    with pytest.raises(InvalidRequest, match="does not answer"):
        decide(question, confirmation)


SCHEMA = {
    "properties": {
        "city": {"type": "string", "enum": ["Rome", "Oslo"]},
        "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "guest": {"type": "string", "minLength": 2, "maxLength": 5},
        "breakfast": {"type": "boolean"},
        "odd": 1,
    },
    "required": ["city"],
}


@pytest.mark.parametrize(
    "content",
    [
        {"city": "Rome"},
        {"city": "Oslo", "nights": 2, "breakfast": True},
        {"city": "Oslo", "odd": 1, "more": [1]},
    ],
)
def test_content_that_fits_the_schema_is_for_the_tool(content: dict[str, Any]) -> None:
    asked = {**INPUT, "schema": SCHEMA}
    assert decide(asked, C.ACCEPT, content=content).answer.content == content
    assert decide(asked, C.DECLINE, content=content).answer.content is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "content.city` is missing"),
        ({"city": None}, "content.city` is missing"),
        ({"city": 3}, "must be of type string"),
        ({"city": "Bonn"}, "must be one of 'Rome', 'Oslo'"),
        ({"city": "Rome", "nights": True}, "must be of type integer"),
        ({"city": "Rome", "nights": 0}, "content.nights` must be at least 1$"),
        ({"city": "Rome", "nights": 31}, "content.nights` must be at most 30$"),
        ({"city": "Rome", "guest": "A"}, "content.guest` must be at least 2 characters"),
        ({"city": "Rome", "guest": "Adelheid"}, "content.guest` must be at most 5 characters"),
    ],
)
def test_content_that_violates_the_schema_is_rejected(content: dict[str, Any] | None, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        decide({**INPUT, "schema": SCHEMA}, C.ACCEPT, content=content)


@pytest.mark.parametrize(
    "schema",
    [
        {"required": "city"},
        {"properties": []},
        {},
        {"properties": {"a": {"type": "integer", "minimum": "none", "maximum": True}}},
    ],
)
def test_a_schema_that_a_model_got_wrong_takes_any_content(schema: dict[str, Any]) -> None:
    assert decide({**INPUT, "schema": schema}, C.ACCEPT, content={"a": 1}).answer.content == {"a": 1}


def test_what_a_tool_keeps_for_itself_is_not_shown() -> None:
    assert shown(INPUT) == {"kind": "elicitation", "tool": "user_prompt"}


def test_a_reason_is_for_the_model_and_bounded() -> None:
    assert decide(APPROVAL, C.REJECT, " not now ").answer.reason == "not now"
    with pytest.raises(InvalidRequest, match="4,001 characters"):
        decide(APPROVAL, C.REJECT, "x" * (MOST_REASON_CHARACTERS + 1))


@pytest.mark.parametrize("tool", ["shell", "a*b", "what?", "mcp:github:list"])
def test_always_means_this_tool_and_no_other(tool: str) -> None:
    rules = (Permissions(allow=(literal_rule(tool),)),)

    def allowed(name: str) -> bool:
        return isinstance(judge(rules, Safety.RESTRICTED, False, name, Effect.UNKNOWN, {}), Allowed)

    assert allowed(tool)
    assert not allowed(tool + "x")
    assert not allowed(tool.replace("*", "x").replace("?", "x").replace(":", "x") + "_")


SETTER = Setter(Scope.APPROVE, "tok")


def test_always_adds_one_rule_to_the_layer_of_its_scope() -> None:
    layers = with_allowed((), SETTER, "shell")
    assert layers == (RuleLayer(Scope.APPROVE, "tok", Permissions(allow=("shell",))),)
    assert not isinstance(layers, RulesRefused)
    assert with_allowed(layers, SETTER, "shell") == layers
    more = with_allowed(layers, SETTER, "fetch")
    assert not isinstance(more, RulesRefused)
    assert more[0].permissions.allow == ("shell", "fetch")


def test_always_keeps_the_other_layers_and_its_own_safety() -> None:
    admin = RuleLayer(Scope.ADMIN, "root", Permissions(deny=("fetch",)))
    mine = RuleLayer(Scope.APPROVE, "tok", Permissions(ask=("write_file",)), Safety.BALANCED)
    layers = with_allowed((admin, mine), SETTER, "shell")
    assert not isinstance(layers, RulesRefused)
    assert layers[0] == admin
    assert (layers[1].permissions.ask, layers[1].safety) == (("write_file",), Safety.BALANCED)


def test_always_does_not_lift_what_a_stronger_scope_asks() -> None:
    admin = RuleLayer(Scope.ADMIN, "root", Permissions(ask=("shell",)))
    assert isinstance(with_allowed((admin,), SETTER, "shell"), RulesRefused)
    weak = Setter(Scope.SESSION, "tok")
    assert isinstance(with_allowed((), weak, "shell"), RulesRefused)
