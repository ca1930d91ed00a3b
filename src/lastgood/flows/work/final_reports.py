"""How a claim ends by its worker's own report: the turn is committed, or the run has failed.

A final report that is repeated gets its first answer, also when its claim is not current any more. What a run
has produced too late is kept beside the task, for people; it is never committed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from lastgood.core.commit import plan_commit
from lastgood.core.history import valid_text
from lastgood.core.lifecycle import Move, after
from lastgood.core.task_retry import after_failure, error_of_run
from lastgood.core.transcript import cut
from lastgood.errors import OutcomeUnknown
from lastgood.flows.attempt_end import committed_events, failed_events, words_of
from lastgood.flows.attempt_log import log_claim_end
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.outages import through_outage
from lastgood.flows.turns import ask_of
from lastgood.flows.verified_history import find_verified
from lastgood.flows.work.report_content import (
    ClaimRef,
    Completion,
    RunFailure,
    end_of,
    pointer_of_failure,
    retires,
    seen_before,
    stale,
    usage_event,
)
from lastgood.flows.work.reports import Reports
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.attempts import (
    Attempt,
    AttemptStatus,
    Begin,
    Begun,
    Commit,
    Committed,
    Hold,
    Step,
    StepKind,
)
from lastgood.model.events import Event, RunWarned, TextStreamed
from lastgood.model.ids import TurnId
from lastgood.model.messages import assistant
from lastgood.model.sessions import Head, Session
from lastgood.model.tasks import (
    OMITTED,
    ClaimState,
    PointerOutcome,
    PointerReport,
    TaskEnd,
    TaskMessage,
    TaskStatus,
)
from lastgood.model.usage import AttemptUse

#: In place of an answer without words: an assistant's message is never empty.
NO_TEXT = "[The agent ended its turn without a text answer]"


@dataclass(frozen=True, slots=True)
class Late:
    """What is kept of a report that does not count any more."""

    output: str
    pointer: Callable[[ClaimState], PointerReport]


class FinalReports:
    def __init__(self, deps: Dependencies, reports: Reports, limits: WorkLimits) -> None:
        self._deps = deps
        self._store = deps.store
        self._reports = reports
        self._limits = limits

    # -- the good end ------------------------------------------------------------------

    async def complete(self, key: ClaimRef, done: Completion) -> dict[str, Any]:
        """Turn, head, usage, pointer, task and the answer to this report in one transaction (I17)."""
        output = cut(valid_text(done.output), self._limits.output_characters)
        late = Late(output, lambda state: _late_pointer(state, done))
        return await self._finally(key, late, lambda state: self._commit(key, state, done, output))

    async def _commit(
        self, key: ClaimRef, state: ClaimState, done: Completion, output: str
    ) -> dict[str, Any] | None:
        assert state.hold is not None
        assert state.attempt is not None
        hold, attempt = state.hold, state.attempt
        await self._reports.journal_delivered_steers(hold, done.delivered)
        begin, begun = await self._begun(state, hold, attempt, done.model)
        steps = list(await self._store.read_steps(key.tenant, attempt.id))
        steps.append(Step(StepKind.MODEL, assistant(output if output.strip() else NO_TEXT), done.usage))
        commit = plan_commit(begin, begun, steps, self._deps.clock.now())
        report = {"status": TaskStatus.COMPLETED.value, "turn": commit.turn.id, "seq": commit.turn.seq}
        end = TaskEnd(
            task=key.task,
            status=TaskStatus.COMPLETED,
            token=key.hash,
            pointer=PointerReport(
                native_session=done.native_session and valid_text(done.native_session),
                work_dir=done.work_dir and valid_text(done.work_dir),
                through=commit.turn.id,
                outcome=PointerOutcome.COMMITTED,
                is_dirty=False,
                retires=retires(done.retired_session, done.disclosure),
            ),
            report=report,
            cli_version=valid_text(done.cli_version),
        )
        events = await self._good_events(attempt, commit, done, output)
        use = AttemptUse(commit.turn.model, done.usage)
        answer = await self._store.commit_if_head(hold, commit, events, task=end, use=use)
        if answer.outcome is not Committed.YES:
            return None
        self._deps.histories.follow(begun.base, commit.turn)
        return report

    async def _begun(
        self, state: ClaimState, hold: Hold, attempt: Attempt, model: str | None
    ) -> tuple[Begin, Begun]:
        """What a begin of this attempt would have been: the claim began it."""
        request = await self._store.read_request(hold.tenant, attempt.turn)
        session = await self._store.get_session(hold.tenant, hold.session)
        if request is None or session is None:
            raise stale(state)
        used = cut(valid_text(model), 200) if model else attempt.model
        decision = {"runtime": state.task.runtime, "resume": state.task.decision}
        begin = Begin(
            ask=ask_of(request),
            turn=attempt.turn,
            attempt=attempt.id,
            holder="",
            lease_seconds=0.0,
            agent_key=attempt.agent_key,
            agent_digest=attempt.agent_digest,
            agent_model=used,
            decision=decision,
        )
        base = await self._base(session, attempt.base)
        return begin, Begun(hold, attempt.turn, attempt.number, used, base, session)

    async def _base(self, session: Session, base: TurnId | None) -> Head | None:
        if base is None or session.head is None or session.head.turn == base:
            return None if base is None else session.head
        turn = await find_verified(self._store, session.tenant, base)
        return None if turn is None else turn.head

    async def _good_events(
        self, attempt: Attempt, commit: Commit, done: Completion, output: str
    ) -> tuple[Event, ...]:
        turn, id = commit.turn, attempt.id
        said = () if await self._has_text(attempt) else (Event(id, TextStreamed(output)),)
        warned = (Event(id, RunWarned(cut(valid_text(done.disclosure), 4000))),) if done.disclosure else ()
        return (
            *warned,
            *said,
            usage_event(id, turn.usage, turn.model),
            *committed_events(id, commit),
        )

    async def _has_text(self, attempt: Attempt) -> bool:
        """Whether watchers have seen the answer already, as the run streamed it."""
        after = 0
        while page := await self._store.read_messages(attempt.tenant, attempt.id, after=after):
            if any(_is_text(message) for message in page):
                return True
            after = page[-1].seq
        return False

    # -- any other end -----------------------------------------------------------------

    async def fail(self, key: ClaimRef, failure: RunFailure) -> dict[str, Any]:
        text = cut(valid_text(failure.error), self._limits.error_characters)
        late = Late(f"{failure.code}: {text}", lambda state: pointer_of_failure(state, failure))
        return await self._finally(key, late, lambda state: self._fail(key, state, failure, text))

    async def _fail(
        self, key: ClaimRef, state: ClaimState, failure: RunFailure, text: str
    ) -> dict[str, Any] | None:
        assert state.hold is not None
        assert state.attempt is not None
        decided = after_failure(
            failure.code,
            failures=state.task.failures,
            tool_calls=failure.tool_calls,
            resume_failed=failure.resume_failed,
            retry_after=failure.retry_after_seconds,
            tried_seconds=state.task.tried_seconds,
        )
        error = error_of_run(failure.code, text or "The run failed without a message")
        end = replace(
            end_of(decided, key, words_of(error), pointer_of_failure(state, failure)),
            cli_version=valid_text(failure.cli_version),
            ran_tools=failure.tool_calls > 0,
        )
        status = after(AttemptStatus.RUNNING, Move.FAIL)
        has_effects = failure.tool_calls > 0
        events = failed_events(state.attempt.turn, state.attempt.id, status, error, has_effects=has_effects)
        done = await self._store.finish_if_held(state.hold, status, words_of(error), events, task=end)
        if done:
            log_claim_end(state.attempt, status, error, has_effects=has_effects, task_status=end.status.value)
        return end.report if done else None

    async def _finally(
        self, key: ClaimRef, late: Late, write: Callable[[ClaimState], Awaitable[dict[str, Any] | None]]
    ) -> dict[str, Any]:
        """A final report. If its answer is lost, it is read back: the report is stored with what it did."""

        async def once() -> dict[str, Any] | None:
            state = await self._reports.find(key)
            if state.report is not None:
                return state.report
            if not state.is_current:
                return None
            try:
                return await write(state)
            except OutcomeUnknown:
                return (await self._reports.find(key)).report or await once()

        report = await through_outage(once, self._deps.limits.outage_seconds)
        if report is None:
            # It may have been this very report, or another node's, that has ended the claim meanwhile.
            state = await self._reports.find(key)
            if state.report is not None:
                return state.report
            await self._keep_late(key, state, late)
            raise stale(state)
        self._deps.signals.notify((await self._reports.find(key)).task.session)
        return report

    async def _keep_late(self, key: ClaimRef, state: ClaimState, late: Late) -> None:
        """Its native session was used anyway: it holds a prompt that nobody has committed, and a later
        task must find it. Whatever ended the claim says nothing of it."""
        pointer = replace(late.pointer(state), outcome=PointerOutcome.UNCOUNTED, is_dirty=True)
        if pointer.native_session is not None or pointer.work_dir is not None or pointer.retires:
            await self._store.report_pointer(state, key.hash, pointer)
        await self._store.keep_late_output(key.tenant, key.task, key.hash, late.output)


def _is_text(message: TaskMessage) -> bool:
    kind = message.body.get("type")
    return kind == "text" or (kind == OMITTED and bool(message.body.get("has_text")))


def _late_pointer(state: ClaimState, done: Completion) -> PointerReport:
    return PointerReport(
        native_session=done.native_session and valid_text(done.native_session),
        work_dir=done.work_dir and valid_text(done.work_dir),
        through=seen_before(state, done.native_session),
        outcome=PointerOutcome.UNCOUNTED,
        is_dirty=True,
        retires=retires(done.retired_session, done.disclosure),
    )
