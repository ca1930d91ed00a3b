"""Decides which rules a runtime gets for a run.

A runtime judges tool calls by one mode and one set of rules: deny wins, then allow, then ask, then the mode.
A session's allow rules only answer questions, so they are left out wherever they could do more: if the mode
denies instead of asking, or if there is an ask rule that they would beat. Then a person is asked once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lastgood.core.session_rules import modes_of, narrowest, permissions_of
from lastgood.core.tool_permissions import Denied, judge
from lastgood.model.agents import AgentSpec, Effect, Permissions, Safety
from lastgood.model.rules import RuleLayer
from lastgood.model.runtimes import Enforcement, Runtime

_ASKING = (Safety.STRICT, Safety.BALANCED)


def runtime_rules(
    agent: AgentSpec, ceiling: Safety, layers: Sequence[RuleLayer]
) -> tuple[Safety, Permissions]:
    """`ceiling`: the server's own mode. `layers`: of the session."""
    own, more = agent.permissions, permissions_of(layers) or Permissions()
    modes = narrowest([ceiling, *([agent.safety] if agent.safety else []), *modes_of(layers)])
    # Of strict and restricted neither is narrower; one that denies cannot be talked into anything.
    mode = Safety.RESTRICTED if agent.readonly or len(modes) > 1 else modes[0]
    ask = (*own.ask, *more.ask)
    allow = () if agent.readonly else own.allow
    if mode in _ASKING and not ask and not agent.readonly:
        allow = (*allow, *more.allow)
    return mode, Permissions(allow, ask, (*own.deny, *more.deny))


def denied_since(
    mode: Safety, rules: Permissions, names: Sequence[str], effect: Effect, arguments: Mapping[str, Any]
) -> str | None:
    """Why a call that a running CLI asks about is denied by now: its rules are those of the claim.

    `names`: the CLI's name of the tool, and ours. A mode that asks leaves the call to a person.
    """
    for name in names:
        found = judge((Permissions(deny=rules.deny),), mode, False, name, effect, arguments)
        if isinstance(found, Denied):
            return found.reason
    return None


def unenforceable(runtime: Runtime, mode: Safety, rules: Permissions) -> str | None:
    """Why this runtime cannot hold its CLI to these rules; None: it can, or its worker did not say."""
    if runtime.enforces is not Enforcement.NONE:
        return None
    restrictions = [
        *([] if mode is Safety.AUTONOMOUS else [f"the safety mode {mode}"]),
        *(["ask rules"] if rules.ask else []),
        *(["deny rules"] if rules.deny else []),
    ]
    if not restrictions:
        return None
    what = " and ".join(restrictions)
    return (
        f"Runtime {runtime.name} (kind {runtime.identity.provider}) cannot enforce {what}; use a runtime "
        "that can, or the safety mode autonomous without ask and deny rules"
    )
