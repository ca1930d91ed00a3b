"""Planted defects of work on runtimes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from lastgood.core import derivation as core_derivation
from lastgood.core import resume as core_resume
from lastgood.core.resume import ResumeRequest
from lastgood.core.task_retry import RetryTask, after_failure
from lastgood.errors import HistoryDamaged
from lastgood.flows.task_handle import TaskTurnHandle
from lastgood.flows.task_start import TaskStarter
from lastgood.flows.work import claim_content as flow_content
from lastgood.flows.work import enqueue as flow_enqueue
from lastgood.flows.work import final_reports as flow_final
from lastgood.flows.work import visibility as flow_access
from lastgood.flows.work.tasks import Tasks
from lastgood.model.ids import TaskId, TenantId
from lastgood.model.tasks import Pointer, Task, TaskEnd, TaskStatus
from lastgood.store import claims as store_claims
from lastgood.store import questions as store_questions
from tests.faults.defects import DEFECTS, defect, statement

_BEFORE = len(DEFECTS)
_IS_HELD = " AND status IN ('claimed', 'running', 'waiting')"

# -- questions ---------------------------------------------------------------------------------


@defect("a question is answered by its id, whatever call it shows")
def _() -> Iterator[None]:
    with patch.object(store_questions, "_same", lambda known, body: known):
        yield


# -- the resume decision -----------------------------------------------------------------------


@defect("a native session is resumed on any runtime")
def _() -> Iterator[None]:
    with patch.object(core_resume, "_difference", lambda made_by, runtime: None):
        yield


@defect("resuming compares with the agent's current runtime")
def _() -> Iterator[None]:
    real = flow_content.prepare

    async def prepare(deps: Any, situation: Any) -> Any:
        bound = await deps.store.get_binding(situation.tenant, situation.agent_key)
        runtime = bound and await deps.store.get_runtime(situation.tenant, bound.runtime)
        return await real(deps, replace(situation, runtime=runtime) if runtime else situation)

    with patch("lastgood.flows.work.claims.prepare", prepare):
        yield


@defect("the newest native session is taken before its runtime is compared")
def _() -> Iterator[None]:
    real = core_resume._sessions

    def newest_only(rows: Sequence[Pointer]) -> Any:
        return real(rows)[:1]

    with patch.object(core_resume, "_sessions", newest_only):
        yield


@defect("a native session may have seen turns of another history")
def _() -> Iterator[None]:
    def never(request: ResumeRequest, pointer: Pointer) -> bool:
        return False

    with patch.object(core_resume, "_has_diverged", never):
        yield


@defect("the resume policy of a binding is not applied")
def _() -> Iterator[None]:
    async def policy(deps: Any, situation: Any) -> Any:
        return core_resume.ResumePolicy()

    with patch.object(flow_content, "_policy", policy):
        yield


@defect("failed resumes are not counted")
def _() -> Iterator[None]:
    with patch.object(core_resume, "_failed_resumes", lambda rows: 0):
        yield


@defect("a refused native resume comes without the transcript")
def _() -> Iterator[None]:
    with patch.object(flow_content, "transcript", lambda turns: ()):
        yield


@defect("a native session behind the head is not told what it missed")
def _() -> Iterator[None]:
    with patch.object(flow_content, "catch_up", lambda turns, after: ()):
        yield


@defect("a claim takes a damaged history for an empty one")
def _() -> Iterator[None]:
    real = flow_content._chain

    async def chain(*args: Any) -> Any:
        try:
            return await real(*args)
        except HistoryDamaged:
            return ()

    with patch.object(flow_content, "_chain", chain):
        yield


@defect("a transcript comes without a word about its files")
def _() -> Iterator[None]:
    with patch.object(flow_content, "about_files", lambda decision, turns, restored: None):
        yield


# -- pointers ----------------------------------------------------------------------------------


@defect("a pointer pairs the attempt with the session of the one before")
def _() -> Iterator[None]:
    before = """coalesce((SELECT earlier.native_session FROM pointers AS earlier
        WHERE earlier.session_id = tasks.session_id ORDER BY earlier.n LIMIT 1), :native_session)"""
    with statement("put_pointer", (":native_session", before)):
        yield


@defect("an empty report wipes the pointer")
def _() -> Iterator[None]:
    kept = "coalesce(excluded.native_session, pointers.native_session)"
    with statement("put_pointer", (kept, "excluded.native_session")):
        yield


@defect("a retry drops the directive")
def _() -> Iterator[None]:
    with statement("end_claim", ("SET status", "SET directive = '{}', status")):
        yield


# -- claims ------------------------------------------------------------------------------------


@defect("a report is not checked for its token")
def _() -> Iterator[None]:
    with statement("find_claim", ("claims.token = :token AND ", "")):
        yield


@defect("a report is not checked for its worker")
def _() -> Iterator[None]:
    with statement("find_claim", ("claims.worker_id = :worker OR", "1 OR")):
        yield


@defect("a report is not checked for the owner of its worker")
def _() -> Iterator[None]:
    with statement("find_claim", ("workers.owner = :owner AND ", "")):
        yield


@defect("a worker is not checked for its owner")
def _() -> Iterator[None]:
    owner = ("workers.owner = :owner", "1")
    with statement("any_claimable", owner), statement("pick_tasks", owner):
        yield


@defect("anybody renews the claims of a worker")
def _() -> Iterator[None]:
    with statement("renew_claim", ("workers.owner = :owner", "1")):
        yield


@defect("an expired lease ends the attempt")
def _() -> Iterator[None]:
    with statement("tasks_past_deadline", ("deadline_at <", "lease_until <")):
        yield


@defect("a claim that was taken over still reports")
def _() -> Iterator[None]:
    # The first answer that a repeated report gets is a second net behind this one.
    with (
        statement("find_claim", ("tasks.claim_token = claims.token", "1")),
        statement("start_task", (" AND claim_token = :token", "")),
    ):
        yield


@defect("the end of an expired claim is not told")
def _() -> Iterator[None]:
    real = store_claims._end_expired

    async def silent(statements: Any, task: dict[str, Any], ended: Any) -> None:
        await real(statements, task, lambda turn, attempt: ())

    with patch.object(store_claims, "_end_expired", silent):
        yield


@defect("the answer to a final report is not stored")
def _() -> Iterator[None]:
    with statement("store_report", ("WHERE token", "WHERE 0 AND token")):
        yield


@defect("a task that loses its claims is claimed for ever")
def _() -> Iterator[None]:
    with patch("lastgood.flows.work.claims.after_lost_claims", lambda lost: None):
        yield


@defect("lost claims are not counted")
def _() -> Iterator[None]:
    with statement("claim_task", ("THEN 1", "THEN 0")):
        yield


@defect("a rate limit is waited for without end")
def _() -> Iterator[None]:
    with statement("claim_task", ("coalesce(tried_since, clock())", "clock()")):
        yield


@defect("a replaced instance of a worker still claims")
def _() -> Iterator[None]:
    epoch = ("workers.epoch = :epoch", "1")
    with statement("any_claimable", epoch), statement("pick_tasks", epoch):
        yield


@defect("a rate limit counts as a failure")
def _() -> Iterator[None]:
    def counts(*args: Any, **more: Any) -> Any:
        decided = after_failure(*args, **more)
        return replace(decided, counts=True) if isinstance(decided, RetryTask) else decided

    with patch.object(flow_final, "after_failure", counts):
        yield


# -- people ------------------------------------------------------------------------------------


@defect("a late result of a cancelled task is committed")
def _() -> Iterator[None]:
    """The cancel ends the task alone, and what is behind it does not look at the task."""

    async def end_task_only(self: Tasks, task: Task, error: Any, *, by_person: bool) -> bool:
        end = TaskEnd(task.id, TaskStatus.CANCELLED)
        return bool(await self._store.end_queued_task(task.tenant, end, ()))

    any_status = frozenset(TaskStatus)
    with (
        patch.object(Tasks, "_end_claim", end_task_only),
        patch.object(store_claims, "HELD_TASKS", any_status),
        statement("end_queued_task", ("status IN ('queued', 'deferred')", "1")),
        statement("end_claim", (_IS_HELD, "")),
    ):
        yield


@defect("a cancel waits for its worker")
def _() -> Iterator[None]:
    real = Tasks.end_now

    async def wait(self: Tasks, tenant: TenantId, id: TaskId, **how: bool) -> Task | None:
        await asyncio.sleep(90)
        return await real(self, tenant, id, **how)

    with patch.object(Tasks, "end_now", wait):
        yield


@defect("after a cancel the queue goes on")
def _() -> Iterator[None]:
    with statement("hold_others", ("WHERE", "WHERE 0 AND")):
        yield


@defect("a task has no hard deadline")
def _() -> Iterator[None]:
    with statement("tasks_past_deadline", ("WHERE", "WHERE 0 AND")):
        yield


@defect("everybody may use every runtime")
def _() -> Iterator[None]:
    def everybody(runtime: Any, user: str) -> bool:
        return True

    with patch.object(flow_access, "may_use", everybody), patch.object(flow_enqueue, "may_use", everybody):
        yield


@defect("a binding moves the tasks of others")
def _() -> Iterator[None]:
    anybody = ("runtimes.owner = :user OR", "1 OR")
    with statement("move_tasks_of_agent", anybody, ("(sessions.owner IN", "(1 OR sessions.owner IN")):
        yield


@defect("a binding takes its agent from the others")
def _() -> Iterator[None]:
    async def binding_for(self: Any, wish: Any) -> Any:
        return await self._deps.store.get_binding(wish.tenant, wish.agent_key)

    with patch.object(flow_enqueue.Enqueuer, "_binding_for", binding_for):
        yield


@defect("anybody replaces a binding")
def _() -> Iterator[None]:
    with statement("put_binding", ("runtimes.owner = :user OR", "1 OR")):
        yield


# -- sessions on runtimes ----------------------------------------------------------------------


@defect("the end of a claim is the end of its turn")
def _() -> Iterator[None]:
    async def is_last(self: Any, attempt: Any, known: Any) -> bool:
        return True

    with patch.object(TaskTurnHandle, "_is_last", is_last):
        yield


@defect("a cancel starts what its run has not taken")
def _() -> Iterator[None]:
    with patch("lastgood.flows.work.tasks.parking_of", lambda *_, **__: None):
        yield


@defect("a cancel starts the follow-ups of this server")
def _() -> Iterator[None]:
    with statement("park_others", ("WHERE", "WHERE 0 AND")):
        yield


@defect("a follow-up that is handed over becomes another turn")
def _() -> Iterator[None]:
    real = TaskStarter._draft

    def draft(self: TaskStarter, begin: Any, plan: Any, wishes: Any) -> Any:
        return replace(real(self, begin, plan, wishes), turn=None)

    with patch.object(TaskStarter, "_draft", draft):
        yield


@defect("a fork of a private session is everybody's")
def _() -> Iterator[None]:
    with patch.dict(core_derivation.ORIGINS, {"runtime_id": core_derivation.FieldOrigin.FRESH}):
        yield


@defect("a task token outlives its claim")
def _() -> Iterator[None]:
    with statement("find_held_task", (_IS_HELD, "")):
        yield


#: The simulation runs no tasks.
OF_WORK = frozenset(one.name for one in DEFECTS[_BEFORE:])
