"""Work apart from the conversation: a task for another agent, or a skill that the same agent runs alone."""

from __future__ import annotations

from dataclasses import replace

from lastgood.core.globs import Glob
from lastgood.core.history import repair
from lastgood.core.speaker import TRANSFER
from lastgood.engine.agent_run import Stage
from lastgood.engine.providers.fallback_chain import FallbackChain
from lastgood.engine.team_tools import DEEPEST, task_of
from lastgood.engine.tools.arguments import arguments_of
from lastgood.engine.tools.tool import ForkRequested, ToolFailed
from lastgood.model.agents import AgentSpec, Fallback
from lastgood.model.attempts import Step, StepKind, said
from lastgood.model.messages import ToolCall, user
from lastgood.ports.engine import Work


def task_stage(work: Work, stage: Stage, call: ToolCall) -> Stage:
    """ToolFailed: the arguments name no agent or no task."""
    _check_depth(stage)
    other, task = task_of(stage.agent, work.agent, arguments_of(call))
    within = stage.place_of(call.id) + "/"
    return Stage(
        entry=other,
        earlier=(),
        own=lambda steps: repair((task, *said(steps))),
        steps=[step for step in work.steps if step.within == within],
        within=within,
        callers=(*stage.callers, stage.agent),
        shared_todos=stage.shared_list(),
    )


def fork_stage(work: Work, stage: Stage, call: ToolCall, fork: ForkRequested, models: FallbackChain) -> Stage:
    """Its first step is the prompt, so that a later attempt goes on with the skill as it was read, whatever
    it says by then. ToolFailed: the skill names a toolset that the file does not have."""
    _check_depth(stage)
    within = stage.place_of(call.id) + "/"
    return Stage(
        entry=_forked(stage.agent, fork, _model_of(work, stage.agent, fork, models)),
        earlier=(),
        own=lambda steps: repair(said(steps)),
        steps=[step for step in work.steps if step.within == within],
        within=within,
        callers=(*stage.callers, stage.agent),
        shared_todos=stage.shared_list(),
    )


def prompt_step(fork: ForkRequested, within: str) -> Step:
    return Step(StepKind.STEER, user(fork.prompt), within=within)


def _check_depth(stage: Stage) -> None:
    if len(stage.callers) >= DEEPEST:
        raise ToolFailed(f"nested too deeply (limit {DEEPEST}); complete the task without delegating")


def _model_of(work: Work, agent: AgentSpec, fork: ForkRequested, models: FallbackChain) -> str:
    """The skill's own, if it can be called here: skills are written for other programs, too. Else the one
    that the agent has now. A skill that the model may have written can choose a model of the file only."""
    if fork.model and (fork.is_trusted or fork.model in work.agent.models):
        alone = replace(agent, model=fork.model, fallback=Fallback())
        if models.why_no_answer(alone) is None:
            return fork.model
    return work.model if agent is work.agent else agent.model


def _forked(agent: AgentSpec, fork: ForkRequested, model: str) -> AgentSpec:
    """The same agent, with the tools that the skill leaves it and those that it adds. Rules, hooks and
    budgets stay the agent's."""
    unknown = [name for name in fork.toolsets if name not in agent.skill_toolsets]
    if unknown:
        raise ToolFailed(f"the skill {fork.skill!r} names toolsets that are not in the agent file: {unknown}")
    only = fork.allowed_tools
    inherited = tuple(replace(spec, only=only) if only else spec for spec in agent.toolsets)
    about = f"You run the skill {fork.skill} apart from the conversation. Follow it, and do nothing else."
    return replace(
        agent,
        name=f"{agent.own_name}/{fork.skill}",
        model=model,
        instruction="\n\n".join(filter(None, (agent.instruction, about))),
        toolsets=(*inherited, *(agent.skill_toolsets[name] for name in fork.toolsets)),
        # Giving a task to another agent is a tool, too, and would get around the list.
        sub_agents=() if only and not any(Glob(one).matches(TRANSFER) for one in only) else agent.sub_agents,
        handoffs=(),
        force_handoff=None,
        structured_output=None,
    )
