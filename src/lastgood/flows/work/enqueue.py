"""Chooses the runtime of a turn and queues the turn as a task.

Used by `POST /api/tasks` and by the pipeline that submits turns. Nothing is written before the runtime is
chosen, usable and, if the caller does not want to wait, online.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from lastgood.core.runtime_access import may_chat, may_use
from lastgood.core.runtime_choice import (
    AmbiguousRuntime,
    IsLocal,
    NoRuntime,
    OnRuntime,
    choose_runtime,
    is_offline,
)
from lastgood.core.runtime_permissions import runtime_rules, unenforceable
from lastgood.core.task_admission import KnownAttempt, KnownTask, QueueTask, TaskRejected, admit_task
from lastgood.core.transcript import text_of_input
from lastgood.errors import (
    InvalidRequest,
    RuntimeAmbiguous,
    RuntimeNotFound,
    RuntimeOffline,
    Unenforceable,
)
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.retries import MOST_TRIES, gave_up
from lastgood.flows.work.task_waiter import notify_workers
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.agents import Safety
from lastgood.model.attempts import Ask, Attempt, TurnRequest
from lastgood.model.call_options import options_as_json
from lastgood.model.ids import TenantId, TurnId
from lastgood.model.messages import Message, Role
from lastgood.model.runtimes import AgentBinding, Enforcement, OnOffline, Runtime
from lastgood.model.sessions import ScopeKind, Session, TaskScope
from lastgood.model.tasks import Directive, NewTask, Task, TaskConflict


@dataclass(frozen=True, slots=True)
class RuntimePlan:
    """The runtime of a turn, and why this one. `binding`: of the agent, if it has one."""

    runtime: Runtime
    binding: AgentBinding | None
    reason: str


@dataclass(frozen=True, slots=True)
class RuntimeWish:
    """Whose turn it is, and what its caller says about the runtime."""

    tenant: TenantId
    user: str
    agent_key: str  # as the agent is served
    harness: str | None = None  # of the agent's file
    session: Session | None = None
    runtime: str | None = None  # named by the request
    unbound_agent: str | None = None  # an agent that is known to have no binding
    is_chat: bool = False  # over /v1, or with a token that has no other scope


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """A turn to be queued. `only_if_idle`: refused if anything of the session runs, waits or is queued."""

    ask: Ask
    session: Session
    agent_key: str
    plan: RuntimePlan
    only_if_idle: bool
    priority: int = 0
    directive: Directive = Directive()
    offline: OnOffline | None = None  # None: as the agent's binding says
    ephemeral: bool = False
    turn: TurnId | None = None  # minted by the caller
    again: bool = False  # that turn was requested before


@dataclass(frozen=True, slots=True)
class Enqueued:
    """`is_known`: the same request was sent before. `is_replay`: it has its outcome already."""

    task: Task
    is_known: bool = False
    is_replay: bool = False


class Enqueuer:
    """`safety`: the server's own mode, which no run exceeds."""

    def __init__(
        self, deps: Dependencies, limits: WorkLimits | None = None, safety: Safety = Safety.RESTRICTED
    ) -> None:
        self._deps = deps
        self._limits = limits or WorkLimits()
        self._safety = safety

    async def choose(self, wish: RuntimeWish) -> RuntimePlan | None:
        """None: the agent is local. RuntimeNotFound also for a runtime that the user may not use."""
        store, session = self._deps.store, wish.session
        binding = await self._binding_for(wish)
        usable: tuple[Runtime, ...] = ()
        if wish.harness is not None:
            listed = await store.list_runtimes(wish.tenant)
            usable = tuple(one for one in listed if may_use(one, wish.user))
        chosen = choose_runtime(
            wanted=wish.runtime,
            pinned=session.runtime_id if session is not None and session.runtime_pinned else None,
            binding=binding,
            harness=wish.harness,
            usable=usable,
        )
        match chosen:
            case IsLocal():
                return None
            case NoRuntime():
                raise RuntimeOffline(chosen.reason)
            case AmbiguousRuntime():
                raise RuntimeAmbiguous(chosen.reason, candidates=[one.id for one in chosen.candidates])
            case OnRuntime(id, reason):
                runtime = await store.get_runtime(wish.tenant, id)
                if runtime is None or not _may_reach(runtime, binding, wish):
                    raise RuntimeNotFound()
                return RuntimePlan(runtime, binding, reason)
            case never:
                assert_never(never)

    async def _binding_for(self, wish: RuntimeWish) -> AgentBinding | None:
        """The agent's binding, unless it is to a runtime that the user may not use: nobody takes an agent
        from the others. Over /v1 the binding counts for all: it is published or not."""
        if wish.agent_key == wish.unbound_agent:
            return None
        binding = await self._deps.store.get_binding(wish.tenant, wish.agent_key)
        if binding is None or wish.is_chat:
            return binding
        runtime = await self._deps.store.get_runtime(wish.tenant, binding.runtime)
        return binding if runtime is not None and may_use(runtime, wish.user) else None

    async def enqueue(self, draft: TaskDraft) -> Enqueued | Attempt:
        """Repeats `try_enqueue`. SessionBusy after too many tries."""
        looks = draft.ask.is_retry
        for _ in range(MOST_TRIES):
            found = await self.try_enqueue(draft, looks=looks)
            if not isinstance(found, TaskDraft):
                return found
            draft, looks = found, False
        raise gave_up("queue the task")

    async def try_enqueue(self, draft: TaskDraft, *, looks: bool) -> Enqueued | Attempt | TaskDraft:
        """One try. An attempt: the same request was run before as a turn of this server, and has its outcome,
        or runs. A draft: what was in the way is gone; try again with it. Refusals have changed nothing.

        `looks`: only reads. Without a key, only the current state shows whether the first request is over.
        """
        _check_input(draft.ask)
        await self._check_permissions(draft)
        new = self._new_task(draft)
        found = await (
            self.look_up(draft.ask)
            if looks
            else self._deps.store.enqueue_task(
                new, ask=draft.ask, only_if_idle=draft.only_if_idle, most=self._limits.tasks_per_session
            )
        )
        if isinstance(found, Task):
            self._notify(found)
            return Enqueued(found)
        match admit_task(draft.ask, found, only_if_idle=draft.only_if_idle):
            case QueueTask(again):
                return replace(draft, turn=again or new.turn, again=again is not None)
            case KnownTask(task, is_replay):
                return Enqueued(task, is_known=True, is_replay=is_replay)
            case KnownAttempt(attempt):
                return attempt
            case TaskRejected(error):
                raise error
            case never:
                assert_never(never)

    async def look_up(self, ask: Ask) -> TaskConflict:
        return await self._deps.store.look_up_task(ask)

    def check_online(self, draft: TaskDraft) -> None:
        """RuntimeOffline: it is offline, and this turn must not wait for it."""
        plan = draft.plan
        offline = draft.offline or (plan.binding.offline if plan.binding else OnOffline.WAIT)
        if offline is OnOffline.FAIL and is_offline(plan.runtime):
            raise RuntimeOffline(
                f"Runtime {plan.runtime.name} is offline; start its worker, or bind the agent to another one",
                runtime=plan.runtime.id,
            )

    async def _check_permissions(self, draft: TaskDraft) -> None:
        """Unenforceable: its worker would refuse the task. Rules may change until then, so it judges, too."""
        if draft.plan.runtime.enforces is not Enforcement.NONE:
            return
        agent, _ = await resolve(self._deps.agents, draft.agent_key)
        mode, rules = runtime_rules(agent, self._safety, draft.session.rules)
        reason = unenforceable(draft.plan.runtime, mode, rules)
        if reason is not None:
            raise Unenforceable(reason, runtime=draft.plan.runtime.id)

    def _new_task(self, draft: TaskDraft) -> NewTask:
        self.check_online(draft)
        ask, binding, limits = draft.ask, draft.plan.binding, self._limits
        turn = draft.turn or self._deps.ids.turn()
        request = TurnRequest(
            turn=turn,
            tenant=ask.tenant,
            session=ask.session,
            kind=ask.kind,
            key=ask.key,
            fingerprint=ask.fingerprint,
            caller=ask.caller,
            user=ask.user,
            model=ask.model,
            agent_key=ask.agent_key,
            edit=ask.edit,
            condition=ask.condition,
            options=ask.options,
            on_leave=ask.on_leave,  # it keeps running without its client; SDK retries match by this
            durable=False,  # the task is what is durable; recovery must not run it here
            messages=ask.messages,
        )
        return NewTask(
            id=self._deps.ids.task(),
            tenant=ask.tenant,
            session=ask.session,
            turn=turn,
            agent_key=draft.agent_key,
            scope=draft.session.scope or TaskScope(ScopeKind.CHAT, ask.session),
            runtime=draft.plan.runtime.id,
            request=request,
            priority=draft.priority,
            directive=draft.directive,
            created_by=ask.caller,
            user=ask.user,
            max_wait_seconds=binding.max_wait_seconds if binding else limits.max_wait_seconds,
            deadline_seconds=binding.deadline_seconds if binding else limits.deadline_seconds,
            again=draft.again,
            ephemeral=draft.ephemeral,
        )

    def _notify(self, task: Task) -> None:
        notify_workers(self._deps.signals, task.runtime)
        self._deps.signals.notify(task.session)


def _may_reach(runtime: Runtime, binding: AgentBinding | None, wish: RuntimeWish) -> bool:
    """Over /v1 only the published binding counts: what a request or a session names is not published."""
    if wish.is_chat:
        return may_chat(binding) and binding is not None and binding.runtime == runtime.id
    return may_use(runtime, wish.user)


def _check_input(ask: Ask) -> None:
    for name, value in options_as_json(ask.options).items():
        if name == "tools":
            raise InvalidRequest(
                "`tools` is not supported by agents on a runtime; their CLI brings its own tools", param=name
            )
        if value != {"type": "text"}:
            raise InvalidRequest(
                f"`{name}` is not supported by agents on a runtime: their CLI calls the model; remove it",
                param=name,
            )
    if any(_is_more_than_text(message) for message in ask.messages):
        raise InvalidRequest("Agents on a runtime accept text only; remove images, files and tool results")
    if not text_of_input(ask.messages):
        raise InvalidRequest("The message is blank; send some text")


def _is_more_than_text(message: Message) -> bool:
    return (
        message.role is Role.TOOL
        or bool(message.tool_calls)
        or any(not isinstance(part, str) for part in message.parts)
    )
