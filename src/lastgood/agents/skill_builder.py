"""Builds the skills of agents: their sources, the names that count, and those that the file itself holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lastgood.agents.findings import Findings, Location, hint
from lastgood.agents.schema_reader import Fields, Value
from lastgood.agents.toolset_builder import plain
from lastgood.core.skills import is_skill_name
from lastgood.model.agents import ToolsetSpec

LOCAL = "local"
_FORK_ONLY = ("model", "allowed_tools", "toolsets")


@dataclass(slots=True)
class _Skills:
    """`include`: names of the skills of sources that count; none: all of them. Inline ones always count."""

    sources: list[str] = field(default_factory=list)
    include: list[str] = field(default_factory=list)
    inline: list[dict[str, Any]] = field(default_factory=list)


class SkillBuilder:
    def __init__(
        self,
        groups: Mapping[str, Value],
        toolsets: Collection[str],
        refer: Callable[[str, Location], str | None],
        findings: Findings,
        trusted: bool,
    ) -> None:
        """`toolsets`: names that skills may add. `refer` checks the reference to a model."""
        self._toolsets = toolsets
        self._refer = refer
        self._findings = findings
        self._trusted = trusted
        self._groups = {name: self._read(value) for name, value in groups.items()}

    def of(self, agent: Fields) -> ToolsetSpec | None:
        """Its own and those of the groups that it uses, as a toolset; None: it has no skills."""
        parts = [self._read(agent.values["skills"])] if "skills" in agent else []
        for name in agent.listed("use_skills"):
            if name.raw not in self._groups:
                near = hint(name.raw, self._groups) or "; define it there"
                self._findings.error(name.place, f"'{name.raw}' is not in `skills`{near}")
            parts += [self._groups[name.raw]] if name.raw in self._groups else []
        sources = tuple(dict.fromkeys(one for part in parts for one in part.sources))
        inline = {one["name"]: one for part in reversed(parts) for one in part.inline}
        if not sources and not inline:
            return None
        options = {
            "sources": sources,
            "include": tuple(dict.fromkeys(one for part in parts for one in part.include)),
            "inline": tuple(inline.values()),
        }
        return ToolsetSpec("skills", options=options, trusted=self._trusted)

    def _read(self, value: Value) -> _Skills:
        found = _Skills()
        if isinstance(value.raw, bool):
            found.sources += [LOCAL] if value.raw else []
        else:
            self._read_list(value.raw, found)
            if found.include and not found.sources:
                found.sources.append(LOCAL)
        if LOCAL in found.sources and not self._trusted:
            what = "an agent file from a URL gets no skills of this machine: 'local' is ignored"
            self._findings.warning(value.place, what)
            found.sources.remove(LOCAL)
        return found

    def _read_list(self, entries: Iterable[Value], found: _Skills) -> None:
        for one in entries:
            if isinstance(one.raw, Fields):
                skill = self._inline(one.raw)
                found.inline += [] if skill is None else [skill]
            elif one.raw == LOCAL or one.raw.startswith(("http://", "https://")):
                found.sources.append(one.raw)
            elif is_skill_name(one.raw):
                found.include.append(one.raw)
            else:
                what = f"'{one.raw}' is not a source or name of skills; use `local`, a URL or a name"
                self._findings.error(one.place, what)

    def _inline(self, fields: Fields) -> dict[str, Any] | None:
        name = fields.text("name")
        if name and not is_skill_name(name):
            what = f"'{name}' is not a valid name of a skill; use letters, digits, '.', '-' and '_'"
            self._findings.error(fields.at("name"), what)
        for key in _FORK_ONLY:
            if key in fields and fields.text("context") != "fork":
                self._findings.error(fields.at(key), f"'{key}' is for skills with `context: fork` only")
        if "model" in fields:
            self._refer(fields.text("model"), fields.at("model"))
        for one in fields.listed("toolsets"):
            if one.raw not in self._toolsets:
                near = hint(one.raw, self._toolsets) or "; define it there"
                self._findings.error(one.place, f"'{one.raw}' is not in `toolsets`{near}")
        is_whole = {"name", "description", "instructions"} <= fields.values.keys()
        return {key: plain(one) for key, one in fields.values.items()} if is_whole else None
