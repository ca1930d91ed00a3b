"""Which rules a runtime gets: a session's rules take rights away, and only answer questions."""

from __future__ import annotations

from typing import Any

import pytest

from lastgood.core.runtime_permissions import denied_since, runtime_rules, unenforceable
from lastgood.model.agents import AgentSpec, Effect, Permissions, Safety
from lastgood.model.rules import RuleLayer
from lastgood.model.runtimes import Enforcement
from lastgood.model.tokens import Scope
from tests.core.test_runtimes import runtime

P = Permissions
NO_RULES = Permissions()


def layer(permissions: Permissions = NO_RULES, safety: Safety | None = None) -> RuleLayer:
    return RuleLayer(Scope.APPROVE, "tok", permissions, safety)


@pytest.mark.parametrize(
    ("agent", "ceiling", "layers", "mode", "rules"),
    [
        ({}, "balanced", [], "balanced", P()),
        ({"safety": Safety.STRICT}, "autonomous", [], "strict", P()),
        ({}, "autonomous", [layer(safety=Safety.BALANCED)], "balanced", P()),
        ({"safety": Safety.STRICT}, "restricted", [], "restricted", P()),
        ({"permissions": P(("a",), (), ("d",))}, "restricted", [], "restricted", P(("a",), (), ("d",))),
        ({}, "balanced", [layer(P(("s",), (), ("d",)))], "balanced", P(("s",), (), ("d",))),
        ({}, "restricted", [layer(P(("s",)))], "restricted", P()),
        ({}, "autonomous", [layer(P(("s",)))], "autonomous", P()),
        ({"permissions": P((), ("q",))}, "balanced", [layer(P(("s",)))], "balanced", P((), ("q",))),
        ({}, "balanced", [layer(P(("s",), ("q",)))], "balanced", P((), ("q",))),
        ({"readonly": True, "permissions": P(("a",))}, "autonomous", [], "restricted", P()),
    ],
)
def test_the_narrowest_rules_are_sent(
    agent: dict[str, Any], ceiling: str, layers: list[RuleLayer], mode: str, rules: Permissions
) -> None:
    found = runtime_rules(AgentSpec("k", "n", "m", "d", **agent), Safety(ceiling), layers)
    assert found == (Safety(mode), rules)


@pytest.mark.parametrize(
    ("enforces", "mode", "rules", "named"),
    [
        ("none", "autonomous", P(), []),
        ("none", "autonomous", P(("a",)), []),
        ("none", "balanced", P(), ["the safety mode balanced"]),
        ("none", "restricted", P(("*",)), ["the safety mode restricted"]),
        ("none", "autonomous", P((), ("q",), ("d",)), ["ask rules and deny rules"]),
        ("none", "strict", P((), (), ("d",)), ["the safety mode strict and deny rules"]),
        ("all", "strict", P((), ("q",), ("d",)), []),
        ("", "strict", P((), ("q",), ("d",)), []),
    ],
)
def test_a_runtime_that_enforces_nothing_takes_only_what_restricts_nothing(
    enforces: str, mode: str, rules: Permissions, named: list[str]
) -> None:
    found = unenforceable(runtime(enforces=Enforcement(enforces)), Safety(mode), rules)
    assert (found is not None) == bool(named)
    assert all(words in (found or "") for words in named)


@pytest.mark.parametrize(
    ("mode", "deny", "reason"),
    [
        (Safety.BALANCED, (), None),
        (Safety.BALANCED, ("shell",), "the rule 'shell' denies it"),
        (Safety.BALANCED, ("fetch",), None),
        (Safety.RESTRICTED, (), "the safety mode is restricted"),
    ],
)
def test_rules_that_were_narrowed_during_a_run_deny_its_next_question(
    mode: Safety, deny: tuple[str, ...], reason: str | None
) -> None:
    found = denied_since(mode, P(deny=deny), ("Bash", "shell"), Effect.UNKNOWN, {"cmd": "ls"})
    assert (found or "").startswith(reason or "")
    assert (found is None) is (reason is None)
