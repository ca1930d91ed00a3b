"""Planted defects of hooks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from lastgood.agents.hook_builder import HookBuilder
from lastgood.core import hooks as core_hooks
from lastgood.core.hooks import HookDecision
from lastgood.engine.agent_run import Stage
from lastgood.engine.hooks import turn_hooks
from lastgood.engine.hooks.turn_hooks import Ruling, TurnHooks
from lastgood.model.attempts import StepKind
from lastgood.model.hooks import HookEvent
from tests.faults.defects import defect

#: The simulation has no hooks.
OF_HOOKS = {
    "the denial of a hook is ignored",
    "a guard that fails lets the call through",
    "what hooks said is lost on a retry",
    "what hooks ruled is forgotten while a person thinks",
    "hooks of a file from a URL run",
}


@defect("the denial of a hook is ignored")
def _() -> Iterator[None]:
    real = TurnHooks.before_tool

    async def before_tool(self: TurnHooks, *args: Any) -> Ruling:
        ruling = await real(self, *args)
        return replace(ruling, decision=None) if ruling.decision is HookDecision.DENY else ruling

    with patch.object(TurnHooks, "before_tool", before_tool):
        yield


@defect("a guard that fails lets the call through")
def _() -> Iterator[None]:
    event = HookEvent.PRE_TOOL_USE
    open_ = replace(core_hooks.CONTRACTS[event], fails_closed=False)
    with patch.dict(core_hooks.CONTRACTS, {event: open_}):
        yield


@defect("what hooks said is lost on a retry")
def _() -> Iterator[None]:
    real = TurnHooks.open

    async def open_(self: TurnHooks, stage: Stage) -> None:
        stage.steps[:] = [step for step in stage.steps if step.kind is not StepKind.HOOK]
        await real(self, stage)

    with patch.object(TurnHooks, "open", open_):
        yield


@defect("what hooks ruled is forgotten while a person thinks")
def _() -> Iterator[None]:
    with patch.object(turn_hooks, "ruled", lambda steps, call: None):
        yield


@defect("hooks of a file from a URL run")
def _() -> Iterator[None]:
    real = HookBuilder.of

    def of(self: HookBuilder, agent: Any) -> Any:
        self._trusted = True
        return real(self, agent)

    with patch.object(HookBuilder, "of", of):
        yield
