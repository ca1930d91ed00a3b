"""Who may change the rules of a session, and what its rules say together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lastgood.core.session_rules import (
    Layers,
    RulesRefused,
    WantedRules,
    first_layer,
    judging_call,
    layers_as_json,
    modes_of,
    permissions_of,
    strongest,
    with_permissions,
    with_safety,
)
from lastgood.core.tool_permissions import Allowed, Asks, Denied, Judging, Verdict
from lastgood.model.agents import AgentSpec, Effect, Permissions, Safety
from lastgood.model.rules import RuleLayer, Setter
from lastgood.model.tokens import Scope

SESSION, APPROVE, ADMIN = Scope.SESSION, Scope.APPROVE, Scope.ADMIN
SETTERS = (SESSION, APPROVE, ADMIN)  # the weakest first
STRICT, BALANCED, RESTRICTED, AUTONOMOUS = Safety
AGENT = AgentSpec(key="a", name="a", model="m", digest="d")


def by(scope: Scope) -> Setter:
    return Setter(scope, f"tok_{scope}")


def layer(scope: Scope, safety: Safety | None = None, **rules: tuple[str, ...]) -> RuleLayer:
    return RuleLayer(scope, f"tok_{scope}", Permissions(**rules), safety)


def verdict(judging: Judging[Verdict]) -> type[Verdict]:
    while True:
        try:
            next(judging)
        except StopIteration as end:
            return type(end.value)


def judged(layers: Layers, tool: str = "act", server: Safety = AUTONOMOUS, **agent: Any) -> type[Verdict]:
    spec = replace(AGENT, **agent)
    return verdict(judging_call(spec, server, layers, tool, Effect.DESTRUCTIVE, {}))


# --- setter x changer x change -------------------------------------------------------------------------

Change = Callable[[Layers, Setter], Layers | RulesRefused]


def wants(**lists: tuple[str, ...]) -> Change:
    return lambda layers, setter: with_permissions(layers, setter, WantedRules(**lists))


def mode(safety: Safety | None) -> Change:
    return lambda layers, setter: with_safety(layers, setter, safety)


#: What the setter has set: a denied tool, one that is asked about, and a mode. Then a change, the weakest
#: scope that may make it where session, approve and admin was the setter's.
ANY, GRANTS, OWN = (SESSION,) * 3, (APPROVE, APPROVE, ADMIN), (SESSION, APPROVE, ADMIN)
CHANGES: dict[str, tuple[Change, tuple[Scope, ...]]] = {
    "add a deny": (wants(deny=("act", "other")), ANY),
    "add an ask": (wants(ask=("look", "other")), ANY),
    "remove the deny": (wants(deny=()), OWN),
    "replace the deny": (wants(deny=("other",)), OWN),
    "remove the ask": (wants(ask=()), OWN),
    "allow something else": (wants(allow=("other",)), (APPROVE,) * 3),
    "allow what is denied": (wants(allow=("act",)), GRANTS),
    "allow what is asked about": (wants(allow=("look",)), GRANTS),
    "clear what is its own": (wants(), ANY),
    "lower the mode": (mode(STRICT), ANY),
    "keep the mode": (mode(BALANCED), ANY),
    "raise the mode": (mode(RESTRICTED), OWN),
    "toggle": (mode(AUTONOMOUS), OWN),
    "clear its own mode": (mode(None), ANY),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("changer", SETTERS)
@pytest.mark.parametrize("setter", SETTERS)
def test_a_weaker_scope_may_only_narrow(setter: Scope, changer: Scope, change: str) -> None:
    before = (layer(setter, BALANCED, deny=("act",), ask=("look",)),)
    make, least = CHANGES[change]
    needed = least[SETTERS.index(setter)]
    after = make(before, by(changer))
    if SETTERS.index(changer) < SETTERS.index(needed):
        assert isinstance(after, RulesRefused)
        assert after.needs is needed
        assert f"`{needed}`" in after.reason
        return
    assert not isinstance(after, RulesRefused)
    if SETTERS.index(changer) < SETTERS.index(setter):
        assert judged(after) is Denied, "the deny of a stronger scope is gone"
        assert judged(after, "look") is not Allowed, "the ask of a stronger scope is gone"
        assert judged(after, "more") is not Allowed, "the mode of a stronger scope is gone"
        assert before[0] in after


def test_a_refusal_names_the_rule_the_list_and_the_scope() -> None:
    layers = (layer(ADMIN, RESTRICTED, deny=("shell",), ask=("fetch",)),)
    for wanted, words in (
        (
            WantedRules(deny=()),
            "The rule `shell` under `deny` was set with the scope `admin`; keep it in the",
        ),
        (WantedRules(ask=("x",)), "The rule `fetch` under `ask` was set with the scope `admin`; keep it in"),
    ):
        refused = with_permissions(layers, by(SESSION), wanted)
        assert isinstance(refused, RulesRefused)
        assert refused.reason.startswith(words)
    refused = with_permissions(layers, by(APPROVE), WantedRules(allow=("fetch",)))
    assert isinstance(refused, RulesRefused)
    assert "`fetch` under `ask`" in refused.reason
    refused = with_safety(layers, by(APPROVE), AUTONOMOUS)
    assert isinstance(refused, RulesRefused)
    assert refused.reason.startswith("The safety mode `restricted` was set with the scope `admin`")


# --- what is stored ------------------------------------------------------------------------------------


def test_a_change_replaces_what_its_scope_and_weaker_ones_set_and_keeps_what_is_above() -> None:
    layers = (layer(ADMIN, deny=("a",)), layer(APPROVE, STRICT, deny=("b",)), layer(SESSION, deny=("c",)))
    assert with_permissions(layers, by(APPROVE), WantedRules(deny=("a", "d"))) == (
        layer(ADMIN, deny=("a",)),
        layer(APPROVE, deny=("d",)),
        layer(APPROVE, STRICT),
    )
    assert with_permissions(layers, by(ADMIN), WantedRules()) == (layer(APPROVE, STRICT),)
    assert with_safety(layers, by(ADMIN), None) == (
        layer(ADMIN, deny=("a",)),
        layer(APPROVE, deny=("b",)),
        layer(SESSION, deny=("c",)),
    )


def test_the_whole_of_what_is_shown_may_be_sent_back_by_anybody() -> None:
    layers = (layer(ADMIN, deny=("a",), allow=("z",)), layer(SESSION, ask=("b",)))
    shown = permissions_of(layers)
    assert shown == Permissions(("z",), ("b",), ("a",))
    again = WantedRules(shown.allow, shown.ask, shown.deny)
    assert with_permissions(layers, by(SESSION), again) == layers


def test_rules_that_stay_the_same_are_one_layer_however_often_they_are_set() -> None:
    layers: Layers | RulesRefused = ()
    for _ in range(3):
        for scope in SETTERS:
            assert not isinstance(layers, RulesRefused)
            layers = with_permissions(layers, by(scope), WantedRules(deny=("x", "x")))
            assert not isinstance(layers, RulesRefused)
            layers = with_safety(layers, by(scope), STRICT)
    assert layers == (layer(ADMIN, STRICT), layer(ADMIN, deny=("x",)))


def test_a_new_session_has_the_rules_of_its_maker() -> None:
    assert first_layer(by(SESSION), WantedRules(deny=("x",)), STRICT) == (
        layer(SESSION, STRICT, deny=("x",)),
    )
    assert first_layer(by(ADMIN), WantedRules(), STRICT) == (layer(ADMIN, STRICT),)
    assert first_layer(by(ADMIN), WantedRules(), None) == ()
    assert isinstance(first_layer(by(SESSION), WantedRules(allow=("x",)), None), RulesRefused)


@pytest.mark.parametrize(
    ("scopes", "strongest_one"),
    [
        ({SESSION}, SESSION),
        ({SESSION, APPROVE}, APPROVE),
        ({SESSION, ADMIN, Scope.CHAT}, ADMIN),
        ({Scope.CHAT, Scope.READ}, SESSION),
    ],
)
def test_a_token_sets_rules_with_its_strongest_scope(scopes: set[Scope], strongest_one: Scope) -> None:
    assert strongest(scopes) is strongest_one


# --- what holds ----------------------------------------------------------------------------------------


def test_the_rules_and_modes_of_all_layers_hold() -> None:
    assert permissions_of(()) is None
    assert permissions_of((layer(ADMIN, STRICT),)) is None
    assert modes_of(()) == ()
    assert modes_of((layer(ADMIN, AUTONOMOUS), layer(SESSION, BALANCED))) == (BALANCED,)
    assert modes_of((layer(ADMIN, RESTRICTED), layer(SESSION, STRICT))) == (STRICT, RESTRICTED)


ASKS: dict[str, dict[str, Any]] = {
    "its file": {"permissions": Permissions(ask=("act",))},
    "its mode": {"safety": STRICT},
}


@pytest.mark.parametrize("asked_by", ASKS)
@pytest.mark.parametrize("scope", SETTERS)
def test_an_allow_rule_answers_what_the_agent_asks(scope: Scope, asked_by: str) -> None:
    assert judged((layer(scope, allow=("act",)),), **ASKS[asked_by]) is Allowed
    assert judged((layer(scope, allow=("other",)),), **ASKS[asked_by]) is Asks
    assert judged((), **ASKS[asked_by]) is Asks


@pytest.mark.parametrize("asks", [{"ask": ("act",)}, {"safety": STRICT}], ids=["a rule", "a mode"])
@pytest.mark.parametrize("allower", SETTERS)
@pytest.mark.parametrize("asker", SETTERS)
def test_an_allow_rule_answers_what_its_own_scope_asks_and_never_a_stronger_one(
    asker: Scope, allower: Scope, asks: dict[str, Any]
) -> None:
    layers = (layer(asker, **asks), layer(allower, allow=("act",)))
    answers = SETTERS.index(allower) >= SETTERS.index(asker)
    assert judged(layers) is (Allowed if answers else Asks)


def test_an_allow_rule_of_a_session_undoes_no_denial() -> None:
    layers = (layer(ADMIN, allow=("*",)), layer(SESSION, deny=("act",)))
    assert judged(layers) is Denied
    assert judged((layer(ADMIN, allow=("*",)),), server=RESTRICTED) is Denied
    assert judged((layer(ADMIN, allow=("*",)),), readonly=True) is Denied


def test_a_command_line_may_be_allowed_by_rules_of_two_layers_and_then_counts_as_the_weaker() -> None:
    allows = (layer(ADMIN, allow=("shell:cmd=ls*",)), layer(APPROVE, allow=("shell:cmd=cat*",)))

    def shell(layers: Layers) -> type[Verdict]:
        return verdict(judging_call(AGENT, STRICT, layers, "shell", Effect.UNKNOWN, {"cmd": "ls; cat x"}))

    assert shell(allows) is Allowed
    assert shell(allows[:1]) is Asks
    assert shell((layer(ADMIN, ask=("shell",)), *allows)) is Asks


def test_layers_are_shown_with_who_set_them() -> None:
    layer = RuleLayer(Scope.ADMIN, "tok_1", Permissions(deny=("shell",)), Safety.BALANCED)
    assert layers_as_json((layer, replace(layer, safety=None)))[0] == {
        "set_by": "admin",
        "token": "tok_1",
        "allow": [],
        "ask": [],
        "deny": ["shell"],
        "safety": "balanced",
    }
    assert layers_as_json((replace(layer, safety=None),))[0]["safety"] is None
