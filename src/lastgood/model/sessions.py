"""Sessions and the turns they are made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import Message
from lastgood.model.rules import RuleLayer


class SessionStatus(StrEnum):
    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"
    QUEUED = "queued"  # nothing runs; a task of it waits for its runtime


class TitleBy(StrEnum):
    """Who gave a session its title. A person's is never replaced by ours."""

    NOBODY = "nobody"
    US = "us"
    PERSON = "person"


class ScopeKind(StrEnum):
    ISSUE = "issue"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class TaskScope:
    """What tasks are about. A session is one tenant, scope and agent."""

    kind: ScopeKind
    id: str


#: Of one response, and dollars of it. Millions of these fit into the 64 bits of a sum.
MOST_TOKENS = 2**40
MOST_COST = 1e9


@dataclass(frozen=True, slots=True)
class Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost + other.cost,
        )


@dataclass(frozen=True, slots=True)
class Head:
    """The last committed turn: what the next one is appended to, and compared with."""

    turn: TurnId
    seq: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class Session:
    """A chain of committed turns and a head. Metadata only: reading it never reads a message."""

    id: SessionId
    tenant: TenantId
    number: int  # rises with creation; orders lists, because no clock may
    agent_key: str
    title: str
    title_by: TitleBy
    model: str | None
    working_dir: str | None
    rules: tuple[RuleLayer, ...]  # of its own, beside its agent's; the strongest setter's first
    starred: bool
    metadata: dict[str, Any]
    conversation: str | None
    forked_from: tuple[SessionId, TurnId | None] | None
    head: Head | None
    status: SessionStatus
    attempt: AttemptId | None
    fence: int
    last_event_seq: int
    events_dropped: int  # events up to this number have been tidied away
    usage: Usage
    created_at: float
    updated_at: float
    created_by: str  # the id of the token that made it
    stored_bytes: int  # of its committed turns, snapshots and activity, and of what it was forked from
    owner: str = ""  # the user who made it
    scope: TaskScope | None = None
    runtime_id: str | None = None  # of its newest task; who may use that one may read the session
    runtime_pinned: bool = False  # bound to this runtime by itself, whatever its agent is bound to

    @property
    def turns(self) -> int:
        return self.head.seq if self.head else 0


@dataclass(frozen=True, slots=True)
class NewSession:
    id: SessionId
    tenant: TenantId
    agent_key: str
    title: str = ""
    title_by: TitleBy = TitleBy.NOBODY
    model: str | None = None
    working_dir: str | None = None
    rules: tuple[RuleLayer, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    conversation: str | None = None
    created_by: str = ""
    stored_bytes: int = 0
    owner: str = ""
    scope: TaskScope | None = None
    runtime_id: str | None = None
    runtime_pinned: bool = False


class TurnKind(StrEnum):
    RUN = "run"
    APPEND = "append"  # messages without a model call
    RESET = "reset"  # prompts start after it


@dataclass(frozen=True, slots=True)
class EncodedTurn:
    """Immutable. `body` is the encoded messages, input first; the hash covers them, every other field but
    `session`, and everything before the turn."""

    id: TurnId
    session: SessionId  # where it was committed; a fork reads it from there
    seq: int
    parent: TurnId | None
    attempt: AttemptId
    kind: TurnKind
    hash: bytes
    agent_key: str
    agent_digest: str
    model: str
    decision: dict[str, Any]
    usage: Usage
    created_at: float
    user: str  # whom the caller spoke for, if it said
    inputs: int  # how many of its messages are input; the others are the agent's
    body: bytes
    damage: str = ""  # why its row cannot be read; then only its place can be relied on

    @property
    def head(self) -> Head:
        return Head(self.id, self.seq, self.hash)


@dataclass(frozen=True, slots=True)
class Turn(EncodedTurn):
    """With its messages, as `body` has them."""

    messages: tuple[Message, ...] = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Branch:
    """Turns of a session that an edit has replaced. They can be read, and forked; nothing follows them."""

    number: int  # rises with each edit; orders lists, because no clock may
    head: TurnId
    seq: int  # of the head: how many turns the branch has
    after: TurnId | None  # the last turn that it shares with what replaced it
    replaced_by: TurnId
    created_at: float


@dataclass(frozen=True, slots=True)
class LocatedSession:
    """A session as it was read for its next turn, together with the binding of the agent of that turn.

    `unbound_agent`: the key of that agent if it is bound to no runtime. None: it is bound to one.
    """

    session: Session
    unbound_agent: str | None


@dataclass(frozen=True, slots=True)
class SessionPage:
    sessions: tuple[Session, ...]
    next_cursor: int | None
