"""Entries of a session's queue: a steer for the running turn, a follow-up for after it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import Message


class QueueKind(StrEnum):
    STEER = "steer"  # for the running attempt's next model call
    FOLLOWUP = "followup"  # a turn of its own, when the session is free


@dataclass(frozen=True, slots=True)
class NewQueued:
    tenant: TenantId
    session: SessionId
    turn: TurnId  # minted now: however often it is tried, the chain takes it at most once
    kind: QueueKind
    messages: tuple[Message, ...]
    model: str | None = None
    agent_key: str | None = None
    key: str | None = None
    fingerprint: str = ""
    caller: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Queued:
    """Its number orders a session's queue. With `attempt` it belongs to that one, until it ends."""

    number: int
    tenant: TenantId
    session: SessionId
    turn: TurnId
    kind: QueueKind
    messages: tuple[Message, ...]
    model: str | None
    agent_key: str | None
    key: str | None
    fingerprint: str
    caller: str
    user: str
    attempt: AttemptId | None
    is_journaled: bool  # a steer that is in the attempt's journal
    failures: int
    parked: str | None  # why it is not tried any more
    created_at: float
    settled_at: float | None  # when it became part of a turn, or was dropped; kept for its key
    is_damaged: bool = False  # it is not as it was stored, so its messages are not known


@dataclass(frozen=True, slots=True)
class Parking:
    """Parks a follow-up whose attempt has ended, if its attempts failed or its processes died this often."""

    reason: str
    failures: int | None = None  # with the one that has just ended; None: failures do not park it
    deaths: int | None = None
    others: str | None = None  # why all other follow-ups of the session are parked, too; None: they are not


class NotQueued(StrEnum):
    GONE = "gone"  # there is no such session
    FULL = "full"
    NOTHING_RUNS = "nothing_runs"  # there is nothing to steer
    KEY_USED = "key_used"  # by a request that is not in the queue
