"""Tasks as people use them: queue, list, cancel, continue, drop and run again.

A cancel never waits for a worker: the task ends here and now, and its worker learns it with its next
heartbeat or report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lastgood.core.input_checks import check_remote_dir, check_text
from lastgood.core.parking_policy import parking_of
from lastgood.core.task_lifecycle import is_task_over
from lastgood.core.task_reason import why
from lastgood.errors import Conflict, InvalidRequest, SessionNotFound, TaskNotFound, TurnCancelled
from lastgood.flows.agent_resolution import resolve
from lastgood.flows.attempt_end import failed_events, unclaimed_events, words_of
from lastgood.flows.attempt_log import log_claim_end
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.retries import retry_lost_races
from lastgood.flows.verified_history import find_verified
from lastgood.flows.work.claim_content import MOST_POINTERS
from lastgood.flows.work.enqueue import Enqueued, Enqueuer, RuntimeWish, TaskDraft
from lastgood.flows.work.task_waiter import notify_workers
from lastgood.flows.work.visibility import WorkAccess
from lastgood.model.attempts import Ask, Attempt, AttemptStatus, OnLeave
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId
from lastgood.model.messages import Message, user
from lastgood.model.sessions import NewSession, ScopeKind, Session, TaskScope
from lastgood.model.tasks import (
    HELD_TASKS,
    Directive,
    Pointer,
    SnapshotSummary,
    Task,
    TaskEnd,
    TaskFilter,
    TaskMessage,
    TaskPage,
    TaskStatus,
)

MOST_PRIORITY = 100


@dataclass(frozen=True, slots=True)
class NewTaskRequest:
    """`caller` is the token, `user` the user that it acts as."""

    tenant: TenantId
    caller: str
    user: str
    agent_key: str
    scope: TaskScope
    prompt: str
    runtime: str | None = None
    priority: int = 0
    directive: Directive = Directive()
    key: str | None = None
    fingerprint: str = ""
    end_user: str = ""
    working_dir: str | None = None  # of a new scope, on the machine of its runtime


@dataclass(frozen=True, slots=True)
class ShownTask:
    task: Task
    why: str  # empty if it has ended


class Tasks:
    def __init__(self, deps: Dependencies, access: WorkAccess, enqueuer: Enqueuer) -> None:
        self._deps = deps
        self._store = deps.store
        self._access = access
        self._enqueuer = enqueuer

    # -- queue ---------------------------------------------------------------------------

    async def add(self, new: NewTaskRequest) -> Enqueued:
        """Always queues, up to the limit of its session."""
        for what, text in (("the prompt", new.prompt), ("the scope's id", new.scope.id)):
            check_text(text, what)
        if not -MOST_PRIORITY <= new.priority <= MOST_PRIORITY:
            raise InvalidRequest(
                f"`priority` must be from -{MOST_PRIORITY} to {MOST_PRIORITY}, not {new.priority}",
                param="priority",
            )
        agent, _ = await resolve(self._deps.agents, new.agent_key)
        session = await self._find_session(new, agent.key)
        wish = RuntimeWish(new.tenant, new.user, agent.key, agent.harness, session, new.runtime)
        plan = await self._enqueuer.choose(wish)
        if plan is None:
            raise InvalidRequest(
                f"Agent {agent.key} runs on this server, not on a runtime; bind it to a runtime, name one in "
                "`runtime`, or send a turn to a session",
                param="agent",
            )
        if new.directive.rerun_of is not None:
            source = await self._access.task(new.tenant, new.directive.rerun_of, new.user)
            _check_source(source, new, agent.key, session)
        await self._deps.quotas.check(new.tenant, new.caller)
        if session is None:
            session = await self._make_session(new, agent.key, plan.runtime.id)
        if new.working_dir is not None and new.working_dir != session.working_dir:
            raise Conflict(
                f"This scope has the working directory {session.working_dir or '(none)'}; remove "
                "`working_dir`, or use another scope"
            )
        return await self._queue(new, session, agent.key, (user(new.prompt),), wish)

    async def _find_session(self, new: NewTaskRequest, agent_key: str) -> Session | None:
        """A chat's scope may be the id of a session. Of a session that the user may not read: as if there
        were none with that id, so nothing of it can be found out."""
        if new.scope.kind is not ScopeKind.CHAT:
            return None
        session = await self._store.get_session(new.tenant, SessionId(new.scope.id))
        if session is None:
            return None
        if not await self._access.may_read(session, new.user):
            raise SessionNotFound()
        if session.agent_key not in ("", agent_key):
            raise Conflict(
                f"Session {session.id} belongs to agent {session.agent_key}; use that agent or another scope"
            )
        return session

    async def _make_session(self, new: NewTaskRequest, agent_key: str, runtime: str) -> Session:
        folder = None if new.working_dir is None else check_remote_dir(new.working_dir)
        session = await self._store.session_of_scope(
            NewSession(
                id=self._deps.ids.session(),
                tenant=new.tenant,
                agent_key=agent_key,
                created_by=new.caller,
                owner=new.user,
                scope=new.scope,
                working_dir=folder,
                # Also if the task is refused after all: nobody on this server has checked the path.
                runtime_id=None if folder is None else runtime,
            )
        )
        if not await self._access.may_read(session, new.user):
            raise SessionNotFound()
        return session

    async def _queue(
        self,
        new: NewTaskRequest,
        session: Session,
        agent_key: str,
        messages: tuple[Message, ...],
        wish: RuntimeWish,
    ) -> Enqueued:
        # The session's own runtime counts, too, and it is known only now.
        plan = await self._enqueuer.choose(replace(wish, session=session))
        assert plan is not None
        ask = Ask(
            tenant=new.tenant,
            session=session.id,
            messages=messages,
            key=new.key,
            fingerprint=new.fingerprint,
            caller=new.caller,
            user=new.end_user,
            on_leave=OnLeave.CONTINUE,
        )
        draft = TaskDraft(
            ask, session, agent_key, plan, only_if_idle=False, priority=new.priority, directive=new.directive
        )
        queued = await self._enqueuer.enqueue(draft)
        if isinstance(queued, Attempt):
            raise Conflict("This idempotency key was used for a turn of the session; use a new key")
        return queued

    async def rerun(self, new: NewTaskRequest, source: Task) -> Enqueued:
        """The same prompt once more, on the source's own runtime unless the request names another one."""
        session = await self._access.session(new.tenant, source.session, new.user)
        messages = await self.input_of(source)
        wish = RuntimeWish(
            new.tenant, new.user, source.agent_key, None, session, new.runtime or source.runtime
        )
        return await self._queue(new, session, source.agent_key, messages, wish)

    async def input_of(self, task: Task) -> tuple[Message, ...]:
        """Returns the messages that the task was queued with. Conflict: they are not stored any more."""
        request = await self._store.read_request(task.tenant, task.turn)
        if request is not None and request.messages is not None:
            return request.messages
        turn = await find_verified(self._store, task.tenant, task.turn)
        if turn is None:
            raise Conflict("The input of this task is not stored any more; queue it as a new task")
        return turn.messages[: turn.inputs]

    # -- read ----------------------------------------------------------------------------

    async def get(self, tenant: TenantId, id: TaskId, user: str) -> ShownTask:
        return (await self.shown(tenant, (await self._access.task(tenant, id, user),)))[0]

    async def list(
        self, tenant: TenantId, user: str, filter: TaskFilter, *, limit: int, cursor: int | None
    ) -> tuple[tuple[ShownTask, ...], TaskPage]:
        """Newest first; only those of runtimes that the user may use. Tasks of a removed runtime wait for it,
        and their reason must be seen."""
        usable = {one.id for one in await self._access.usable(tenant, user, with_removed=True)}
        wanted = usable if filter.runtimes is None else usable.intersection(filter.runtimes)
        page = await self._store.list_tasks(
            tenant, replace(filter, runtimes=tuple(sorted(wanted))), limit=limit, cursor=cursor
        )
        return await self.shown(tenant, page.tasks), page

    async def shown(self, tenant: TenantId, tasks: Sequence[Task]) -> tuple[ShownTask, ...]:
        """With the reason why each unfinished one has not finished yet (I32)."""
        now, runtimes, open_tasks = self._deps.clock.now(), {}, {}
        found = []
        for task in tasks:
            if is_task_over(task.status):
                found.append(ShownTask(task, ""))
                continue
            if task.runtime not in runtimes:
                runtimes[task.runtime] = await self._store.get_runtime(tenant, task.runtime)
            if task.session not in open_tasks:
                open_tasks[task.session] = await self._store.open_tasks(tenant, task.session)
            first = next(iter(open_tasks[task.session]), None)
            ahead = first.id if first is not None and first.number < task.number else None
            found.append(ShownTask(task, why(task, runtimes[task.runtime], ahead, now)))
        return tuple(found)

    async def messages(
        self, tenant: TenantId, id: TaskId, user: str, *, after: int, limit: int
    ) -> tuple[TaskMessage, ...]:
        """Returns the messages of its newest run."""
        task = await self._access.task(tenant, id, user)
        if task.attempt is None:
            return ()
        return await self._store.read_messages(tenant, task.attempt, after=after, limit=limit)

    async def messages_of(
        self, tenant: TenantId, session: SessionId, attempt: AttemptId, user: str, *, limit: int
    ) -> tuple[TaskMessage, ...]:
        """Returns what one attempt of the session has reported. Nothing, if it did not run on a runtime."""
        await self._access.session(tenant, session, user)
        return await self._store.read_messages(tenant, attempt, after=0, limit=limit)

    async def snapshot(self, tenant: TenantId, id: TaskId, user: str) -> SnapshotSummary | None:
        task = await self._access.task(tenant, id, user)
        if task.attempt is None:
            return None
        return await self._store.summary_of_snapshot(tenant, task.attempt)

    async def pointers(
        self, tenant: TenantId, session: SessionId, user: str, runtime: str | None
    ) -> tuple[Pointer, ...]:
        await self._access.session(tenant, session, user)
        found = await self._store.list_pointers(tenant, session, limit=MOST_POINTERS)
        return tuple(one for one in found if runtime is None or (one.runtime and one.runtime.id == runtime))

    async def session_of_scope(
        self, tenant: TenantId, scope: TaskScope, agent_key: str, user: str
    ) -> Session:
        """SessionNotFound: no task of this scope and agent was ever queued."""
        session = await self._store.find_scope(tenant, scope, agent_key)
        if session is None and scope.kind is ScopeKind.CHAT:
            session = await self._store.get_session(tenant, SessionId(scope.id))
        if session is None or not await self._access.may_read(session, user):
            raise SessionNotFound()
        return session

    async def retire(
        self, tenant: TenantId, session: SessionId, native_session: str, runtime: str | None, user: str
    ) -> int:
        """By a person: the native session is not resumed any more. Returns how many pointers changed.
        Without a runtime: on each that has one with this id."""
        known = await self.pointers(tenant, session, user, runtime)
        rows = [one for one in known if one.native_session == native_session]
        made_by = {None if one.runtime is None else one.runtime.id for one in rows}
        reason = f"by {user}" if user else "by request"
        changed = 0
        for id in made_by:
            changed += await self._store.retire_native_session(tenant, session, id, native_session, reason)
        return changed

    # -- change --------------------------------------------------------------------------

    async def cancel(self, tenant: TenantId, id: TaskId, user: str) -> Task:
        """Returns the task as it has ended: the cancel may have been too late."""
        await self._access.task(tenant, id, user)
        return await retry_lost_races("cancel the task", lambda: self.end_now(tenant, id, by_person=True))

    async def end_now(
        self, tenant: TenantId, id: TaskId, *, by_person: bool, stops_session: bool = False
    ) -> Task | None:
        """Cancels it. None: it was claimed, or moved on, between the read and the write. `stops_session`:
        the other tasks of the session are held also if this one only waited."""
        task = await self._store.get_task(tenant, id)
        if task is None:
            raise TaskNotFound()
        if is_task_over(task.status):
            return task
        error = TurnCancelled()
        if task.status not in HELD_TASKS:
            end = TaskEnd(
                task.id,
                TaskStatus.CANCELLED,
                error=words_of(error),
                holds_others=stops_session,
                holding_reason=_held_after(task) if stops_session else "",
            )
            events = unclaimed_events(task.turn, AttemptStatus.CANCELLED, error)
            ended = await self._store.end_queued_task(tenant, end, events)
        else:
            ended = await self._end_claim(task, error, by_person=by_person)
        if not ended:
            return None
        self._deps.signals.notify(task.session)
        notify_workers(self._deps.signals, task.runtime)
        return await self._store.get_task(tenant, id)

    async def _end_claim(self, task: Task, error: TurnCancelled, *, by_person: bool) -> bool:
        attempt = task.attempt and await self._store.get_attempt(task.tenant, task.attempt)
        if not attempt:
            return False
        status = AttemptStatus.CANCELLED
        end = TaskEnd(
            task.id,
            TaskStatus.CANCELLED,
            error=words_of(error),
            holds_others=by_person,
            holding_reason=_held_after(task) if by_person else "",
        )
        # Whether tools have run is not known here: the run may still be doing something.
        events = failed_events(attempt.turn, attempt.id, status, error, has_effects=task.claims > 0)
        # A steer that the run has not taken would otherwise be the next turn.
        parking = parking_of(status, None, by_person=by_person)
        ended = await self._store.finish_if_held(
            attempt.hold, status, words_of(error), events, parking=parking, task=end
        )
        if ended:
            log_claim_end(attempt, status, error, has_effects=task.claims > 0, task_status=end.status.value)
        return ended

    async def release(self, task: Task) -> bool:
        """A held task is queued again. False: it is not held."""
        released = await self._store.release_task(task.tenant, task.id)
        notify_workers(self._deps.signals, task.runtime)
        self._deps.signals.notify(task.session)
        return released

    async def continue_held(self, tenant: TenantId, id: TaskId, user: str, *, all: bool) -> ShownTask:
        """Held tasks are queued again: this one, or all of its session."""
        task = await self._access.task(tenant, id, user)
        if all:
            await self._store.release_tasks(tenant, task.session)
        elif not await self._store.release_task(tenant, id) and not is_task_over(task.status) and task.held:
            raise Conflict("The task has changed in the meantime; read it again")
        notify_workers(self._deps.signals, task.runtime)
        self._deps.signals.notify(task.session)
        return await self.get(tenant, id, user)


def _held_after(task: Task) -> str:
    return f"held after the cancel of task {task.id}"


def _check_source(source: Task, new: NewTaskRequest, agent_key: str, session: Session | None) -> None:
    """A task of another conversation has no native session that this one may use."""
    place = (source.scope, source.agent_key) == (new.scope, agent_key)
    if not (place if session is None else source.session == session.id):
        raise InvalidRequest(
            f"Task {source.id} belongs to another scope or agent; name one of this scope", param="rerun_of"
        )
