"""What workers report about a claim while its run lasts.

Every report carries the claim token. It counts if the claim is still current: the task was neither claimed
again nor ended. Any other report is rejected with the state of the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lastgood.core.history import valid_text
from lastgood.errors import LastgoodError, StaleClaim, TaskNotFound, TooLarge
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.work.report_content import (
    ClaimRef,
    bounded,
    event_of,
    seen_before,
    stale,
    usage_event,
)
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.attempts import Attempt, Hold, Step, StepKind
from lastgood.model.events import Event, UserSaid
from lastgood.model.ids import AttemptId
from lastgood.model.sessions import Usage
from lastgood.model.tasks import (
    ClaimState,
    PointerOutcome,
    PointerReport,
    Snapshot,
    SnapshotSummary,
    TaskMessage,
)


class Reports:
    def __init__(self, deps: Dependencies, limits: WorkLimits) -> None:
        self._deps = deps
        self._store = deps.store
        self._limits = limits

    async def current(self, key: ClaimRef) -> tuple[ClaimState, Hold, Attempt]:
        """StaleClaim: it is not current."""
        state = await self.find(key)
        if not state.is_current or state.hold is None or state.attempt is None:
            raise stale(state)
        return state, state.hold, state.attempt

    async def find(self, key: ClaimRef) -> ClaimState:
        state = await self._store.find_claim(key.tenant, key.task, key.hash, key.user, key.worker)
        if state is None:
            raise await self._refusal(key)
        return state

    async def _refusal(self, key: ClaimRef) -> LastgoodError:
        """A wrong token is refused like one that has ended. A task of another worker looks like no task."""
        task = await self._store.get_task(key.tenant, key.task)
        runtime = await self._store.get_runtime(key.tenant, task.runtime) if task is not None else None
        if runtime is None or key.user != runtime.owner or key.worker not in (None, runtime.identity.worker):
            return TaskNotFound()
        return StaleClaim("claim_token is not that of the task's current claim; stop its run", task=key.task)

    async def start(self, key: ClaimRef) -> dict[str, Any]:
        state, hold, _ = await self.current(key)
        if not await self._store.start_task(state, key.hash):
            raise stale(await self.find(key))
        return await self._news(hold)

    async def pin(self, key: ClaimRef, native_session: str, work_dir: str | None) -> dict[str, Any]:
        """A worker that dies after this leaves a native session behind that can be found again. Also of a
        task that was cancelled: its native session holds a prompt that nobody has committed."""
        state = await self.find(key)
        report = PointerReport(
            native_session=valid_text(native_session),
            work_dir=None if work_dir is None else valid_text(work_dir),
            through=seen_before(state, native_session),
            outcome=PointerOutcome.UNCOUNTED,
            is_dirty=True,
        )
        written = await self._store.report_pointer(state, key.hash, report)
        if not written or state.hold is None or not state.is_current:
            raise stale(state)
        return await self._news(state.hold)

    async def messages(
        self, key: ClaimRef, messages: Sequence[TaskMessage], delivered: Sequence[int] = ()
    ) -> dict[str, Any]:
        state, hold, attempt = await self.current(key)
        await self.journal_delivered_steers(hold, delivered)
        bounded = [self._bounded(message) for message in messages]
        events = [event_of(attempt, message) for message in bounded]
        acked = await self._store.append_messages(state, key.hash, bounded, events)
        if acked is None:
            raise stale(await self.find(key))
        self._deps.signals.notify(hold.session)
        return {"acked_seq": acked, **await self._news(hold)}

    async def usage(self, key: ClaimRef, usage: Usage, model: str | None) -> dict[str, Any]:
        """For watchers. The turn's usage is what the final report says."""
        _, hold, attempt = await self.current(key)
        event = usage_event(attempt.id, usage, model or attempt.model)
        if await self._store.append_events_if_held(hold, [event]) is None:
            raise stale(await self.find(key))
        self._deps.signals.notify(hold.session)
        return await self._news(hold)

    async def status(self, key: ClaimRef, delivered: Sequence[int] = ()) -> dict[str, Any]:
        state = await self.find(key)
        news: dict[str, Any] = {"status": state.task.status.value, "current": state.is_current}
        if not state.is_current or state.hold is None:
            return news | {"cancel": True}
        await self.journal_delivered_steers(state.hold, delivered)
        return news | await self._news(state.hold)

    async def snapshot(
        self, key: ClaimRef, kind: str, summary: dict[str, Any], body: bytes
    ) -> dict[str, Any]:
        if len(body) > self._limits.snapshot_bytes:
            raise TooLarge(
                f"The snapshot has {len(body):,} bytes; the limit is {self._limits.snapshot_bytes:,}. Leave "
                "files out"
            )
        state, hold, attempt = await self.current(key)
        session = await self._store.get_session(key.tenant, hold.session)
        if session is not None:
            await self._deps.quotas.check(key.tenant, session.created_by)
        snapshot = Snapshot(attempt.id, key.tenant, hold.session, attempt.turn, kind, summary, body)
        if not await self._store.put_snapshot(state, key.hash, snapshot):
            raise stale(await self.find(key))
        return await self._news(hold)

    async def read_snapshot(self, key: ClaimRef, attempt: AttemptId) -> Snapshot | None:
        """Only of the session that the claim is about, and of the turns that it was forked with."""
        _, hold, _ = await self.current(key)
        about = await self._store.summary_of_snapshot(key.tenant, attempt)
        if about is None or not about.size:
            return None
        if about.session != hold.session and not await self._inherits(hold, about):
            return None
        return await self._store.get_snapshot(key.tenant, attempt)

    async def _inherits(self, hold: Hold, snapshot: SnapshotSummary) -> bool:
        session = await self._store.get_session(hold.tenant, hold.session)
        if session is None or session.head is None:
            return False
        turns = await self._deps.histories.turns(hold.tenant, session.head)
        return any((turn.id, turn.attempt) == (snapshot.turn, snapshot.attempt) for turn in turns)

    async def acknowledge_cancel(self, key: ClaimRef) -> dict[str, Any]:
        state = await self.find(key)
        await self._store.acknowledge_cancel(key.tenant, key.task, key.hash)
        return {"status": state.task.status.value}

    async def _news(self, hold: Hold) -> dict[str, Any]:
        """Steers for the run that are not acknowledged yet: sent again until they are."""
        steers = await self._store.steers_of(hold)
        if not steers:
            return {}
        return {"steers": [{"id": one.number, "text": one.messages[0].content} for one in steers]}

    async def journal_delivered_steers(self, hold: Hold, delivered: Sequence[int]) -> None:
        """Steers that the run has taken are in its journal from now on, so the commit holds them."""
        taken = set(delivered)
        if not taken:
            return
        steers = [one for one in await self._store.steers_of(hold) if one.number in taken]
        steps = [Step(StepKind.STEER, one.messages[0], queued=one.number) for one in steers]
        events = [Event(hold.attempt, UserSaid(one.messages[0], steer=True)) for one in steers]
        if steps:
            await self._store.journal_if_held(hold, steps, events)
            self._deps.signals.notify(hold.session)

    def _bounded(self, message: TaskMessage) -> TaskMessage:
        return TaskMessage(message.seq, bounded(message.body, self._limits.message_characters))
