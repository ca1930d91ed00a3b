"""The real loop over models and tools of a test."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lastgood.engine.agent_loop import AgentLoop
from lastgood.engine.providers.provider import Provider
from lastgood.engine.providers.provider_table import ProviderTable
from lastgood.engine.tools.builtin import first_toolsets
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.tool import Tool, Toolset
from lastgood.model.agents import Safety, ToolsetSpec
from lastgood.outside.secrets import Secrets


@dataclass(frozen=True, slots=True)
class Kit:
    """Models by reference, and tools, each a toolset of its own name."""

    providers: Mapping[str, Provider] = field(default_factory=dict)
    tools: Sequence[Tool] = ()
    safety: Safety = Safety.AUTONOMOUS
    work_dirs: Path | None = None
    working_dir_root: Path | None = None
    secrets: Secrets = field(default_factory=lambda: Secrets({}))

    def plus(self, providers: Mapping[str, Provider], tools: Sequence[Tool]) -> Kit:
        return replace(self, providers={**self.providers, **providers}, tools=(*self.tools, *tools))

    def engine(self) -> AgentLoop:
        return AgentLoop(
            ProviderTable(Secrets({}), fixed=self.providers),
            {**_BUILTIN, **{tool.name: _only(tool) for tool in self.tools}},
            now=time.time,
            safety=self.safety,
            work_dirs=self.work_dirs,
            working_dir_root=self.working_dir_root,
            scrub=self.secrets.scrub,
            environment=Environment(os.environ, self.secrets),
        )


#: Those that need no more than the conversation.
_BUILTIN = {"todo": first_toolsets(Secrets({}))["todo"]}


def _only(tool: Tool) -> Toolset:
    return lambda spec: [tool]


def toolsets(*names: str) -> tuple[ToolsetSpec, ...]:
    return tuple(ToolsetSpec(name) for name in names)
