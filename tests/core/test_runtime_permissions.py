"""Which rules a runtime gets: a session's rules take rights away, and only answer questions."""

from __future__ import annotations

from typing import Any

import pytest

from lastgood.core.runtime_permissions import runtime_rules
from lastgood.model.agents import AgentSpec, Permissions, Safety
from lastgood.model.rules import RuleLayer
from lastgood.model.tokens import Scope

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
