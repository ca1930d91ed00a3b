"""The skills of an agent as tools: the model reads the list in its prompt and the skills when it needs them.

Folders are looked through before every model call, so a skill that was edited counts at once. What a turn has
read stays as it was read: it is a tool result, in the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from lastgood.core.egress import Policy
from lastgood.core.skills import (
    READ_SKILL,
    READ_SKILL_FILE,
    RUN_SKILL,
    ListedSkill,
    SkillHeader,
    about_skills,
    instructions_of,
    is_skill_file,
)
from lastgood.engine.skills.local_skills import SKILL_FILE, local_skills
from lastgood.engine.skills.remote_skills import RemoteSkills
from lastgood.engine.skills.skill import Found, Skill
from lastgood.engine.tools.arguments import checked
from lastgood.engine.tools.program_tools import LiveProgram, Offer, SessionPlace
from lastgood.engine.tools.tool import ForkRequested, Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.outside.network import Network

LOCAL = "local"


class SkillToolset:
    def __init__(self, home: str | None, network: Network) -> None:
        """`home`: of the user that the server runs as."""
        self._home = home
        self._remote = RemoteSkills(network)

    def program(self, spec: ToolsetSpec, place: SessionPlace) -> LiveProgram:
        return SessionSkills(spec, place, self._home, self._remote)

    async def close(self) -> None:
        """Nothing is running."""


class SessionSkills:
    def __init__(
        self, spec: ToolsetSpec, place: SessionPlace, home: str | None, remote: RemoteSkills
    ) -> None:
        self._spec, self._place, self._home, self._remote = spec, place, home, remote
        self._inline = tuple(_inline(one) for one in spec.options.get("inline") or ())

    async def offer(self) -> Offer:
        options = self._spec.options
        found = await asyncio.gather(*(self._from(source) for source in options.get("sources") or ()))
        wanted = frozenset(options.get("include") or ())
        by_name = {
            skill.header.name: skill
            for one in found
            for skill in one.skills
            if not wanted or skill.header.name in wanted
        }
        by_name |= {skill.header.name: skill for skill in self._inline}
        skills = tuple(by_name[name] for name in sorted(by_name))
        listed = [skill.listed for skill in skills]
        problems = [one.problem for one in found if one.problem]
        return Offer(tuple(_tools(by_name, listed)), about_skills(listed, problems), label="skills")

    async def _from(self, source: str) -> Found:
        if source != LOCAL:
            return await self._remote.of(source, Policy(loopback=self._spec.trusted))
        # The builder leaves this source out for such a file, too: checked twice, because it must never load.
        return await local_skills(self._home, self._place.working_dir) if self._spec.trusted else Found()

    async def close(self) -> None:
        """Nothing is running."""


def _inline(plain: Mapping[str, Any]) -> Skill:
    header = SkillHeader(
        str(plain["name"]),
        str(plain["description"]),
        is_fork=plain.get("context") == "fork",
        model=str(plain.get("model", "")),
        allowed_tools=tuple(plain.get("allowed_tools") or ()),
        toolsets=tuple(plain.get("toolsets") or ()),
    )

    async def read(path: str) -> str:
        return str(plain["instructions"])

    return Skill(ListedSkill(header), read)


def _tools(skills: Mapping[str, Skill], listed: Sequence[ListedSkill]) -> list[Tool]:
    def skill_of(name: str) -> Skill:
        skill = skills.get(name)
        if skill is None:
            raise ToolFailed(f"there is no skill {name!r}; the skills are {', '.join(sorted(skills))}")
        return skill

    async def read_skill(use: ToolUse) -> str:
        return instructions_of(await skill_of(use.arguments["name"]).read(SKILL_FILE))

    async def read_skill_file(use: ToolUse) -> str:
        skill, path = skill_of(use.arguments["skill_name"]), use.arguments["path"]
        if not is_skill_file(path):
            raise ToolFailed(
                f"{path!r} is not a path of a file in a skill; give it as the list of skills has it"
            )
        if not skill.listed.files:
            raise ToolFailed(f"the skill {skill.header.name!r} has no files but its instructions")
        return await skill.read(path)

    async def run_skill(use: ToolUse) -> str:
        skill = skill_of(use.arguments["name"])
        header = skill.header
        if not header.is_fork:
            raise ToolFailed(f"the skill {header.name!r} is not marked (forked); read it with {READ_SKILL}")
        if header.toolsets and not skill.is_trusted:
            raise ToolFailed(
                f"the skill {header.name!r} names toolsets, which a skill in a working directory may not do; "
                "move it to the home of the server's user, or into the agent file"
            )
        text = instructions_of(await skill.read(SKILL_FILE))
        raise ForkRequested(
            header.name,
            f"Follow this skill.\n\nThe request: {use.arguments['task']}\n\n"
            f'<skill name="{header.name}">\n{text}\n</skill>',
            model=header.model,
            allowed_tools=header.allowed_tools,
            toolsets=header.toolsets,
            is_trusted=skill.is_trusted,
        )

    name = {"type": "string", "description": "The name of the skill"}
    tools: list[Tool] = []
    if listed:
        tools.append(_tool(READ_SKILL, "Reads the instructions of a skill.", read_skill, name=name))
    if any(skill.files for skill in listed):
        path = {"type": "string", "description": "The path of the file, as the list of skills has it"}
        about = "Reads a file of a skill. Use it if the skill's instructions name the file."
        tools.append(_tool(READ_SKILL_FILE, about, read_skill_file, skill_name=name, path=path))
    if any(skill.header.is_fork for skill in listed):
        task = {"type": "string", "description": "The task, with all the context it needs"}
        about = "Runs a skill marked (forked) apart from this conversation, and returns its answer."
        tools.append(_tool(RUN_SKILL, about, run_skill, name=name, task=task))
    return tools


def _tool(name: str, about: str, run: Any, /, **properties: dict[str, Any]) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return checked(Tool(name, about, schema, run, on_unknown=OnUnknown.REPEAT, effect=Effect.SAFE))
