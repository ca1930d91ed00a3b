"""Deliberate defects: each breaks one thing the promise rests on, and must be caught.

A defect is a context manager that changes the running code: a condition taken out
of a named statement, a step of a flow replaced. More of them are in the modules that
`registry.py` lists, together with the probes that must object to them.
"""

from __future__ import annotations

import contextlib
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import apsw

from lastgood.core import admission as core_admission
from lastgood.core import commit as core_commit
from lastgood.core import derivation as core_derivation
from lastgood.core import history as core_history
from lastgood.core import parking_policy as core_parking
from lastgood.core import recovery as core_recovery
from lastgood.core import session_rules as core_session_rules
from lastgood.core.history import History
from lastgood.core.recovery import TryAgain
from lastgood.errors import OutcomeUnknown, StoreError, TurnCancelled
from lastgood.flows import attempt_driver as flow_driver
from lastgood.flows import attempt_run as flow_run
from lastgood.flows import begin as flow_begin
from lastgood.flows import queue as flow_queue
from lastgood.flows import recovery as flow_recovery
from lastgood.flows import running_attempts as flow_running
from lastgood.flows import sessions as flow_sessions
from lastgood.flows import submit as flow_submit
from lastgood.flows import verified_history as flow_history
from lastgood.flows.attempt_end import AttemptStop
from lastgood.flows.attempt_run import Run
from lastgood.flows.history_cache import HistoryCache
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.attempts import (
    AttemptStatus,
    Begin,
    BeginConflict,
    Begun,
    Commit,
    CommitResult,
    Committed,
    Step,
)
from lastgood.model.events import TERMINAL, Event
from lastgood.model.ids import SessionId, TenantId
from lastgood.model.sessions import Head, NewSession, Session, Turn, TurnKind
from lastgood.store import migrations
from lastgood.store.sqlite.attempts import SqliteAttempts
from lastgood.store.sqlite.sessions import SqliteSessions
from lastgood.store.statements import named
from tests.faults.objections import objection_of
from tests.faults.simulation import simulate

Planted = contextlib.AbstractContextManager[Any]


@dataclass(frozen=True, slots=True)
class Defect:
    name: str
    plant: Callable[[], Planted]


DEFECTS: list[Defect] = []


def defect(name: str) -> Callable[[Callable[[], Iterator[None]]], Callable[[], Iterator[None]]]:
    def register(make: Callable[[], Iterator[None]]) -> Callable[[], Iterator[None]]:
        DEFECTS.append(Defect(name, contextlib.contextmanager(make)))
        return make

    return register


@contextlib.contextmanager
def statement(name: str, *changes: tuple[str, str]) -> Iterator[None]:
    """A named SQLite statement with parts replaced. A part that is not there is a mistake of ours."""
    sql = named("sqlite")
    whole = sql[name]
    changed = whole
    for part, instead in changes:
        assert part in changed, f"{name} has no {part!r}"
        changed = changed.replace(part, instead)
    with patch.dict(sql, {name: changed}):
        yield


@contextlib.contextmanager
def schema(*changes: tuple[str, str]) -> Iterator[None]:
    """The schema with parts replaced: second nets that would hide what a first one lets through."""
    whole = migrations.migrations("sqlite")

    def changed(dialect: str) -> tuple[migrations.Migration, ...]:
        result = []
        for step in whole:
            statements = step.statements
            for part, instead in changes:
                assert any(part in text for text in statements), f"the schema has no {part!r}"
                statements = tuple(text.replace(part, instead) for text in statements)
            result.append(replace(step, statements=tuple(text for text in statements if text.strip())))
        return tuple(result)

    with patch("lastgood.store.sqlite.database.migrations", changed):
        yield


ONE_LIVE = ("CREATE UNIQUE INDEX attempts_live", "CREATE INDEX attempts_live")
ONE_PLACE = ("UNIQUE (segment, seq),\n", "")

# -- history ---------------------------------------------------------------------


@defect("the input is appended to the kept history before the run")
def _() -> Iterator[None]:
    real = flow_driver.work

    async def work(run: Run) -> list[Step]:
        head = run.history.head
        if head is not None:
            polluted = replace(run.history, settled=run.history.settled + run.begin.ask.messages)
            run.deps.histories._kept[head.turn] = polluted
        return await real(run)

    with patch.object(flow_run, "work", work):
        yield


@defect("a failed attempt's steps stay in the kept history")
def _() -> Iterator[None]:
    real = flow_run._end

    async def end(run: Run, stop: AttemptStop) -> Outcome:
        outcome = await real(run, stop)
        head = run.history.head
        if head is not None and outcome.status is not AttemptStatus.COMMITTED:
            polluted = replace(run.history, settled=(*run.history.settled, *run.begin.ask.messages))
            run.deps.histories._kept[head.turn] = polluted
        return outcome

    with patch.object(flow_run, "_end", end):
        yield


@defect("a continuation shares its history with the conversation")
def _() -> Iterator[None]:
    real = History.answered

    def answered(self: History, own: Sequence[Any]) -> Any:
        mine = real(self, own)
        object.__setattr__(self, "settled", self.settled + mine)
        return mine

    with patch.object(History, "answered", answered):
        yield


@defect("a history that cannot be read is taken for an empty one")
def _() -> Iterator[None]:
    real = HistoryCache.at

    async def at(self: HistoryCache, tenant: TenantId, head: Head | None) -> History:
        try:
            return await real(self, tenant, head)
        except StoreError:
            return History(head)

    with (
        patch.object(HistoryCache, "at", at),
        patch.object(HistoryCache, "grow", lambda self, history, turn: None),
    ):
        yield


@defect("prompts are not repaired")
def _() -> Iterator[None]:
    with patch.object(core_history, "repair", tuple):
        yield


@defect("a reset is ignored")
def _() -> Iterator[None]:
    real = core_history._Growing.add

    def add(self: core_history._Growing, turn: Turn) -> None:
        real(self, replace(turn, kind=TurnKind.RUN))

    with patch.object(core_history._Growing, "add", add):
        yield


@defect("only the last message of a request is stored")
def _() -> Iterator[None]:
    real = core_commit.plan_commit

    def plan(begin: Begin, begun: Begun, steps: Sequence[Step], now: float) -> Commit:
        return real(
            replace(begin, ask=replace(begin.ask, messages=begin.ask.messages[-1:])), begun, steps, now
        )

    with patch.object(flow_run, "plan_commit", plan):
        yield


@defect("the hash does not cover the turn before")
def _() -> Iterator[None]:
    real = core_commit.link
    with patch.object(core_commit, "link", lambda base, turn: real(None, turn)):
        yield


@defect("the hash does not cover the kind of a turn")
def _() -> Iterator[None]:
    real = core_commit.link
    with patch.object(core_commit, "link", lambda base, turn: real(base, replace(turn, kind=TurnKind.RUN))):
        yield


@defect("a history is not verified when it is read")
def _() -> Iterator[None]:
    with patch.object(flow_history, "damage_of", lambda base, turn: None):
        yield


@defect("a check looks at one tenant")
def _() -> Iterator[None]:
    whole = "ON before.id = turns.parent"
    with statement("check_turns", (whole, f"{whole} WHERE turns.tenant = 'default'")):
        yield


# -- exclusion -------------------------------------------------------------------


@defect("no lease: a begin does not look whether the session is free")
def _() -> Iterator[None]:
    with schema(ONE_LIVE), statement("hold_session", (" AND attempt_id IS NULL", "")):
        yield


@defect("a commit without its compare-and-swap")
def _() -> Iterator[None]:
    with (
        schema(ONE_PLACE),
        statement("commit_head", ("head IS :expected_head AND ", ""), (" AND base IS :base", "")),
    ):
        yield


@defect("a commit without its fence")
def _() -> Iterator[None]:
    with statement(
        "commit_head",
        ("attempt_id = :attempt AND fence = :fence\n  AND ", ""),
        (" AND base IS :base", ""),  # what the zombie was begun for hides it, too
    ):
        yield


@defect("journal and events without a fence")
def _() -> Iterator[None]:
    with statement("touch_if_held", (" AND attempt_id = :attempt AND fence = :fence", "")):
        yield


@defect("fences do not rise")
def _() -> Iterator[None]:
    with schema(("UNIQUE (session_id, fence),\n", "")), statement("hold_session", ("fence + 1", "fence")):
        yield


@defect("a sweep ends attempts whose lease still runs")
def _() -> Iterator[None]:
    with (
        statement("expired_attempts", ("sessions.lease_until < clock()", "sessions.lease_until IS NOT NULL")),
        statement("free_session", ("NOT :only_if_expired", "1")),
    ):
        yield


@defect("an expired lease is never swept")
def _() -> Iterator[None]:
    with (
        statement("expired_attempts", ("LIMIT :limit", "LIMIT 0 * :limit")),
        statement("is_expired", ("lease_until < clock()", "0")),
    ):
        yield


@defect("a run goes on after its lease has ended")
def _() -> Iterator[None]:
    with patch.object(flow_running.RunningAttempts, "_watch_lease", lambda self, run: None):
        yield


@defect("an orphan commits")
def _() -> Iterator[None]:
    with statement("commit_head", ("orphaned = 0", "1")):
        yield


@defect("a cancel is acknowledged before the run has stopped")
def _() -> Iterator[None]:
    async def stop(self: flow_running.RunningAttempts, run: Run, stop: AttemptStop) -> Outcome:
        return Outcome(run.hold.attempt, AttemptStatus.CANCELLED, None, TurnCancelled())

    with patch.object(flow_running.RunningAttempts, "stop", stop):
        yield


@defect("a delete leaves the session's rows to whoever holds it")
def _() -> Iterator[None]:
    async def delete(self: Any, tenant: TenantId, session: SessionId) -> bool:
        def work(connection: apsw.Connection) -> bool:
            connection.execute("DELETE FROM turns WHERE session_id = ?", (session,))
            hide = "UPDATE sessions SET head = NULL, seq = 0, head_hash = NULL WHERE id = ?"
            connection.execute(hide, (session,))
            return True

        return bool(await self.db.write(work))

    with patch.object(SqliteSessions, "delete_session", delete):
        yield


@defect("a delete takes turns that a fork needs")
def _() -> Iterator[None]:
    with statement(
        "erase_turns",
        ("NOT EXISTS (SELECT 1 FROM sessions WHERE forked_turn = turns.id)", "1"),
        ("NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = turns.session_id)", "1"),
    ):
        yield


@defect("a fork starts at the head instead of its turn")
def _() -> Iterator[None]:
    real = SqliteSessions.fork_session

    async def fork(self: Any, source: Session, at: Any, new: Any) -> Any:
        head = (await self.read_turns(source.tenant, source.head.turn))[-1] if source.head else None
        return await real(self, source, head, new)

    with patch.object(SqliteSessions, "fork_session", fork):
        yield


# -- durability ------------------------------------------------------------------


@defect("a lost answer of a commit is taken for a failure")
def _() -> Iterator[None]:
    async def once(run: Run, plan: Commit, events: Sequence[Event]) -> CommitResult:
        try:
            return await run.deps.store.commit_if_head(run.hold, plan, events)
        except OutcomeUnknown:
            run.stop(AttemptStop(None, TurnCancelled()))
            return CommitResult(Committed.LOST)

    async def as_stored(run: Run, stop: AttemptStop) -> Outcome:
        return Outcome(run.hold.attempt, AttemptStatus.FAILED, None, stop.error)

    with patch.object(flow_run, "_commit_once", once), patch.object(flow_run, "_as_stored", as_stored):
        yield


@defect("a lost answer of a commit is taken for success")
def _() -> Iterator[None]:
    async def once(run: Run, plan: Commit, events: Sequence[Event]) -> CommitResult:
        try:
            return await run.deps.store.commit_if_head(run.hold, plan, events)
        except OutcomeUnknown:
            return CommitResult(Committed.YES)

    with patch.object(flow_run, "_commit_once", once):
        yield


@defect("turn ids are not unique: a commit whose answer was lost is made again as another turn")
def _() -> Iterator[None]:
    real = flow_run._commit_once

    async def once(run: Run, plan: Commit, events: Sequence[Event]) -> CommitResult:
        try:
            return await run.deps.store.commit_if_head(run.hold, plan, events)
        except OutcomeUnknown:
            found = await run.deps.store.find_turn(run.hold.tenant, plan.turn.id)
            if found is None:
                return await real(run, plan, events)
            store: Any = run.deps.store

            def work(connection: apsw.Connection) -> None:
                connection.execute(
                    "INSERT INTO turns SELECT id || '+', tenant, session_id, seq + 1, segment, id,"
                    " attempt_id, kind, hash, agent_key, agent_digest, model, decision, input_tokens,"
                    " output_tokens, cost, created_at, end_user, inputs, body FROM turns WHERE id = ?",
                    (found.id,),
                )
                connection.execute(
                    "UPDATE sessions SET head = head || '+', seq = seq + 1 WHERE head = ?", (found.id,)
                )

            await store._store.db.write(work)
            return CommitResult(Committed.YES)

    with patch.object(flow_run, "_commit_once", once):
        yield


@defect("the idempotency row is written outside the begin")
def _() -> Iterator[None]:
    real = SqliteAttempts.begin_if_free

    async def begin_if_free(self: Any, begin: Begin, events: Sequence[Event]) -> Begun | BeginConflict:
        found = await real(self, replace(begin, ask=replace(begin.ask, key=None)), events)
        if isinstance(found, Begun):
            return found
        standing: BeginConflict = self._conflict_now(begin.ask)
        return standing

    with patch.object(SqliteAttempts, "begin_if_free", begin_if_free):
        yield


@defect("event numbers are used again after a crash")
def _() -> Iterator[None]:
    with (
        patch("lastgood.store.sqlite.attempts.EVENT_LEAP", 0),
        statement("free_session", ("event_seq = event_seq + :events", "event_seq = max(1, event_seq - 1)")),
        statement("insert_event", ("INSERT INTO", "INSERT OR REPLACE INTO")),
    ):
        yield


@defect("a failed attempt has no terminal event")
def _() -> Iterator[None]:
    real = SqliteAttempts.finish_if_held

    async def finish(self: Any, hold: Any, status: Any, error: Any, events: Any, **more: Any) -> bool:
        kept = [event for event in events if event.kind not in TERMINAL]
        return await real(self, hold, status, error, kept, **more)

    with patch.object(SqliteAttempts, "finish_if_held", finish):
        yield


# -- the turn --------------------------------------------------------------------


@defect("the model override is applied when the turn begins")
def _() -> Iterator[None]:
    with statement("hold_session", ("SET fence", "SET model = coalesce(:override, model), fence")):
        yield


@defect("the title writes the whole session back")
def _() -> Iterator[None]:
    with statement("set_title", ("SET title", "SET starred = 0, model = NULL, title")):
        yield


@defect("our title replaces a person's")
def _() -> Iterator[None]:
    with statement("set_title", ("title_by = 'nobody'", "1")):
        yield


@defect("an adopted step is run again")
def _() -> Iterator[None]:
    real = flow_run._load

    async def load(run: Run) -> None:
        await real(run)
        run.adopted = ()

    with patch.object(flow_run, "_load", load):
        yield


@defect("a plain request is continued although its requester is gone")
def _() -> Iterator[None]:
    with (
        statement("interrupted_asks", ("requests.durable = 1 AND ", "")),
        patch.object(flow_recovery, "recover", lambda found, digest, model: TryAgain(True, "planted")),
    ):
        yield


@defect("a promised turn is never tried again")
def _() -> Iterator[None]:
    with patch.object(flow_recovery, "recover", lambda found, digest, model: core_recovery.Leave("planted")):
        yield


# -- the queue -------------------------------------------------------------------


@defect("a commit does not consume the steers that were journaled")
def _() -> Iterator[None]:
    with statement(
        "settle_queued",
        (" OR journaled THEN clock()", " THEN clock()"),
        (" OR journaled THEN attempt_id", " THEN attempt_id"),
    ):
        yield


@defect("a steer is lost with its attempt")
def _() -> Iterator[None]:
    with statement(
        "give_back_queued",
        ("SET kind = 'followup'", "SET settled_at = CASE WHEN journaled THEN 1 END, kind = 'followup'"),
    ):
        yield


@defect("a steer that came too late is dropped")
def _() -> Iterator[None]:
    with statement("settle_queued", ("CASE WHEN kind = 'followup' OR journaled THEN clock() END", "clock()")):
        yield


@defect("a follow-up that fails is tried for ever")
def _() -> Iterator[None]:
    with patch.object(core_parking, "MOST_FAILURES", 50):
        yield


@defect("a follow-up is forgotten when its process dies")
def _() -> Iterator[None]:
    async def sweep(self: Any) -> None:
        return

    with patch.object(flow_queue.Queue, "sweep", sweep):
        yield


@defect("a steer in adopted steps stays in the queue")
def _() -> Iterator[None]:
    real = flow_submit.Submitter.begin

    async def begin(self: Any, begin: Begin, plan: Any, *rest: Any) -> Any:
        return await real(self, replace(begin, reclaims=()), plan, *rest)

    with patch.object(flow_submit.Submitter, "begin", begin):
        yield


# -- retries ---------------------------------------------------------------------


@defect("a retry runs finished tools again")
def _() -> Iterator[None]:
    def try_again(tried: Any, steps: Any, **now: Any) -> TryAgain:
        return TryAgain(False, "a retry is a new try")

    with patch.object(flow_begin, "try_again", try_again):
        yield


@defect("that a client has left is written beside the commit")
def _() -> Iterator[None]:
    async def write(self: Run) -> bool:
        return await self.deps.store.set_orphaned(self.hold, self.watchers == 0)

    with patch.object(Run, "write_presence", write):
        yield


@defect("a retry without a key is matched with the head turn only")
def _() -> Iterator[None]:
    head = (
        " AND (attempts.ended_at IS NULL"
        " OR requests.turn_id = (SELECT head FROM sessions WHERE id = :session))\nORDER BY"
    )
    with statement("newest_by_body", ("\nORDER BY", head)):
        yield


@defect("a first try that was refused is forgotten")
def _() -> Iterator[None]:
    with statement("close_requests", ("WHERE tenant", "WHERE 0 AND tenant")):
        yield


@defect("nobody is told that a tool which is not repeatable has run")
def _() -> Iterator[None]:
    with patch.object(flow_run, "has_effects", lambda steps, waits_at=None: False):
        yield


# -- isolation -------------------------------------------------------------------


@defect("a lookup without its tenant")
def _() -> Iterator[None]:
    with statement("get_session", ("tenant = :tenant AND ", "")):
        yield


@defect("another body under the same key is let through")
def _() -> Iterator[None]:
    real = core_admission.admit

    def admit(ask: Any, standing: BeginConflict) -> Any:
        if standing.prior is not None:
            ask = replace(ask, fingerprint=standing.prior.fingerprint)
        return real(ask, standing)

    with patch.object(flow_submit, "admit", admit):
        yield


# -- rules -----------------------------------------------------------------------


@defect("a session derived from another does not inherit its rules")
def _() -> Iterator[None]:
    real = core_derivation.derive

    def derive(source: Session, id: SessionId, title: str, created_by: str, owner: str) -> NewSession:
        return replace(real(source, id, title, created_by, owner), rules=())

    with (
        statement("fork_session", (" AND rules = :rules", "")),
        patch.object(flow_sessions, "derive", derive),
    ):
        yield


@defect("a weaker scope removes a stronger rule")
def _() -> Iterator[None]:
    with patch.object(core_session_rules, "_above", lambda layers, scope: ()):
        yield


@defect("a change of rules does not look whether they have changed since they were read")
def _() -> Iterator[None]:
    with statement("set_rules_if_unchanged", (" AND rules = :expected", "")):
        yield


def caught_by_simulation(one: Defect, seeds: int) -> str | None:
    """By the checker alone, on seeded runs that know nothing of the defect."""
    with one.plant():
        for seed in range(seeds):
            try:
                found = simulate(seed)
            except (Exception, CancelledError) as error:  # a client was cut off without an answer
                found = [objection_of(error)]
            if found:
                return f"simulation, seed {seed}: {found[0]}"
    return None
