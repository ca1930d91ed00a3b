"""Turns of agents on runtimes: queued instead of begun, with the rules of any other turn.

Choosing the runtime and storing the task is `flows/work/enqueue.py`; here a task becomes the handle that
callers of any turn get.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from lastgood.core.input_checks import first_words
from lastgood.core.task_admission import KnownAttempt, KnownTask, admit_task
from lastgood.errors import (
    AgentInvalid,
    AgentNotFound,
    RuntimeAmbiguous,
    RuntimeNotFound,
    RuntimeOffline,
    SessionNotFound,
    TurnFailed,
)
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.begin import Plan, TurnStarter
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.task_handle import TaskTurnHandle
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.work.enqueue import Enqueued, Enqueuer, RuntimePlan, RuntimeWish, TaskDraft
from lastgood.flows.work.visibility import WorkAccess
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import Ask, Attempt, Begin
from lastgood.model.events import Event, TitleSet
from lastgood.model.ids import TenantId
from lastgood.model.runtimes import OnOffline
from lastgood.model.sessions import Session, TitleBy
from lastgood.model.tasks import Task

Abandon = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TaskWishes:
    """Options of a task's turn. `only_if_idle`: rejected if anything of the session runs, waits or is queued;
    else it is queued behind that. `abandon`: called when its client disconnects; None: the task keeps
    running.
    """

    only_if_idle: bool = True
    abandon: Abandon | None = None


#: As forevery turn: the session must be idle, and the turn keeps running without its client.
WHEN_IDLE = TaskWishes()


class TaskStarter:
    def __init__(self, deps: Dependencies, starter: TurnStarter, enqueuer: Enqueuer) -> None:
        self._deps = deps
        self._starter = starter
        self._enqueuer = enqueuer
        self._access = WorkAccess(deps.store)

    def _draft(self, begin: Begin, plan: Plan, wishes: TaskWishes) -> TaskDraft:
        assert plan.runtime is not None
        assert plan.session is not None
        assert plan.agent is not None
        return TaskDraft(
            ask=begin.ask,
            session=plan.session,
            agent_key=plan.agent.key,
            plan=plan.runtime,
            # A follow-up keeps its place behind what was said before it.
            only_if_idle=wishes.only_if_idle and begin.takes is None,
            # A client of /v1 waits with an open connection, so an offline runtime fails at once.
            offline=OnOffline.FAIL if begin.ask.over_chat else None,
            ephemeral=wishes.abandon is not None,
            turn=begin.turn,
            again=begin.again,
        )

    async def try_start(
        self, begin: Begin, plan: Plan, wishes: TaskWishes, *, looks: bool
    ) -> TurnHandle | Begin:
        """One try. A begin: try again with it. StaleHead: the head is not what the ask expects. `looks`: only
        reads. Refusals have changed nothing."""
        ask, draft = begin.ask, self._draft(begin, plan, wishes)
        found = await self._enqueuer.try_enqueue(draft, looks=looks)
        if isinstance(found, TaskDraft):
            return replace(begin, turn=found.turn or begin.turn, again=found.again)
        if begin.takes is not None:
            # The task has the turn of the entry. If this is not reached, the next one to look finds the task.
            await self._deps.store.drop_queued(ask.tenant, ask.session, begin.takes)
        if isinstance(found, Attempt):
            return await self._of_attempt(ask, found)
        if not found.is_known and not draft.session.title:
            await self._name(draft.session, ask)
        handle = self._of_task(found, draft.session.last_event_seq, wishes.abandon)
        return replace(handle, _denies=ask.over_chat)

    async def recall(self, ask: Ask) -> TurnHandle | None:
        """Returns the handle of the same earlier request. None: there was none, or it must be tried again."""
        found = await self._enqueuer.look_up(ask)
        match admit_task(ask, found, only_if_idle=True):
            case KnownTask(task, is_replay):
                known = self._of_task(Enqueued(task, is_known=True, is_replay=is_replay), 0)
                return replace(known, _denies=ask.over_chat)
            case KnownAttempt(attempt):
                return await self._of_attempt(ask, attempt)
            case _:
                return None

    async def reach_by_chat(
        self, tenant: TenantId, agent: AgentSpec, unbound_agent: str | None = None
    ) -> RuntimePlan | None:
        """Where the OpenAI-compatible API runs this agent; None: here. AgentNotFound: it is on a runtime, and
        not published. `unbound_agent`: an agent that is known to have no binding."""
        wish = RuntimeWish(tenant, "", agent.key, agent.harness, unbound_agent=unbound_agent, is_chat=True)
        try:
            return await self._enqueuer.choose(wish)
        except (RuntimeNotFound, RuntimeAmbiguous, RuntimeOffline):
            raise AgentNotFound() from None

    async def runtime_for(
        self, tenant: TenantId, user: str, agent_key: str, runtime: str | None
    ) -> str | None:
        """Where a new session of this agent will run; None: here. `runtime`: named by the request."""
        try:
            agent, _ = await resolve(self._deps.agents, agent_key)
        except (AgentNotFound, AgentInvalid, TurnFailed):
            if runtime is None:  # its first turn says what is wrong with it
                return None
            raise
        plan = await self._enqueuer.choose(
            RuntimeWish(tenant, user, agent.key, agent.harness, runtime=runtime)
        )
        return None if plan is None else plan.runtime.id

    async def check_reader(self, ask: Ask, session: Session) -> None:
        """SessionNotFound: the session is on a private runtime that the user may not use. A conversation of
        the OpenAI-compatible API is also open to the user who made it."""
        if session.runtime_id is None or ask.owner is None:
            return
        if ask.over_chat and ask.owner == session.owner:
            return
        if not await self._access.may_read(session, ask.owner):
            raise SessionNotFound()

    def of_task(self, task: Task) -> TurnHandle:
        """The handle of a task that another request queued."""
        return self._of_task(Enqueued(task, is_known=True), 0)

    def _of_task(self, found: Enqueued, after_event: int, abandon: Abandon | None = None) -> TaskTurnHandle:
        task = found.task
        return TaskTurnHandle(
            self._deps,
            task.tenant,
            task.session,
            task.turn,
            task.attempt,
            0 if found.is_known else after_event,
            replayed=found.is_replay,
            task=task.id,
            _began=not found.is_known,
            _abandon=abandon,
        )

    async def _of_attempt(self, ask: Ask, attempt: Attempt) -> TurnHandle:
        """The request was made before its agent was bound to a runtime."""
        if attempt.ended_at is not None:
            return self._starter.watch(ask, attempt, None, replayed=True)
        return await self._starter.attach(ask, attempt)

    async def _name(self, session: Session, ask: Ask) -> None:
        """Takes the title from the message: runtimes generate none."""
        title = first_words(ask.messages)
        if title:
            named = Event(None, TitleSet(title))
            await self._deps.store.set_title(session.tenant, session.id, title, TitleBy.US, (named,))
            self._deps.signals.notify(session.id)
