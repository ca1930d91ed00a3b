"""Builds what a test needs by way of the store's own calls, in one line each."""

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio

from lastgood.core.commit import plan_commit
from lastgood.model.attempts import (
    Ask,
    Begin,
    BeginConflict,
    Begun,
    Commit,
    Committed,
    Edit,
    Hold,
    Step,
    StepKind,
)
from lastgood.model.events import Event, TextStreamed
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import Message, assistant, tool_result, user
from lastgood.model.queue import NewQueued, Queued, QueueKind
from lastgood.model.sessions import NewSession, Session, Turn, Usage
from lastgood.ports import Store

TENANT = TenantId("tenant")
STRANGER = TenantId("stranger")
NOW = 1_700_000_000.0


def new_id() -> str:
    return uuid.uuid4().hex


def new_session(tenant: TenantId = TENANT, **fields: Any) -> NewSession:
    return NewSession(SessionId(new_id()), tenant, fields.pop("agent_key", "agent"), **fields)


async def session(store: Store, tenant: TenantId = TENANT, **fields: Any) -> Session:
    made = await store.create_session(new_session(tenant, **fields))
    assert made is not None
    return made


async def again(store: Store, known: Session) -> Session:
    """The session as it is now."""
    found = await store.get_session(known.tenant, known.id)
    assert found is not None
    return found


def ask(to: Session, *messages: Message, **fields: Any) -> Ask:
    return Ask(to.tenant, to.id, messages or (user("hello"),), **fields)


def begin(asked: Ask, **fields: Any) -> Begin:
    plain = Begin(
        ask=asked,
        turn=TurnId(new_id()),
        attempt=AttemptId(new_id()),
        holder="node",
        lease_seconds=60.0,
        agent_key="agent",
        agent_digest="digest",
        agent_model="default/model",
        decision={"agent": "exact"},
    )
    return replace(plain, **fields)


@dataclass(frozen=True)
class Try:
    """An attempt that holds its session."""

    begin: Begin
    begun: Begun

    @property
    def hold(self) -> Hold:
        return self.begun.hold

    def plan(self, *steps: Step) -> Commit:
        return plan_commit(self.begin, self.begun, steps or (answer("fine"),), NOW)


async def start(store: Store, asked: Ask, events: Sequence[Event] = (), **fields: Any) -> Try:
    wanted = begin(asked, **fields)
    begun = await store.begin_if_free(wanted, events)
    assert isinstance(begun, Begun), begun
    return Try(wanted, begun)


async def refused(store: Store, asked: Ask, events: Sequence[Event] = (), **fields: Any) -> BeginConflict:
    standing = await store.begin_if_free(begin(asked, **fields), events)
    assert isinstance(standing, BeginConflict), standing
    return standing


async def commit(store: Store, to: Session, *messages: Message, text: str = "fine", **fields: Any) -> Turn:
    """A whole good turn."""
    tried = await start(store, ask(to, *messages, **fields))
    planned = tried.plan(answer(text))
    assert (await store.commit_if_head(tried.hold, planned, [])).outcome is Committed.YES
    return planned.turn


async def start_edit(store: Store, to: Session, after: Turn | None, *messages: Message, **fields: Any) -> Try:
    """An attempt that goes on from an earlier turn of the session."""
    head = (await again(store, to)).head
    assert head is not None, "there is nothing to edit"
    asked = ask(to, *messages, edit=Edit(after.id if after else None, head.turn), **fields)
    return await start(store, asked, base=after.head if after else None)


async def edit(store: Store, to: Session, after: Turn | None, *messages: Message, **fields: Any) -> Turn:
    """A whole good edit."""
    tried = await start_edit(store, to, after, *messages, **fields)
    planned = tried.plan()
    assert (await store.commit_if_head(tried.hold, planned, [])).outcome is Committed.YES
    return planned.turn


async def talk(store: Store, to: Session, turns: int) -> list[Turn]:
    return [await commit(store, to, user(f"question {number}")) for number in range(turns)]


async def fork(store: Store, source: Session, at: Turn | None) -> Session:
    made = await store.fork_session(source, at, new_session(source.tenant, rules=source.rules))
    assert made is not None
    return made


def answer(text: str) -> Step:
    return Step(StepKind.MODEL, assistant(text), Usage(10, 5, 0.25))


def result(call: str, text: str) -> Step:
    return Step(StepKind.TOOL, tool_result(call, text))


def said(to: Session, kind: QueueKind = QueueKind.FOLLOWUP, **fields: Any) -> NewQueued:
    messages = fields.pop("messages", (user("later"),))
    return NewQueued(to.tenant, to.id, TurnId(new_id()), kind, messages, **fields)


async def enqueue(store: Store, new: NewQueued) -> Queued:
    queued = await store.enqueue(new, most=100)
    assert isinstance(queued, Queued), queued
    assert queued.turn == new.turn
    return queued


async def followup(store: Store, to: Session, **fields: Any) -> Queued:
    return await enqueue(store, said(to, **fields))


async def steer(store: Store, to: Session, **fields: Any) -> Queued:
    return await enqueue(store, said(to, QueueKind.STEER, **fields))


async def take(store: Store, to: Session, row: Queued, **fields: Any) -> Try:
    """The first try of a follow-up, or with `again` a later one."""
    return await start(store, ask(to, *row.messages), turn=row.turn, takes=row.number, **fields)


async def journal_steers(store: Store, hold: Hold, *steers: Queued) -> None:
    """They are in the attempt's journal from now on."""
    steps = [Step(StepKind.STEER, steer.messages[0], queued=steer.number) for steer in steers]
    assert await store.journal_if_held(hold, steps, [])


async def queue(store: Store, of: Session) -> list[Queued]:
    return list(await store.read_queue(of.tenant, of.id))


async def unsettled(store: Store, row: Queued) -> Queued:
    """The row as it is now."""
    (found,) = [each for each in await store.read_queue(row.tenant, row.session) if each.number == row.number]
    return found


def events(*texts: str, attempt: AttemptId | None = None) -> list[Event]:
    return [Event(attempt, TextStreamed(text)) for text in texts]


async def eventually(check: Callable[[], Awaitable[Any]], seconds: float = 10.0) -> Any:
    """What `check` returns once that is true; database time cannot be moved by hand everywhere."""
    deadline = time.monotonic() + seconds
    while not (found := await check()):
        assert time.monotonic() < deadline, "it did not come true"
        await anyio.sleep(0.002)
    return found
