"""Short directed stories, each a rule. Run as tests, and against every planted defect.

A story takes a store of its own on a virtual clock; it objects by raising, or
through the checker, which judges every one of them at its end.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lastgood.core.commit import plan_commit
from lastgood.errors import IdempotencyMismatch, SessionNotFound
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.attempts import (
    Ask,
    AttemptStatus,
    Begin,
    BeginConflict,
    Begun,
    Commit,
    Committed,
    OnLeave,
    Step,
    StepKind,
)
from lastgood.model.events import AttemptCommitted, AttemptStarted, Event, TextStreamed
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, TenantId, TurnId
from lastgood.model.messages import ToolCall, assistant, user
from lastgood.model.sessions import TurnKind
from lastgood.store.sqlite import SqliteStore, open_sqlite
from lastgood.wiring import Lastgood
from tests.faults.checker import check
from tests.faults.faults import Faults, FaultyStore, Mode, faulty_engine
from tests.faults.objections import objection_of
from tests.faults.simulation import EPOCH, LIMITS, SHM
from tests.faults.virtual_loop import VirtualLoop, run_virtually
from tests.faults.world import OTHER_MODEL, World

Scenario = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A world with one node, and a second one for whoever needs it."""

    def __init__(self, loop: VirtualLoop, folder: Path) -> None:
        self.store: SqliteStore = open_sqlite(
            folder / "probe.db", inline=True, clock=lambda: EPOCH + loop.time()
        )
        self.world = World(self.store)
        self.faults = Faults(stall_seconds=LIMITS.lease_seconds * 1.5)
        self.node = self.make_node("a", self.faults)
        self.other = self.make_node("b", Faults())
        self.background: list[asyncio.Task[Any]] = []

    def make_node(self, name: str, faults: Faults) -> Lastgood:
        store: Any = FaultyStore(self.store, faults)
        engine = faulty_engine(self.world.kit(), faults)
        return self.world.node(name, store=store, engine=engine, limits=LIMITS, seed="probe")

    def alive(self, node: Lastgood) -> None:
        self.background += [
            asyncio.create_task(node.live.keep_alive()),
            asyncio.create_task(node.recovery.keep_sweeping()),
        ]

    async def begin(self, session: Any, number: int, **ask: Any) -> tuple[Begin, Begun | BeginConflict]:
        begin = Begin(
            Ask(DEFAULT_TENANT, session, (user(f"by hand {number}"),), **ask),
            TurnId(f"turn-by-hand-{number}"),
            AttemptId(f"attempt-by-hand-{number}"),
            "hand",
            LIMITS.lease_seconds,
            "builtin/scripted",
            "digest",
            "builtin/scripted",
            {"agent": "exact"},
        )
        started = Event(begin.attempt, AttemptStarted(begin.turn, begin.attempt, "scripted"))
        return begin, await self.store.begin_if_free(begin, (started,))


@dataclass(frozen=True, slots=True)
class Probe:
    name: str
    story: Scenario

    def run(self) -> list[str]:
        """What the checker says at the end; the story itself may raise."""
        with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:

            async def work(loop: VirtualLoop) -> list[str]:
                stage = Stage(loop, Path(folder))
                try:
                    await self.story(stage)
                    return await check(stage.world, settled=False)
                finally:
                    for task in stage.background:
                        task.cancel()
                    await stage.store.close()

            return run_virtually(work)

    def objects(self) -> str | None:
        try:
            found = self.run()
        except (Exception, asyncio.CancelledError) as error:
            return objection_of(error)
        return found[0] if found else None


PROBES: list[Probe] = []


def probe(story: Scenario) -> Scenario:
    PROBES.append(Probe(story.__name__, story))
    return story


def answer(text: str = "by hand") -> Step:
    return Step(StepKind.MODEL, assistant(text))


def committed_event(plan: Commit) -> Event:
    turn = plan.turn
    return Event(turn.attempt, AttemptCommitted(turn.id, turn.seq, turn.attempt, turn.model, 0, 0))


@probe
async def a_commit_on_another_base_is_lost(stage: Stage) -> None:
    """I10: the head is compared where it is moved."""
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "one", "tok1")
    begin, begun = await stage.begin(session, 1)
    assert isinstance(begun, Begun)
    stale = (
        replace(begun, base=None),
        replace(begun, base=None, session=replace(begun.session, head=None)),
    )
    for one in stale:
        committed = (
            await stage.store.commit_if_head(begun.hold, plan_commit(begin, one, [answer()], 0.0), ())
        ).outcome
        assert committed is Committed.LOST, "a commit on another base went through"


@probe
async def a_zombie_writes_nothing(stage: Stage) -> None:
    """I10: after a takeover every write of the old holder finds no row."""
    session = await stage.world.create(stage.node)
    begin, begun = await stage.begin(session, 1)
    assert isinstance(begun, Begun)
    await asyncio.sleep(LIMITS.lease_seconds + 1)
    await stage.world.ask(stage.other, session, "\n!slow 0\n!say taken over", "tok1")
    second, other = await stage.begin(session, 2)
    assert isinstance(other, Begun)
    text = Event(begin.attempt, TextStreamed("late"))
    assert other.hold.fence > begun.hold.fence, "fences do not rise"
    assert not await stage.store.journal_if_held(begun.hold, [answer()], (text,)), "a zombie journaled"
    assert await stage.store.append_events_if_held(begun.hold, (text,)) is None, "a zombie told something"
    late = replace(begun, base=other.base, session=other.session)
    plan = plan_commit(begin, late, [answer()], 0.0)
    assert (await stage.store.commit_if_head(begun.hold, plan, ())).outcome is Committed.LOST, (
        "a zombie committed"
    )
    good = plan_commit(second, other, [answer()], 0.0)
    end = committed_event(good)
    assert (await stage.store.commit_if_head(other.hold, good, (end,))).outcome is Committed.YES


@probe
async def an_orphan_never_commits_by_itself(stage: Stage) -> None:
    """I21: its requester is gone; it is cancelled after the grace time."""
    session = await stage.world.create(stage.node)
    leave = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, leave.set)
    text = "\n!slow 0.4\n!say one two"
    received = await stage.world.ask(stage.node, session, text, "tok1", on_leave=OnLeave.ORPHAN, leave=leave)
    assert received.outcome == "cancelled", f"an orphan ended {received.outcome}"


@probe
async def an_orphan_that_is_asked_for_again_commits_once(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    leave = asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, leave.set)
    text = "\n!slow 0.4\n!say one two"
    ask = stage.world.ask
    first = asyncio.create_task(ask(stage.node, session, text, "tok1", on_leave=OnLeave.ORPHAN, leave=leave))
    await leave.wait()
    await asyncio.sleep(0.1)
    again = await ask(stage.node, session, text, "tok1", on_leave=OnLeave.ORPHAN, is_retry=True)
    assert again.outcome == "committed"
    assert again.attempt == (await first).attempt, "a retry ran a second time"
    assert len(stage.world.prompts) == 1


@probe
async def a_late_retry_of_a_committed_turn_gets_its_answer(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    ask = stage.world.ask
    first = await ask(stage.node, session, "hello", "tok1", on_leave=OnLeave.ORPHAN)
    again = await ask(stage.other, session, "hello", "tok1", on_leave=OnLeave.ORPHAN, is_retry=True)
    assert (again.outcome, again.turn) == ("committed", first.turn)
    await asyncio.sleep(120)
    meant = await ask(stage.other, session, "hello", "tok2", on_leave=OnLeave.ORPHAN, is_retry=True)
    assert meant.turn != first.turn


@probe
async def a_keyed_request_runs_once(stage: Stage) -> None:
    """I20: the same key again gets the same outcome, and asks no model."""
    session = await stage.world.create(stage.node)
    first = await stage.world.ask(stage.node, session, "hello", "tok1", key="k")
    again = await stage.world.ask(stage.other, session, "hello", "tok1", key="k")
    assert first.turn is not None
    assert first.turn == again.turn, "a key was run twice"
    assert len(stage.world.prompts) == 1
    other = await stage.world.ask(stage.node, session, "another body", "tok2", key="k")
    assert other.code == IdempotencyMismatch.code, f"another body under the same key: {other.outcome}"


@probe
async def a_lost_answer_of_a_commit_is_read_back(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    for number, mode in enumerate((Mode.LOST, Mode.SILENT), 1):
        stage.faults.point, stage.faults.mode = "store.commit_if_head", mode
        stage.faults.hit = stage.faults.hits["store.commit_if_head"] + 1
        received = await stage.world.ask(stage.node, session, "hello", f"tok{number}")
        assert received.outcome == "committed", f"{mode}: {received.outcome}"


@probe
async def an_override_of_a_failed_turn_leaves_no_trace(stage: Stage) -> None:
    """M3.2–M3.4."""
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "\n!fail after", "tok1", model=OTHER_MODEL)
    assert (await stage.node.sessions.get(DEFAULT_TENANT, session)).model is None
    await stage.world.ask(stage.node, session, "fine", "tok2", model=OTHER_MODEL)
    await stage.world.ask(stage.node, session, "\n!fail during", "tok3")
    await stage.world.ask(stage.node, session, "fine", "tok4")


@probe
async def a_title_is_one_field(stage: Stage) -> None:
    """M3.7: ours is written after the commit, alone, and never over a person's."""
    session = await stage.world.create(stage.node)
    sessions = stage.node.sessions
    await stage.world.do("star", session, sessions.star(DEFAULT_TENANT, session, True))
    slow = asyncio.create_task(
        stage.world.ask(stage.node, session, "\n!slow 0.2\n!say one two three", "tok1", model=OTHER_MODEL)
    )
    await asyncio.sleep(0.3)
    await stage.world.do("rename", session, sessions.rename(DEFAULT_TENANT, session, "mine"), "mine")
    await slow
    await asyncio.sleep(1)
    other = await stage.world.create(stage.node)
    await stage.world.do("star", other, sessions.star(DEFAULT_TENANT, other, True))
    await stage.world.ask(stage.node, other, "a long story", "tok2", model=OTHER_MODEL)
    await asyncio.sleep(1)
    assert (await sessions.get(DEFAULT_TENANT, other)).title == "tok2 a long story"


@probe
async def another_tenant_finds_nothing(stage: Stage) -> None:
    """I35: a foreign id answers like an unknown one."""
    session = await stage.world.create(stage.node)
    for tenant in (TenantId("other"), DEFAULT_TENANT):
        try:
            await stage.node.sessions.get(tenant, session)
        except SessionNotFound:
            assert tenant != DEFAULT_TENANT
        else:
            assert tenant == DEFAULT_TENANT, "another tenant sees the session"


@probe
async def an_adopted_step_is_not_run_again(stage: Stage) -> None:
    """Recovery: neither the model nor a finished tool is asked twice; a prompt stays valid."""
    session = await stage.world.create(stage.node)
    text = '\n!tool ledger-repeat {"text": "a"}\n!tool ledger-fail {"text": "b"}\n!say done'
    stage.faults.point, stage.faults.mode, stage.faults.hit = "tool.end", Mode.STALL, 2
    stage.faults.stall_seconds = 10_000
    dying = asyncio.create_task(stage.world.ask(stage.node, session, text, "tok1", key="k"))
    await asyncio.sleep(1)
    stage.faults.dead = True
    stage.alive(stage.other)
    await asyncio.sleep(LIMITS.lease_seconds + 3 * LIMITS.sweep_seconds)
    dying.cancel()
    received = await stage.world.ask(stage.other, session, text, "tok1", key="k")
    assert received.outcome == "committed", "a promised turn was not tried again"
    effects = [line["text"] for line in stage.world.ledger]
    assert effects == ["a", "b"], f"outside effects: {effects}"
    assert len(stage.world.prompts) == 3, f"{len(stage.world.prompts)} model calls for three answers"


@probe
async def a_durable_turn_is_tried_again_by_itself(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    dying = asyncio.create_task(
        stage.world.ask(stage.node, session, "\n!slow 1\n!say one two", "tok1", durable=True)
    )
    plain = await stage.world.create(stage.node)
    other = asyncio.create_task(stage.world.ask(stage.node, plain, "\n!slow 1\n!say one two", "tok2"))
    await asyncio.sleep(0.5)
    stage.faults.dead = True
    stage.alive(stage.other)
    await asyncio.sleep(LIMITS.lease_seconds + 3 * LIMITS.sweep_seconds)
    dying.cancel()
    other.cancel()
    for received in stage.world.log:
        received.outcome = received.outcome or "unknown"
    assert (await stage.other.sessions.get(DEFAULT_TENANT, session)).turns == 1, "a promised turn is lost"
    assert (await stage.other.sessions.get(DEFAULT_TENANT, plain)).turns == 0, "a plain request went on"


@probe
async def a_cancelled_turn_never_commits(stage: Stage) -> None:
    """I14, and the session is free at once."""
    session = await stage.world.create(stage.node)
    running = asyncio.create_task(stage.world.ask(stage.node, session, "\n!slow 1\n!say one two", "tok1"))
    await asyncio.sleep(0.5)
    received = await stage.world.cancel(stage.node, session)
    assert received.outcome == "done"
    free = await stage.world.ask(stage.node, session, "and now", "tok2")
    assert free.outcome == "committed", f"after a cancel: {free.code}"
    await running


@probe
async def a_deleted_session_never_comes_back(stage: Stage) -> None:
    """I15: also while a turn of it runs on another node."""
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "hello", "tok0")
    running = asyncio.create_task(stage.world.ask(stage.node, session, "\n!slow 1\n!say one two", "tok1"))
    await asyncio.sleep(0.5)
    await stage.world.do("delete", session, stage.other.sessions.delete(DEFAULT_TENANT, session))
    await running
    assert await stage.store.get_session(DEFAULT_TENANT, session) is None
    for table in ("turns", "attempts", "requests", "events", "steps"):
        rows = stage.store.db._reader.execute(f"SELECT count(*) FROM {table}").fetchall()
        assert rows == [(0,)], f"{table} still has rows of a deleted session"


@probe
async def forks_keep_what_they_need(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    for number in range(4):
        await stage.world.ask(stage.node, session, "\n!remember", f"tok{number}")
    turns = (await stage.node.sessions.read(DEFAULT_TENANT, session)).turns
    fork = await stage.node.sessions.fork(DEFAULT_TENANT, session, turns[1].id)
    assert fork.head is not None
    assert fork.head.turn == turns[1].id, "a fork does not start at its turn"
    await stage.world.do("delete", session, stage.node.sessions.delete(DEFAULT_TENANT, session))
    received = await stage.world.ask(stage.node, fork.id, "\n!remember", "tok9")
    assert received.outcome == "committed", f"a fork does not answer: {received.code}"
    seen = stage.world.prompts[-1]["prompt"]
    assert [m["content"][:4] for m in seen if m["role"] == "user"] == ["tok0", "tok1", "tok9"]


@probe
async def a_history_with_open_calls_stays_answerable(stage: Stage) -> None:
    """I4, I8: what was appended without a result is shown with one."""
    session = await stage.world.create(stage.node)
    call = ToolCall("call-0-0", "echo", "{}")
    messages = (user("appended"), assistant("", call), assistant(""))
    received = await stage.world.ask(
        stage.node, session, "appended", "", kind=TurnKind.APPEND, messages=messages
    )
    assert received.outcome == "committed"
    received = await stage.world.ask(stage.node, session, "go on", "tok1")
    assert received.outcome == "committed"
    seen = stage.world.prompts[-1]["prompt"]
    assert [m["role"] for m in seen] == ["user", "assistant", "tool", "user"], seen


@probe
async def a_reset_hides_what_was_before_it(stage: Stage) -> None:
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "hello", "tok1")
    await stage.world.ask(stage.node, session, "", "", kind=TurnKind.RESET, messages=())
    await stage.world.ask(stage.node, session, "\n!remember", "tok2")
    seen = stage.world.prompts[-1]["prompt"]
    assert len(seen) == 1, "a reset hides nothing"


@probe
async def calm_weather_fails_nobody(stage: Stage) -> None:
    """Without a fault, what was admitted is committed, however long it takes."""
    stage.alive(stage.node)
    stage.alive(stage.other)
    session = await stage.world.create(stage.node)
    text = "\n!slow 9\n!say a long way to go"
    received = await stage.world.ask(stage.node, session, text, "tok1", more=("first", "second"))
    assert received.outcome == "committed", f"{received.outcome} {received.code}"


@probe
async def a_history_that_cannot_be_read_reaches_no_model(stage: Stage) -> None:
    """I18: never an empty history instead."""
    session = await stage.world.create(stage.node)
    await stage.world.ask(stage.node, session, "hello", "tok1")

    async def unreadable(point: str) -> Mode | None:
        return Mode.RAISE if point == "store.read_turns" else None

    stage.faults.jitter = unreadable
    stage.node.deps.histories._kept.clear()
    received = await stage.world.ask(stage.node, session, "and now", "tok2")
    assert (received.outcome, received.code) == ("failed", "store_unavailable")
    assert len(stage.world.prompts) == 1


@probe
async def a_request_refused_before_begin_is_not_stored(stage: Stage) -> None:
    """I13, I20: a key that was refused may be used again."""
    session = await stage.world.create(stage.node)
    running = asyncio.create_task(stage.world.ask(stage.node, session, "\n!slow 1\n!say one two", "tok1"))
    await asyncio.sleep(0.5)
    refused = await stage.world.ask(stage.other, session, "me too", "tok2", key="k")
    assert refused.code == "session_busy"
    await running
    assert (await stage.world.ask(stage.other, session, "me too", "tok2", key="k")).outcome == "committed"


@probe
async def events_rise_for_ever(stage: Stage) -> None:
    """I22: also after an interruption; a number is never given twice."""
    session = await stage.world.create(stage.node)
    received = [await stage.world.ask(stage.node, session, "hello", "tok1", watch=True)]
    begin, begun = await stage.begin(session, 1)
    assert isinstance(begun, Begun)
    seen = await stage.store.append_events_if_held(begun.hold, [Event(begin.attempt, TextStreamed("x"))])
    await asyncio.sleep(LIMITS.lease_seconds + 1)
    await stage.other.recovery.sweep()
    received.append(await stage.world.ask(stage.node, session, "again", "tok2", watch=True))
    numbers = [seq for one in received for seq, _ in one.events]
    assert numbers == sorted(set(numbers))
    assert seen is not None
    assert min(seq for seq, _ in received[1].events) > seen


@probe
async def a_run_whose_lease_cannot_be_renewed_stops_before_it_ends(stage: Stage) -> None:
    """I11: whether the heartbeat fails or is never answered."""
    loop = asyncio.get_running_loop()
    stage.alive(stage.node)
    for number, seconds in enumerate((0.0, 1000.0), 1):

        async def trouble(point: str, seconds: float = seconds) -> Mode | None:
            if point != "store.renew_leases":
                return None
            await asyncio.sleep(seconds)
            return Mode.RAISE

        stage.faults.jitter = trouble
        session = await stage.world.create(stage.node)
        began = loop.time()
        received = await stage.world.ask(
            stage.node, session, "\n!slow 20\n!say one two three", f"tok{number}"
        )
        took = loop.time() - began
        assert received.code == "store_unavailable", f"{received.outcome} {received.code}"
        assert took < LIMITS.lease_seconds, (
            f"it went on for {took} s with a lease of {LIMITS.lease_seconds} s"
        )


@probe
async def a_watcher_elsewhere_waits_through_a_question(stage: Stage) -> None:
    """An attempt that waited and was answered is waited for from there, not from its start."""
    session = await stage.world.create(stage.node)
    text = '\n!tool ledger-ask {"text": "a"}\n!slow 1\n!say one two'
    stage.faults.point, stage.faults.mode, stage.faults.hit = "tool.end", Mode.STALL, 1
    stage.faults.stall_seconds = 10_000
    dying = asyncio.create_task(stage.world.ask(stage.node, session, text, "tok1", durable=True))
    await asyncio.sleep(1)
    stage.faults.dead = True
    stage.alive(stage.other)
    await asyncio.sleep(LIMITS.lease_seconds + 3 * LIMITS.sweep_seconds)
    dying.cancel()
    waiting = (await stage.store.list_attempts(DEFAULT_TENANT, session))[-1]
    assert waiting.status is AttemptStatus.WAITING, f"it is {waiting.status}"
    third = stage.make_node("c", Faults())
    await stage.other.turns.answer(DEFAULT_TENANT, session, waiting.id, Answer(AnswerAction.REPEAT))
    outcome = await third.turns.handle(DEFAULT_TENANT, session, waiting.turn, waiting.id).outcome()
    assert outcome.status is AttemptStatus.COMMITTED, f"it is {outcome.status}"
    for received in stage.world.log:
        received.outcome = received.outcome or "unknown"
