"""Reads an agent file: bytes in, agents and findings out.

Loading executes nothing. A key that is not supported is a warning with its line. An unknown key or a wrong
value is an error, and a file with an error is not served.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lastgood.agents.builder import AgentBuilder, ReadBeside
from lastgood.agents.findings import MOST_FINDINGS, Finding, Findings, Level, Location, TooManyFindings
from lastgood.agents.schema.file import FILE, NEWEST
from lastgood.agents.schema_reader import Fields, SchemaReader
from lastgood.agents.toolset_builder import plain
from lastgood.agents.type_checks import shown
from lastgood.agents.yaml_tree import Scalar, TreeMapping, read_tree
from lastgood.errors import AgentInvalid
from lastgood.model.agents import AgentSpec

__all__ = ["AgentFile", "Finding", "Level", "ReadBeside", "read_agent_file"]


@dataclass(frozen=True, slots=True)
class AgentFile:
    """`agents` are in the order of the file. The members of each are all the others, without members."""

    root: str
    agents: Mapping[str, AgentSpec]
    warnings: tuple[Finding, ...] = ()
    version: int = NEWEST
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read_agent_file(
    body: bytes,
    *,
    where: str,
    key: str,
    trusted: bool = True,
    read_beside: ReadBeside | None = None,
) -> AgentFile:
    """Raises AgentInvalid, whose detail holds all findings. `trusted` is False for what came from a URL."""
    findings = Findings()
    file: Fields | None = None
    agents: dict[str, AgentSpec] = {}
    read: list[tuple[str, bytes]] = []
    surplus: tuple[Finding, ...] = ()
    version = NEWEST
    try:
        tree = read_tree(body, findings)
        if tree is not None and not isinstance(tree, TreeMapping):
            what = "an agent file is a mapping, with `agents:` among its keys"
            findings.error(Location(tree.line, tree.column), f"{what}; this is {shown(tree)}")
        elif tree is not None:
            version, is_versioned = (
                _version(tree, findings),
                any(name.text == "version" for name, _ in tree.pairs),
            )
            value = SchemaReader(findings, version, is_versioned).read(
                tree, FILE, Location(tree.line, tree.column)
            )
            file = None if value is None else value.raw
        if file is not None:
            builder = AgentBuilder(file, findings, trusted=trusted, read_beside=read_beside)
            agents, read = builder.build(), builder.read
    except TooManyFindings:
        what = f"more than {MOST_FINDINGS} findings; correct these first"
        surplus = (Finding(1, 1, "", Level.ERROR, what),)
    found = (*findings.all(), *surplus)
    _refuse_errors(found, where)
    assert file is not None
    digest = _digest(body, trusted, read)
    notes = tuple(f"{where}:{one.line}: {one.message}" for one in found)
    agents = {name: replace(agent, key=key, digest=digest, warnings=notes) for name, agent in agents.items()}
    return AgentFile(
        root="root" if "root" in agents else next(iter(agents)),
        agents={name: replace(agent, members=_others(name, agents)) for name, agent in agents.items()},
        warnings=found,
        version=version,
        metadata=plain(file.raw("metadata")) or {},
    )


def _others(name: str, agents: Mapping[str, AgentSpec]) -> dict[str, AgentSpec]:
    return {other: agent for other, agent in agents.items() if other != name}


def _version(tree: TreeMapping, findings: Findings) -> int:
    """Decides which keys of older versions are accepted. Runs before anything else is read."""
    node = next((child for name, child in tree.pairs if name.text == "version"), None)
    if not isinstance(node, Scalar) or node.is_null:
        return NEWEST
    place = Location(node.line, node.column, "version")
    if not (node.text.isascii() and node.text.isdecimal() and len(node.text) < 6):
        findings.error(place, f"'{node.text}' is not a valid version; expected a number from 0 to {NEWEST}")
        return NEWEST
    version = int(node.text)
    if version > NEWEST:
        what = f"version {version} is newer than the newest known version; it is read as version {NEWEST}"
        findings.warning(place, what)
    return version


def _refuse_errors(found: Iterable[Finding], where: str) -> None:
    found = tuple(found)
    errors = [one for one in found if one.level is Level.ERROR]
    if not errors:
        return
    first, more = errors[0], len(errors) - 1
    count = f"{more} more {'error' if more == 1 else 'errors'}"
    rest = f" (and {count}; `lastgood agents check` lists all)" if more else ""
    raise AgentInvalid(
        f"{where}:{first.line}: {first.message}{rest}",
        where=where,
        findings=[one.as_json() for one in found],
    )


def _digest(body: bytes, trusted: bool, read: Iterable[tuple[str, bytes]]) -> str:
    whole = hashlib.sha256(b"trusted\n" if trusted else b"untrusted\n")
    whole.update(hashlib.sha256(body).digest())
    for path, text in read:
        whole.update(hashlib.sha256(path.encode()).digest() + hashlib.sha256(text).digest())
    return f"sha256:{whole.hexdigest()}"
