"""Decides what an agent file means: from its sections to agents that can be run.

Starts nothing and fetches nothing. Reads only instruction files, through the reader that was passed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from lastgood.agents.agent_commands import Commands
from lastgood.agents.budget_builder import BudgetBuilder, in_use
from lastgood.agents.findings import Findings, Location, hint
from lastgood.agents.hook_builder import HookBuilder, redacts_prompts
from lastgood.agents.model_resolver import ModelResolver
from lastgood.agents.placeholders import check_text
from lastgood.agents.schema_reader import Fields, Value
from lastgood.agents.skill_builder import SkillBuilder
from lastgood.agents.subagents import forced_handoffs, local_agents
from lastgood.agents.toolset_builder import ToolsetBuilder
from lastgood.core.limits import RULE_CHARACTERS, RULES
from lastgood.core.tool_permissions import narrowing
from lastgood.errors import AgentInvalid
from lastgood.model.agents import (
    AUTO,
    AgentSpec,
    Fallback,
    Permissions,
    Safety,
    StructuredOutput,
    ToolsetSpec,
)

#: Reads a file in the folder of the agent file; None: it does not exist.
ReadBeside = Callable[[str], bytes | None]
#: Their programs take a model as an option. The protocol of the others has no field for it.
CHOOSING_HARNESSES = ("claude-code", "codex", "command")
_UNSET = AgentSpec("", "", "", "")
_CONDITION = re.compile(r":[A-Za-z_][\w.-]*=")


class AgentBuilder:
    def __init__(
        self, file: Fields, findings: Findings, *, trusted: bool, read_beside: ReadBeside | None
    ) -> None:
        self._file = file
        self._findings = findings
        self._trusted = trusted
        self._read_beside = read_beside if trusted else None
        self._agents = _sections(file, "agents")
        self._models = ModelResolver(
            _sections(file, "models"), _sections(file, "providers"), findings, trusted
        )
        self._toolsets = ToolsetBuilder(
            _sections(file, "toolsets"), _sections(file, "mcps"), file.named("rag"), findings, trusted
        )
        for toolset in _sections(file, "toolsets").values():
            self._check_model(toolset)
        named = {name: spec for name, spec in self._toolsets.named.items() if spec is not None}
        self._skills = SkillBuilder(file.named("skills"), named, self._models.refer, findings, trusted)
        self._skill_toolsets = named
        self._commands = Commands(file.named("commands"), self._agents, findings, trusted=trusted)
        self._permissions = self._read_permissions()
        self._forced = forced_handoffs(self._agents, findings)
        self._hooks = HookBuilder(findings, self._models.refer, trusted=trusted)
        #: Files read next to the agent file; they are part of the definition.
        self.read: list[tuple[str, bytes]] = []

    def build(self) -> dict[str, AgentSpec]:
        """Returns the agents in the order of the file, without their members. References are checked."""
        for name, fields in self._agents.items():
            check_text(fields, ("description", "instruction", "welcome_message"), self._findings)
            if "/" in name:
                self._findings.error(fields.place, f"the agent's name '{name}' cannot contain '/'")
        built = {name: self._agent(name, fields) for name, fields in self._agents.items()}
        models = {name: agent.model for name, agent in built.items()}
        budgets = BudgetBuilder(self._file, self._agents, self._findings).build(models, self._models.specs)
        used = tuple(in_use(budgets))
        return {name: replace(agent, budgets=used) for name, agent in built.items()} if used else built

    def _agent(self, name: str, fields: Fields) -> AgentSpec:
        model = self._model(name, fields)
        spec = self._models.specs.get(model)
        hooks = self._hooks.of(fields)
        skills = self._skills_of(fields)
        return AgentSpec(
            key="",
            name=name,
            model=model,
            digest="",
            description=fields.text("description"),
            instruction=self._instruction(fields),
            welcome_message=fields.text("welcome_message"),
            title_model=spec.title_model if spec else None,
            toolsets=(*self._toolsets_of(fields), *skills),
            sub_agents=self._called_on(name, fields, "sub_agents"),
            handoffs=self._called_on(name, fields, "handoffs"),
            force_handoff=self._forced.get(name),
            fallback=self._fallback(fields),
            commands=self._commands.of(fields),
            structured_output=self._structured_output(fields),
            permissions=self._permissions,
            safety=self._safety(fields),
            readonly=fields.raw("readonly", False),
            redact_secrets=fields.raw("redact_secrets", False) or redacts_prompts(hooks),
            max_iterations=fields.raw("max_iterations") or _UNSET.max_iterations,
            max_consecutive_tool_calls=fields.raw("max_consecutive_tool_calls")
            or _UNSET.max_consecutive_tool_calls,
            max_tool_result_tokens=max(fields.raw("max_tool_result_tokens", 0), 0),
            max_old_tool_call_tokens=max(fields.raw("max_old_tool_call_tokens", 0), 0),
            num_history_items=fields.raw("num_history_items", 0),
            add_date=fields.raw("add_date", False),
            add_environment_info=fields.raw("add_environment_info", False),
            add_prompt_files=self._prompt_files(fields),
            add_description_parameter=fields.raw("add_description_parameter", False),
            hooks=hooks,
            harness=self._harness(fields),
            harness_model=self._of_harness(fields, "model"),
            harness_effort=self._of_harness(fields, "effort"),
            skill_toolsets=self._skill_toolsets if skills else {},
            models=self._models.specs,
        )

    # -- models ------------------------------------------------------------------------

    def _model(self, name: str, fields: Fields) -> str:
        harness = self._harness(fields)
        if harness is not None:
            # Its CLI calls models by itself, so keys and models of this server do not matter.
            if "model" in fields:
                what = f"'model' is ignored: {harness} chooses its model"
                self._findings.warning(fields.at("model"), what)
            return f"harness/{harness}"
        if "model" in fields:
            return self._models.refer(fields.text("model"), fields.at("model")) or ""
        if "model" not in fields.seen and "harness" not in fields.seen:
            what = f"the agent '{name}' has no model; using `auto`: the first provider whose API key is set"
            self._findings.warning(fields.place, what)
        return AUTO

    def _fallback(self, fields: Fields) -> Fallback:
        section: Fields | None = fields.raw("fallback")
        if section is None:
            return Fallback()
        refs = (self._models.refer(one.raw, one.place) for one in section.listed("models"))
        retries = section.raw("retries", 0)
        return Fallback(
            models=tuple(ref for ref in refs if ref is not None),
            retries={0: _UNSET.fallback.retries, -1: 0}.get(retries, retries),
            cooldown_seconds=section.raw("cooldown") or _UNSET.fallback.cooldown_seconds,
        )

    def _harness(self, fields: Fields) -> str | None:
        section: Fields | None = fields.raw("harness")
        return None if section is None else section.text("type") or None

    def _of_harness(self, fields: Fields, key: str) -> str | None:
        section: Fields | None = fields.raw("harness")
        if section is None or not section.text(key):
            return None
        if section.text("type") in CHOOSING_HARNESSES:
            return section.text(key)
        what = f"'{key}' is not supported yet for {section.text('type')}: its own configuration decides"
        self._findings.warning(section.at(key), what)
        return None

    def _called_on(self, name: str, fields: Fields, key: str) -> tuple[str, ...]:
        """A team runs within one attempt of this server; an agent on a runtime has an attempt of its own."""
        found = local_agents(name, fields, key, self._agents, self._findings)
        remote = [one for one in found if self._agents[one].raw("harness") is not None]
        if remote:
            names = ", ".join(f"'{one}'" for one in remote)
            what = f"calls to agents with a harness are not supported yet: {names} ignored"
            self._findings.warning(fields.at(key), what)
        return tuple(one for one in found if one not in remote)

    # -- the system prompt ----------------------------------------------------------------

    def _instruction(self, fields: Fields) -> str:
        if "instruction_file" not in fields:
            return "\n\n".join(one.raw for one in fields.listed("instruction"))
        if "instruction" in fields.seen:
            what = "use either 'instruction' or 'instruction_file', not both"
            self._findings.error(fields.at("instruction_file"), what)
        texts = (self._beside(one.raw, one.place) for one in fields.listed("instruction_file"))
        return "\n\n".join(text for text in texts if text is not None)

    def _beside(self, path: str, place: Location) -> str | None:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or not path.strip():
            self._findings.error(place, f"'{path}' must be a path inside the folder of this file")
            return None
        if self._read_beside is None:
            what = f"'{path}' cannot be read from a URL source: the agent runs without this instruction"
            self._findings.warning(place, what)
            return None
        try:
            body = self._read_beside(path)
            if body is None:
                self._findings.error(place, f"file '{path}' not found in the folder of this file")
                return None
            self.read.append((path, body))
            return body.decode("utf-8-sig")
        except AgentInvalid as error:
            self._findings.error(place, error.message)
        except UnicodeDecodeError:
            self._findings.error(place, f"'{path}' is not UTF-8; save it as UTF-8")
        return None

    def _prompt_files(self, fields: Fields) -> tuple[str, ...]:
        files = tuple(one.raw for one in fields.listed("add_prompt_files"))
        if files and not self._trusted:
            what = "an agent file from a URL may not read local files: 'add_prompt_files' is ignored"
            self._findings.warning(fields.at("add_prompt_files"), what)
            return ()
        return files

    def _structured_output(self, fields: Fields) -> StructuredOutput | None:
        section: Fields | None = fields.raw("structured_output")
        if section is None or not {"name", "schema"} <= section.values.keys():
            return None
        if section.text("mode") == "tool":
            what = "'tool' is not supported yet: the provider's structured output is used instead"
            self._findings.warning(section.at("mode"), what)
        schema: dict[str, Any] = section.raw("schema")
        return StructuredOutput(
            section.text("name"), schema, section.text("description"), section.raw("strict", False)
        )

    # -- what it may do ------------------------------------------------------------------

    def _toolsets_of(self, fields: Fields) -> Iterator[ToolsetSpec]:
        yield from _older_toolsets(fields, self._trusted)
        for one in fields.listed("toolsets"):
            spec = self._toolsets.build(one.raw)
            self._check_model(one.raw)
            yield from () if spec is None else (spec,)
        for name in fields.listed("use_toolsets"):
            if name.raw not in self._toolsets.named:
                near = hint(name.raw, self._toolsets.named) or "; define it there"
                self._findings.error(name.place, f"'{name.raw}' is not in `toolsets`{near}")
            spec = self._toolsets.named.get(name.raw)
            yield from () if spec is None else (spec,)

    def _skills_of(self, fields: Fields) -> tuple[ToolsetSpec, ...]:
        spec = self._skills.of(fields)
        if spec is not None and self._harness(fields) is not None:
            key = "skills" if "skills" in fields else "use_skills"
            self._findings.warning(fields.at(key), f"'{key}' is ignored: the CLI has skills of its own")
            return ()
        return () if spec is None else (spec,)

    def _check_model(self, toolset: Fields) -> None:
        if "model" in toolset:
            self._models.refer(toolset.text("model"), toolset.at("model"))
        for one in toolset.listed("models"):
            self._models.refer(one.raw, one.place)

    def _safety(self, fields: Fields) -> Safety | None:
        runtime: Fields | None = self._file.raw("runtime")
        said = fields.text("safety") or (runtime.text("safety") if runtime else "")
        return Safety(said) if said else None

    def _read_permissions(self) -> Permissions:
        section: Fields | None = self._file.raw("permissions")
        if section is None:
            return Permissions()
        listed = {key: section.listed(key) for key in ("allow", "ask", "deny")}
        count = sum(map(len, listed.values()))
        if count > RULES:
            what = f"too many permission rules: {count:,} (limit {RULES:,}); use globs to need fewer"
            self._findings.error(section.place, what)
            return Permissions()
        rules = Permissions(*(tuple(self._rules(values)) for values in listed.values()))
        if rules.allow and not self._trusted:
            what = "an agent file from a URL may not allow its own tool calls: these rules are ignored"
            self._findings.warning(section.at("allow"), what)
        return rules if self._trusted else narrowing(rules)

    def _rules(self, values: list[Value]) -> Iterator[str]:
        for value in values:
            if len(value.raw) > RULE_CHARACTERS:
                what = f"this rule has {len(value.raw):,} characters; the limit is {RULE_CHARACTERS:,}"
                self._findings.error(value.place, what)
                continue
            tool = _CONDITION.split(value.raw.strip(), maxsplit=1)[0]
            if not tool or re.search(r"[\s=]", tool):
                what = f"'{value.raw}' is not a valid rule; write TOOL, GLOB* or TOOL:ARGUMENT=GLOB"
                self._findings.error(value.place, what)
            yield value.raw.strip()


def _older_toolsets(fields: Fields, trusted: bool) -> Iterator[ToolsetSpec]:
    """What version 0 of the format said on the agent itself."""
    todo = fields.raw("todo", False)
    if todo:
        shared = isinstance(todo, Fields) and todo.raw("shared", False)
        yield ToolsetSpec("todo", options={"shared": True} if shared else {}, trusted=trusted)
    if fields.raw("think", False):
        yield ToolsetSpec("think", trusted=trusted)
    memory: Fields | None = fields.raw("memory")
    if memory is not None:
        yield ToolsetSpec("memory", options={"path": memory.text("path")}, trusted=trusted)


def _sections(file: Fields, key: str) -> Mapping[str, Fields]:
    return {name: value.raw for name, value in file.named(key).items()}
