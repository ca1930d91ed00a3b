"""Decides who may change the rules of a session, and what its rules say together.

Rules are kept in layers, each with the scope of the token that set it: admin above approve above session.
A change replaces what its own scope and weaker ones have set, and nothing above. So a weaker
scope can add rules and a narrower mode; it can neither remove nor outvote what a stronger one set.

A list that a request omits is cleared at its own scope and below; a list that it contains is the whole list.
If that would drop a stronger rule, the request is rejected, so no client believes that a rule is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lastgood.core.tool_permissions import (
    Allowed,
    Asks,
    Judging,
    Verdict,
    granting,
    is_above,
    judging,
    narrower,
    narrowing,
)
from lastgood.model.agents import AgentSpec, Effect, Permissions, Safety
from lastgood.model.rules import RuleLayer, Setter
from lastgood.model.tokens import Scope

Kind = Literal["allow", "ask", "deny"]
KINDS: tuple[Kind, ...] = ("allow", "ask", "deny")

#: The scopes that may set rules, the weakest first.
_SETTERS = (Scope.SESSION, Scope.APPROVE, Scope.ADMIN)

Layers = tuple[RuleLayer, ...]


@dataclass(frozen=True, slots=True)
class WantedRules:
    """The lists of a request; None: the request does not have this list."""

    allow: tuple[str, ...] | None = None
    ask: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None


NO_RULES = WantedRules()


@dataclass(frozen=True, slots=True)
class RulesRefused:
    """The change needs a stronger scope. `reason` is the error's message."""

    reason: str
    needs: Scope


def strongest(scopes: Iterable[Scope]) -> Scope:
    """The scope that a holder of all these sets rules with."""
    return max((scope for scope in scopes if scope in _SETTERS), key=_rank, default=Scope.SESSION)


def _rank(scope: Scope) -> int:
    return _SETTERS.index(scope)


# -- changing ------------------------------------------------------------------------


def first_layer(setter: Setter, wanted: WantedRules, safety: Safety | None) -> Layers | RulesRefused:
    """The rules of a new session."""
    changed = with_permissions((), setter, wanted)
    if isinstance(changed, RulesRefused):
        return changed
    permissions = changed[0].permissions if changed else Permissions()
    return _with(RuleLayer(setter.scope, setter.token, permissions, safety))


def with_permissions(layers: Layers, setter: Setter, wanted: WantedRules) -> Layers | RulesRefused:
    above = _above(layers, setter.scope)
    own: dict[Kind, tuple[str, ...]] = {}
    for kind in KINDS:
        fixed = dict(_rules_of(above, kind))
        listed = getattr(wanted, kind)
        kept = fixed if listed is None else set(listed)
        for rule, scope in fixed.items():
            if rule not in kept:
                return _fixed(kind, rule, scope, "keep it in the list")
        own[kind] = tuple(rule for rule in dict.fromkeys(listed or ()) if rule not in fixed)
    refused = _refused_allow(above, setter, own["allow"])
    if refused is not None:
        return refused
    mine = RuleLayer(setter.scope, setter.token, permissions=Permissions(**own))
    return _with(
        mine, *above, *(replace(layer, permissions=Permissions()) for layer in _upto(layers, setter))
    )


def with_allowed(layers: Layers, setter: Setter, rule: str) -> Layers | RulesRefused:
    """One more allow rule: a person said "always"."""
    refused = _refused_allow(_above(layers, setter.scope), setter, (rule,))
    if refused is not None:
        return refused
    own = next((layer for layer in layers if layer.set_by is setter.scope), None)
    before = own.permissions if own else Permissions()
    if rule in before.allow:
        return layers
    others = (layer for layer in layers if layer is not own)
    permissions = replace(before, allow=(*before.allow, rule))
    return _with(RuleLayer(setter.scope, setter.token, permissions, own.safety if own else None), *others)


def with_safety(layers: Layers, setter: Setter, safety: Safety | None) -> Layers | RulesRefused:
    """None: no mode of its own. A stronger scope's mode stays."""
    above = _above(layers, setter.scope)
    for layer in above:
        if safety is not None and layer.safety is not None and is_above(safety, layer.safety):
            return RulesRefused(
                f"The safety mode `{layer.safety}` was set with the scope `{layer.set_by}`, and `{safety}` "
                f"allows more; use a token with the scope `{layer.set_by}`",
                layer.set_by,
            )
    mine = RuleLayer(setter.scope, setter.token, safety=safety)
    return _with(mine, *above, *(replace(layer, safety=None) for layer in _upto(layers, setter)))


def _refused_allow(above: Layers, setter: Setter, allow: tuple[str, ...]) -> RulesRefused | None:
    """An allow rule approves calls in advance, so it needs a scope that may approve them."""
    for kind in ("deny", "ask"):
        for rule, scope in _rules_of(above, kind):
            if rule in allow:
                return _fixed(kind, rule, scope, "leave it out of `allow`")
    if allow and _rank(setter.scope) < _rank(Scope.APPROVE):
        return RulesRefused(
            f"The rule `{allow[0]}` under `allow` bypasses human approval; use a token with "
            f"the scope `{Scope.APPROVE}`",
            Scope.APPROVE,
        )
    return None


def _fixed(kind: str, rule: str, scope: Scope, otherwise: str) -> RulesRefused:
    return RulesRefused(
        f"The rule `{rule}` under `{kind}` was set with the scope `{scope}`; {otherwise}, or use a token "
        f"with the scope `{scope}`",
        scope,
    )


def _above(layers: Layers, scope: Scope) -> Layers:
    return tuple(layer for layer in layers if _rank(layer.set_by) > _rank(scope))


def _upto(layers: Layers, setter: Setter) -> Layers:
    return tuple(layer for layer in layers if _rank(layer.set_by) <= _rank(setter.scope))


def _rules_of(layers: Iterable[RuleLayer], kind: Kind | str) -> Iterator[tuple[str, Scope]]:
    return ((rule, layer.set_by) for layer in layers for rule in getattr(layer.permissions, kind))


def _with(*layers: RuleLayer) -> Layers:
    """The strongest first; a layer that says nothing is left out."""
    said = (layer for layer in layers if layer.permissions != Permissions() or layer.safety)
    return tuple(sorted(said, key=lambda layer: -_rank(layer.set_by)))


# -- what holds ----------------------------------------------------------------------


def permissions_of(layers: Sequence[RuleLayer]) -> Permissions | None:
    """Returns the rules of all layers in one list each, or None if there are no rules."""
    lists = {kind: tuple(dict.fromkeys(rule for rule, _ in _rules_of(layers, kind))) for kind in KINDS}
    return Permissions(**lists) if any(lists.values()) else None


def layers_as_json(layers: Sequence[RuleLayer]) -> list[dict[str, Any]]:
    """For people who read a record of changes."""
    return [
        {
            "set_by": layer.set_by.value,
            "token": layer.token,
            **{kind: list(getattr(layer.permissions, kind)) for kind in KINDS},
            "safety": layer.safety.value if layer.safety else None,
        }
        for layer in layers
    ]


def modes_of(layers: Iterable[RuleLayer]) -> tuple[Safety, ...]:
    return narrowest(layer.safety for layer in layers if layer.safety is not None)


def narrowest(modes: Iterable[Safety]) -> tuple[Safety, ...]:
    """The modes that hold together: none, one, or strict and restricted, of which neither is narrower."""
    given = sorted(modes, key=list(Safety).index)
    return narrower(*given) if given else ()


def judging_call(
    agent: AgentSpec,
    server: Safety,
    layers: Layers,
    tool: str,
    effect: Effect,
    arguments: Mapping[str, Any],
    *,
    root: str = "",
) -> Judging[Verdict]:
    """May this agent call the tool in a session with these rules? In steps, like `judging`.

    The session's rules remove rights. An allow rule only replaces an approval, and only one that no stronger
    layer requires.
    """
    modes = narrower(server, *(mode for mode in (agent.safety, *modes_of(layers)) if mode is not None))
    rules = (agent.permissions, *(narrowing(layer.permissions) for layer in layers))
    verdict = yield from judging(rules, modes, agent.readonly, tool, effect, arguments, root=root)
    if not isinstance(verdict, Asks):
        return verdict
    granted_by = yield from _granted_by(layers, tool, arguments, root)
    if granted_by is None:
        return verdict
    for layer in _above(layers, granted_by):
        own = (narrowing(layer.permissions),)
        mode = layer.safety or Safety.AUTONOMOUS
        asked = yield from judging(own, mode, False, tool, effect, arguments, root=root)
        if isinstance(asked, Asks):
            return asked
    return Allowed(f"the session's rules allow it, set with the scope {granted_by}")


def _granted_by(layers: Layers, tool: str, arguments: Mapping[str, Any], root: str) -> Judging[Scope | None]:
    """The strongest scope whose allow rules, with those above, speak of the call.

    Together, because each command of a command line may be allowed by another rule.
    """
    for scope in reversed(_SETTERS):
        allow = tuple(
            rule
            for layer in layers
            if _rank(layer.set_by) >= _rank(scope)
            for rule in layer.permissions.allow
        )
        if allow and (yield from granting(Permissions(allow=allow), tool, arguments, root)):
            return scope
    return None
