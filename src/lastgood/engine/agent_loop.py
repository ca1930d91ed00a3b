"""The engine: the models and tools of this process, put to work on one turn after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

from lastgood.core.history import valid_text
from lastgood.engine.budget_meter import BudgetMeter
from lastgood.engine.hooks.runner import HookRunner
from lastgood.engine.hooks.turn_hooks import TurnHooks
from lastgood.engine.providers.fallback_chain import FallbackChain
from lastgood.engine.providers.model_references import why_offline
from lastgood.engine.providers.provider import ModelAnswer, ModelCall, Providers
from lastgood.engine.tool_calls import ToolCaller
from lastgood.engine.toolboxes import Toolboxes
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.program_tools import LiveToolsets
from lastgood.engine.tools.tool import Toolsets
from lastgood.engine.turn_loop import TurnLoop
from lastgood.errors import TurnFailed
from lastgood.model.agents import AUTO, AgentSpec, ModelSpec, Safety
from lastgood.model.hooks import HookSpec
from lastgood.model.ids import SessionId
from lastgood.model.messages import Message, Role, user
from lastgood.ports.engine import Emit, Work

_FOR_HOOKS = {"purpose": "hook"}


class AgentLoop:
    def __init__(
        self,
        providers: Providers,
        toolsets: Toolsets,
        live_toolsets: LiveToolsets | None = None,
        *,
        now: Callable[[], float],
        safety: Safety = Safety.RESTRICTED,
        work_dirs: Path | None = None,
        working_dir_root: Path | None = None,
        scrub: Callable[[str], str] = str,
        approval_seconds: float = 24 * 3600.0,
        environment: Environment | None = None,
    ) -> None:
        """`scrub` removes secrets from tool results before anybody sees or stores them. `environment` is what
        commands of hooks find in theirs; without it, no hook runs and agents that have some are refused."""
        self._asking = FallbackChain(providers)
        self._toolboxes = Toolboxes(toolsets, live_toolsets or {}, work_dirs, working_dir_root)
        self._tool_caller = ToolCaller(self._toolboxes, safety, approval_seconds)
        self._now = now
        self._scrub = scrub
        self._hooks = HookRunner(environment) if environment is not None else None

    async def run(self, work: Work, emit: Emit) -> None:
        hooks = self._hooks_of(work, emit) if work.agent.has_hooks else None
        meter = BudgetMeter(work) if work.agent.budgets else None
        turn = TurnLoop(self._asking, self._tool_caller, self._now, self._scrub, work, emit, hooks, meter)
        with self._toolboxes.in_use(work.hold.session):
            await turn.run()

    def _hooks_of(self, work: Work, emit: Emit) -> TurnHooks:
        if self._hooks is None:
            raise TurnFailed("The agent has hooks, and this engine cannot run any; nothing was committed")
        folder, ask = partial(self._tool_caller.working_dir, work), partial(self._ask_for_hook, work)
        return TurnHooks(self._hooks, work, folder, ask, emit)

    async def _ask_for_hook(self, work: Work, hook: HookSpec, system: str, prompt: str) -> str:
        messages = (
            *((Message(Role.SYSTEM, valid_text(system)),) if system else ()),
            user(valid_text(prompt)),
        )
        models = self._asking.models(hook.model, (), work.agent.models, work.turn)
        return await self._answer(work.agent, models, ModelCall(models[0], messages, about=_FOR_HOOKS)) or ""

    def check_model(self, model: str, agent: AgentSpec | None = None) -> None:
        self._asking.check(model, agent.models if agent else {})

    @property
    def any_model(self) -> ModelSpec:
        """The model that `auto` means."""
        return self._asking.models(AUTO, (), {}, "")[0]

    def first_model(self, agent: AgentSpec) -> str:
        """The model that is called first for this agent, if no turn names another one."""
        if agent.harness is not None:
            return agent.model
        return self._asking.models(agent.model, (), agent.models, "")[0].ref

    def why_offline(self, agent: AgentSpec) -> str | None:
        """Why the offline model answers for this agent, and what to do; None: it does not."""
        return why_offline(self.any_model) if agent.model == AUTO and agent.harness is None else None

    def why_no_answer(self, agent: AgentSpec) -> str | None:
        """Returns why no model of the agent can be called (no provider or no key), or None."""
        return None if agent.harness is not None else self._asking.why_no_answer(agent)

    def answer_with(self, model: ModelSpec) -> None:
        """Sets the model that `auto` means if no key is set. Called before the first turn."""
        self._asking.otherwise = model

    def check_working_dir(self, path: str) -> str:
        return self._toolboxes.check(path)

    def idle_sessions(self) -> Sequence[SessionId]:
        return self._toolboxes.idle_sessions()

    async def forget(self, session: SessionId) -> None:
        await self._toolboxes.forget(session)

    async def close(self) -> None:
        if self._hooks is not None:
            await self._hooks.close()
        await self._toolboxes.close()
        await self._asking.close()

    async def title(self, agent: AgentSpec, messages: Sequence[Message]) -> str | None:
        if agent.title_model is None:
            return None
        system = Message(
            Role.SYSTEM, "Give this conversation a title of at most six words. Answer with it alone."
        )
        said = tuple(user(message.content) for message in messages if message.role is Role.USER)
        models = self._asking.models(agent.title_model, (), agent.models, "")
        call = ModelCall(models[0], (system, *said), about={"purpose": "title"})
        answer = await self._answer(agent, models, call)
        return " ".join(answer.split())[:80] or None if answer else None

    async def _answer(self, agent: AgentSpec, models: Sequence[ModelSpec], call: ModelCall) -> str | None:
        async with aclosing(self._asking.ask(models, call, agent.fallback)) as parts:
            async for part in parts:
                if isinstance(part, ModelAnswer):
                    return valid_text(part.message.content)
        return None
