"""Claims: a worker takes tasks, and each comes with its resume decision.

    claim (one transaction, short lease) → decide → confirm (decision stored, real lease) → send

A server that dies in between leaves a short lease behind, and then the task can be claimed again. A worker
that disconnects before its claims are sent gets none: they are given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lastgood.core.resume import as_record
from lastgood.core.task_retry import (
    FailTask,
    RetryTask,
    TaskRetry,
    after_failure,
    after_lost_claims,
    after_unavailable,
)
from lastgood.errors import AgentUnavailable, LastgoodError, StoreError, StoreUnavailable, TurnFailed
from lastgood.flows.attempt_end import failed_events, words_of
from lastgood.flows.attempt_log import log_claim_end
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.work.claim_content import (
    Prepared,
    Situation,
    agent_json,
    prepare,
    prompt_of,
    resume_json,
    work_dir_json,
)
from lastgood.flows.work.claim_tokens import new_claim_token, stored_form, task_token_of
from lastgood.flows.work.task_waiter import TaskWaiter, notify_workers
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.agents import Safety
from lastgood.model.attempts import AttemptStatus
from lastgood.model.audit import AuditEntry, AuditKind
from lastgood.model.events import AttemptStarted, Event, ResumeChosen, UserSaid
from lastgood.model.ids import AttemptId, TenantId, TurnId
from lastgood.model.messages import Role
from lastgood.model.rules import LOCAL
from lastgood.model.runtimes import RuntimeIdentity
from lastgood.model.tasks import Claimed, ClaimRequest, TaskEnd, TaskStatus

log = logging.getLogger(__name__)

#: For watchers: what they have seen of the run before is not part of this one.
_TRIED_AGAIN = "the task was claimed again, and its run starts from the input"
_LOST = (
    "The leases of this task's claims ended without a report, and its tools may have run each time; perhaps "
    "it crashes its worker. Read the log of worker {}, then run it again with `lastgood tasks rerun`"
)


@dataclass(frozen=True, slots=True)
class ClaimCall:
    tenant: TenantId
    worker: str
    epoch: int
    runtimes: tuple[str, ...]
    max_tasks: int
    wait_seconds: float = 0.0
    token: str = LOCAL.token  # of the worker, and the user that it acts as
    user: str = ""


@dataclass(frozen=True, slots=True)
class SentClaim:
    """A claim as the worker gets it. `token` is known to nobody else: only its hash is stored."""

    claimed: Claimed
    token: str
    content: dict[str, Any]


class Claims:
    def __init__(self, deps: Dependencies, live: RunningAttempts, limits: WorkLimits, safety: Safety) -> None:
        self._deps = deps
        self._live = live
        self._limits = limits
        self._safety = safety

    async def claim(
        self, call: ClaimCall, is_draining: Callable[[], bool] = lambda: False
    ) -> tuple[SentClaim, ...]:
        """Waits for a task up to `wait_seconds`, or until the server is about to end. Cancelled: what was
        claimed meanwhile is given back."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + min(call.wait_seconds, self._limits.long_poll_seconds)
        # Subscribes before it reads: a task that is queued in between is noticed.
        waiter = TaskWaiter(self._deps.signals, call.runtimes)
        try:
            while True:
                found = await self._claim_or_give_back(call)
                left = ends - loop.time()
                if found or left <= 0 or is_draining():
                    return found
                await waiter.wait(min(left, self._limits.poll_seconds))
        finally:
            waiter.close()

    async def _claim_or_give_back(self, call: ClaimCall) -> tuple[SentClaim, ...]:
        claiming = self._live.spawn(self._claim_once(call))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            claiming.add_done_callback(self._give_back_later)
            raise

    async def _claim_once(self, call: ClaimCall) -> tuple[SentClaim, ...]:
        tokens = tuple(new_claim_token() for _ in range(call.max_tasks))
        request = ClaimRequest(
            tenant=call.tenant,
            worker=call.worker,
            epoch=call.epoch,
            runtimes=call.runtimes,
            tokens=tuple(map(stored_form, tokens)),
            attempts=tuple(self._deps.ids.attempt() for _ in tokens),
            prepare_seconds=self._limits.prepare_seconds,
            ageing_seconds=self._limits.ageing_seconds,
            owner=call.user,
        )
        by_attempt = dict(zip(request.attempts, tokens, strict=True))
        sent: list[SentClaim] = []
        try:
            taken_over: dict[TurnId, AttemptId] = {}
            ended = partial(_lease_ended, taken_over)
            for claimed in await self._deps.store.claim_tasks(request, ended, partial(_taken_over, call)):
                if (before := taken_over.get(claimed.task.turn)) is not None:
                    _log_takeover(claimed, before, call.worker)
                confirmed = await self._confirm(call, claimed, by_attempt[claimed.attempt.id])
                if confirmed is not None:
                    sent.append(confirmed)
        except Exception:
            # Nobody gets those that are confirmed, and they would wait for the end of their leases.
            self._live.spawn(self.give_back(sent))
            raise
        return tuple(sent)

    async def _confirm(self, call: ClaimCall, claimed: Claimed, token: str) -> SentClaim | None:
        """Returns None if nothing can be decided now, or if the task was ended meanwhile."""
        try:
            if (lost := after_lost_claims(claimed.task.lost_claims)) is not None:
                error = TurnFailed(_LOST.format(call.worker))
                await self._end_unsent(claimed, token, error, lost, has_effects=True)
                return None
            return await self._decide(call, claimed, token)
        except LastgoodError:
            raise  # the short lease ends, and then it is claimed again
        except Exception:
            # One task must not keep its worker from all others, nor be tried forever.
            log.exception("a claim could not be prepared", extra={"fields": _about(claimed)})
            await self._defer(claimed, token)
            return None

    async def _decide(self, call: ClaimCall, claimed: Claimed, token: str) -> SentClaim | None:
        task, session = claimed.task, claimed.session
        try:
            runtime = await self._deps.store.get_runtime(task.tenant, task.runtime)
            assert runtime is not None, "a task cannot be claimed without its runtime"
            situation = Situation(
                task.tenant, session, claimed.attempt.base, runtime, task.agent_key, task.directive
            )
            prepared = await prepare(self._deps, situation)
        except StoreUnavailable:
            raise
        except LastgoodError as error:
            await self._fail(claimed, token, error)
            return None
        content = self._content(claimed, token, prepared)
        events = _claim_events(claimed, prepared, runtime.identity)
        confirmed = await self._deps.store.confirm_claim(
            claimed.hold,
            stored_form(token),
            prepared.record,
            self._limits.lease_seconds,
            events,
            agent_digest=prepared.agent.digest,
            model=claimed.attempt.model or runtime.identity.provider,
            audit=_decided(call, claimed, prepared),
        )
        self._deps.signals.notify(session.id)
        return SentClaim(claimed, token, content) if confirmed else None

    def _content(self, claimed: Claimed, token: str, prepared: Prepared) -> dict[str, Any]:
        task, session, request = claimed.task, claimed.session, claimed.request
        snapshot = prepared.snapshot
        return {
            "task": {
                "id": task.id,
                "number": task.number,
                "agent": task.agent_key,
                "scope": {"kind": task.scope.kind.value, "id": task.scope.id},
                "session_id": session.id,
                "runtime_id": task.runtime,
                "attempt": claimed.attempt.id,
                "claims": task.claims,
                "directive": {
                    "fresh": task.directive.fresh,
                    "rerun_of": task.directive.rerun_of,
                    "note": task.directive.note,
                },
                "deadline_seconds": task.deadline_seconds,
                "queued_seconds": round(max(0.0, self._deps.clock.now() - task.created_at), 3),
            },
            "claim_token": token,
            "task_token": task_token_of(token),
            "lease_seconds": self._limits.lease_seconds,
            "prompt": prompt_of(request.messages or (), task.directive),
            "agent": agent_json(prepared.agent, session, self._safety, request.model or session.model),
            "resume": resume_json(prepared),
            "disclosures": list(prepared.disclosures),
            "folder": session.working_dir,
            **work_dir_json(prepared.decision),
            "snapshot": snapshot
            and {"attempt": snapshot.attempt, "kind": snapshot.kind, "bytes": snapshot.size},
        }

    # -- what is not sent --------------------------------------------------------------

    async def _fail(self, claimed: Claimed, token: str, error: LastgoodError) -> None:
        """What cannot be read now is tried again later; what is wrong for good fails the task."""
        decided: TaskRetry = FailTask("")
        if isinstance(error, AgentUnavailable):
            decided = after_unavailable(claimed.task.tried_seconds)
        await self._end_unsent(claimed, token, error, decided)

    async def _defer(self, claimed: Claimed, token: str) -> None:
        error = TurnFailed("The server could not prepare the claim of this task; its log says why")
        decided = after_failure("not_started", failures=claimed.task.failures, tool_calls=0)
        await self._end_unsent(claimed, token, error, decided)

    async def _end_unsent(
        self,
        claimed: Claimed,
        token: str,
        error: LastgoodError,
        decided: TaskRetry,
        *,
        has_effects: bool = False,
    ) -> None:
        match decided:
            case RetryTask(seconds, _, counts):
                end = TaskEnd(
                    claimed.task.id,
                    TaskStatus.DEFERRED,
                    stored_form(token),
                    why=error.message,
                    due_seconds=seconds,
                    counts_failure=counts,
                )
            case FailTask(reason):
                code, message = words_of(error)
                words = (code, f"{message} ({reason})" if reason else message)
                end = TaskEnd(claimed.task.id, TaskStatus.FAILED, stored_form(token), error=words)
        await self._end(claimed, AttemptStatus.FAILED, error, end, has_effects=has_effects)

    def _give_back_later(self, claiming: asyncio.Task[tuple[SentClaim, ...]]) -> None:
        if not claiming.cancelled() and claiming.exception() is None and claiming.result():
            self._live.spawn(self.give_back(claiming.result()))

    async def give_back(self, claims: Sequence[SentClaim]) -> None:
        """Their worker did not get them: nothing ran, so the next claim may have them at once."""
        error = TurnFailed("The worker did not receive the claim; nothing ran")
        for sent in claims:
            end = TaskEnd(sent.claimed.task.id, TaskStatus.QUEUED, stored_form(sent.token))
            try:
                await self._end(sent.claimed, AttemptStatus.INTERRUPTED, error, end)
            except StoreError as failed:
                log.warning("task %s waits for the end of its lease: %s", sent.claimed.task.id, failed)
            notify_workers(self._deps.signals, sent.claimed.task.runtime)

    async def _end(
        self,
        claimed: Claimed,
        status: AttemptStatus,
        error: LastgoodError,
        end: TaskEnd,
        *,
        has_effects: bool = False,
    ) -> None:
        attempt = claimed.attempt
        events = failed_events(attempt.turn, attempt.id, status, error, has_effects=has_effects)
        if await self._deps.store.finish_if_held(claimed.hold, status, words_of(error), events, task=end):
            log_claim_end(attempt, status, error, has_effects=has_effects, task_status=end.status.value)
        self._deps.signals.notify(attempt.session)


def _log_takeover(claimed: Claimed, before: AttemptId, worker: str) -> None:
    fields = {**_about(claimed), "takes_over": before, "worker": worker}
    log.warning("the lease of a claim ended, and its task was claimed again", extra={"fields": fields})


def _about(claimed: Claimed) -> dict[str, Any]:
    attempt = claimed.attempt
    return {
        "tenant": attempt.tenant,
        "session": attempt.session,
        "turn": attempt.turn,
        "attempt": attempt.id,
        "task": claimed.task.id,
    }


def _taken_over(call: ClaimCall, claimed: Claimed, before: AttemptId) -> AuditEntry:
    task = claimed.task
    about = {"task": task.id, "attempt": claimed.attempt.id, "takes_over": before, "runtime": task.runtime}
    kind = AuditKind.CLAIM_TAKEN_OVER
    return AuditEntry(task.tenant, kind, call.token, call.user, task.session, about, call.worker)


def _lease_ended(taken_over: dict[TurnId, AttemptId], turn: TurnId, attempt: AttemptId) -> tuple[Event, ...]:
    """The end of the claim before a new one, for its watchers. What it did outside may have happened."""
    taken_over[turn] = attempt
    error = TurnFailed("The lease of this attempt ended, and its task was claimed again")
    return failed_events(turn, attempt, AttemptStatus.INTERRUPTED, error, has_effects=True)


def _decided(call: ClaimCall, claimed: Claimed, prepared: Prepared) -> AuditEntry:
    task = claimed.task
    about = {"task": task.id, "attempt": claimed.attempt.id, "worker": call.worker, "runtime": task.runtime}
    decided = {**about, **prepared.record}
    return AuditEntry(
        task.tenant, AuditKind.RESUME_DECIDED, call.token, call.user, task.session, decided, call.worker
    )


def _claim_events(claimed: Claimed, prepared: Prepared, runtime: RuntimeIdentity) -> tuple[Event, ...]:
    attempt, request = claimed.attempt, claimed.request
    again = _TRIED_AGAIN if claimed.task.claims > 1 else None
    started = AttemptStarted(attempt.turn, attempt.id, prepared.agent.name, request.edit, decision=again)
    decided = ResumeChosen(claimed.task.id, runtime.id, as_record(prepared.decision))
    return (
        Event(attempt.id, started),
        *(
            Event(attempt.id, UserSaid(message))
            for message in request.messages or ()
            if message.role is Role.USER
        ),
        Event(attempt.id, decided),
    )
