"""Decides which agents of a file can delegate to which.

Two agents may delegate to each other; the engine limits the depth. An agent that delegates to itself is an
error.
"""

from __future__ import annotations

import re
from collections.abc import Collection

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


def check_forced(fields: Fields, agents: Collection[str], findings: Findings) -> None:
    """Forced handoffs are not supported yet, but an unknown name is already an error."""
    forced = fields.values.get("force_handoff")
    if forced is not None and forced.raw not in agents:
        _elsewhere(forced, agents, findings)
