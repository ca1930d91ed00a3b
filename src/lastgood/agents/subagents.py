"""Decides which agents of a file can delegate to which.

Two agents may delegate to each other; the engine limits the depth. An agent that delegates to itself is an
error, and so is a circle of forced handoffs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from lastgood.agents.findings import Findings, hint
from lastgood.agents.schema_reader import Fields, Value

_REFERENCE = re.compile(r"[\w.-]+(:\d+)?(/[\w.-]+)+(:[\w.-]+)?(@\w+:[0-9a-f]+)?")
_FILES = (".yaml", ".yml")


def local_agents(
    name: str, fields: Fields, key: str, agents: Collection[str], findings: Findings
) -> tuple[str, ...]:
    """Those of the list that are in this file. Others are left out, and the findings say why."""
    found: dict[str, None] = {}
    for one in fields.listed(key):
        if one.raw == name:
            findings.error(one.place, f"'{name}' cannot be one of its own {key}; remove it")
        elif one.raw in agents:
            found[one.raw] = None
        else:
            _elsewhere(one, agents, findings)
    return tuple(found)


def _elsewhere(one: Value, agents: Collection[str], findings: Findings) -> None:
    ref: str = one.raw.strip()
    if _is_elsewhere(ref):
        what = f"agents from a registry or a URL are not supported yet: '{ref}' is ignored"
        findings.warning(one.place, what)
    else:
        near = hint(ref, agents) or "; define it under `agents`"
        findings.error(one.place, f"unknown agent '{ref}'{near}")


def _is_elsewhere(ref: str) -> bool:
    """A URL or `namespace/name`, alone or with a name of its own: `reviewer:namespace/name`."""
    name, colon, rest = ref.partition(":")
    bare = [ref, rest] if colon and "/" not in name else [ref]
    return any("://" in one or (_REFERENCE.fullmatch(one) and not one.endswith(_FILES)) for one in bare)


def forced_handoffs(agents: Mapping[str, Fields], findings: Findings) -> dict[str, str]:
    """By agent, the one that always takes over after it. A chain that comes back to an agent never ends."""
    forced: dict[str, str] = {}
    for name, fields in agents.items():
        one = fields.values.get("force_handoff")
        if one is None:
            continue
        if one.raw not in agents:
            _elsewhere(one, agents, findings)
        elif any(agents[each].raw("harness") is not None for each in (name, one.raw)):
            findings.warning(one.place, "'force_handoff' is not supported yet for agents with a harness")
        elif name in (chain := _chain(one.raw, forced)):
            what = " → ".join([name, *chain[: chain.index(name) + 1]])
            findings.error(one.place, f"'force_handoff' never ends: {what}; remove one of them")
        else:
            forced[name] = one.raw
    return forced


def _chain(name: str, forced: Mapping[str, str]) -> list[str]:
    """The agents that speak one after the other, from this one on."""
    chain = [name]
    while (after := forced.get(chain[-1])) is not None:
        chain.append(after)
    return chain
