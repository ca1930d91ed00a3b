"""What a person's word means for a question, and the rules that "always" adds."""

from __future__ import annotations

import pytest

from lastgood.core.approval import MOST_REASON_CHARACTERS, Confirmation, Decision, decide, literal_rule
from lastgood.core.session_rules import RulesRefused, with_allowed
from lastgood.core.tool_permissions import Allowed, judge
from lastgood.errors import InvalidRequest
from lastgood.model.agents import Effect, Permissions, Safety
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.rules import RuleLayer, Setter
from lastgood.model.tokens import Scope

APPROVAL = {"kind": "approval", "tool": "shell"}
UNKNOWN = {"kind": "unknown_outcome", "tool": "shell"}
C, A = Confirmation, AnswerAction


@pytest.mark.parametrize(
    ("question", "confirmation", "decision"),
    [
        (APPROVAL, C.APPROVE, Decision(Answer(A.APPROVE))),
        (APPROVAL, C.APPROVE_TOOL, Decision(Answer(A.APPROVE), "shell")),
        (APPROVAL, C.APPROVE_SESSION, Decision(Answer(A.APPROVE), "*")),
        (APPROVAL, C.REJECT, Decision(Answer(A.REJECT))),
        (UNKNOWN, C.REPEAT, Decision(Answer(A.REPEAT))),
        (UNKNOWN, C.SKIP, Decision(Answer(A.SKIP))),
    ],
)
def test_a_word_that_fits(question: dict[str, str], confirmation: Confirmation, decision: Decision) -> None:
    assert decide(question, confirmation) == decision


@pytest.mark.parametrize(
    ("question", "confirmation"),
    [(APPROVAL, C.REPEAT), (APPROVAL, C.SKIP), (UNKNOWN, C.APPROVE), (UNKNOWN, C.REJECT)],
)
def test_a_word_that_does_not_fit_is_refused(question: dict[str, str], confirmation: Confirmation) -> None:
    with pytest.raises(InvalidRequest, match="does not answer"):
        decide(question, confirmation)


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
