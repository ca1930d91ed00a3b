"""A turn is requested once and attempted as often as needed: the ask, its attempts and their steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lastgood.model.call_options import CallOptions
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.messages import Message, ToolCall, handover_note
from lastgood.model.sessions import Head, Session, Turn, TurnKind, Usage

#: A page without an end.
NO_LIMIT = 2**62


class AttemptStatus(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    COMMITTED = "committed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    SUPERSEDED = "superseded"


class OnLeave(StrEnum):
    """What to do with a run whose client has disconnected; settled when the turn begins."""

    CONTINUE = "continue"
    ORPHAN = "orphan"  # kept for a while, never commits while orphaned
    CANCEL = "cancel"


class StepKind(StrEnum):
    MODEL = "model"
    TOOL = "tool"
    STEER = "steer"  # a message that was sent to the turn while it ran, or the prompt of a skill
    HOOK = "hook"  # what the hooks of an event decided or added


class ToolOutcome(StrEnum):
    DONE = "done"
    FAILED = "failed"  # it reported an error; it may have taken effect
    DENIED = "denied"  # by a rule or a person; it did not run
    UNKNOWN = "unknown"  # it may or may not have run


@dataclass(frozen=True, slots=True)
class CallRuling:
    """That nobody was asked about a tool call: rules, a hook or a missing approval denied it, or a hook
    approved it in place of a person. `call` is what runs, or would have run."""

    call: ToolCall
    place: str
    agent: str
    reason: str
    is_allowed: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A finished piece of work: a whole model response, a whole tool result, a steer, or what hooks said.

    `within` is empty for the agent of the turn. The steps of a sub-agent carry the key of the
    call it works for: they are kept with the attempt, and only its result becomes part of the turn.
    """

    kind: StepKind
    message: Message
    usage: Usage = Usage()
    within: str = ""
    full: str | None = None  # the whole result of a tool, where the message holds only a part of it
    left_out: int = 0  # how many of the oldest messages this response was made without
    cut_short: bool = False  # the model ran into its limit of output tokens
    model: str = ""  # the model that gave this response
    context_size: int = 0  # of its context window, in tokens; 0: not known
    queued: int = 0  # the number of the steer in the queue
    #: Calls to tools that are not repeatable: of a response, those it asks for; of a result, what it ran.
    effects: tuple[str, ...] = ()
    outcome: ToolOutcome | None = None  # of a tool's result
    seconds: float = 0.0  # how long the model or the tool took
    ended_at: float = 0.0  # when it finished, for people; 0: not known
    agent: str = ""  # the agent whose response it is, where budgets need to know
    hook: str = ""  # the event whose hooks ran
    ruling: str = ""  # what they decided: about a call, or that the turn ends (`block`)
    reason: str = ""  # why
    hands_to: str = ""  # the agent that continues after this final response (`force_handoff`)
    #: Not stored with the step: the audit record of it is written in the same transaction.
    on_record: CallRuling | None = None

    @property
    def is_said(self) -> bool:
        """Whether its message is part of the conversation. Of hooks, only what begins a session is: the
        rest is for one turn or one response, and is shown to the model apart."""
        return self.kind is not StepKind.HOOK or (self.hook == "session_start" and not self.message.is_blank)


def said(steps: Iterable[Step]) -> tuple[Message, ...]:
    """What these steps add to the conversation."""
    return tuple(message for step in steps for message in _said_in(step))


def _said_in(step: Step) -> Iterator[Message]:
    if step.is_said:
        yield step.message
    if step.hands_to:
        yield handover_note(step.hands_to)


@dataclass(frozen=True, slots=True)
class Edit:
    """A turn that does not follow the head: it continues from an earlier one, and its commit replaces the
    head.

    Until that commit nothing has moved. `after` is the base, None: the beginning of the session.
    `replaces` is the head that must still be there, both when the attempt begins and when it commits.
    """

    after: TurnId | None
    replaces: TurnId


@dataclass(frozen=True, slots=True)
class After:
    """Where a caller wants its turn: after this one. None: at the beginning of the session."""

    turn: TurnId | None


@dataclass(frozen=True, slots=True)
class Expected:
    """The head that a session must have for an attempt to begin. None: it has no turn yet."""

    head: TurnId | None


#: No session has this head: the condition of an ask whose own conditions exclude each other.
NO_SUCH_HEAD = Expected(TurnId(""))


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a turn. One ask is one turn, however often it is tried."""

    tenant: TenantId
    session: SessionId
    messages: tuple[Message, ...]
    model: str | None = None  # an override: holds for this turn and every later one
    agent_key: str | None = None  # None: the session's own
    options: CallOptions = CallOptions()
    kind: TurnKind = TurnKind.RUN
    key: str | None = None  # idempotency key
    fingerprint: str = ""  # of the whole request; two asks with one key must agree on it
    caller: str = ""
    user: str = ""  # the end user of the caller
    is_retry: bool = False  # the client marked this as a retry
    has_history: bool = False  # the request carries what the assistant said before
    expected_head: TurnId | None = None
    edit: Edit | None = None  # None: the turn follows the head
    is_first: bool = False  # its messages begin the session: with a turn in it, less of them would be new
    on_leave: OnLeave = OnLeave.CONTINUE
    durable: bool = False  # recovery tries it again if its process dies
    owner: str | None = None  # the user of the token; None: the session's own
    over_chat: bool = False  # by the OpenAI-compatible API
    request_id: str = ""  # of the HTTP request that asks

    @property
    def condition(self) -> Expected | None:
        """The one head this may begin at; None: any. Heads are compared, never counts: after an edit a
        session may have as many turns as before, and other ones."""
        if self.is_first:
            return NO_SUCH_HEAD if self.expected_head or self.edit else Expected(None)
        if self.edit is not None:
            return Expected(self.edit.replaces)
        return None if self.expected_head is None else Expected(self.expected_head)


@dataclass(frozen=True, slots=True)
class Hold:
    """An attempt's claim on its session. Every write of the attempt is conditional on it."""

    tenant: TenantId
    session: SessionId
    attempt: AttemptId
    fence: int


@dataclass(frozen=True, slots=True)
class Attempt:
    id: AttemptId
    tenant: TenantId
    session: SessionId
    turn: TurnId
    number: int
    status: AttemptStatus
    base: TurnId | None  # the turn that it follows
    head: TurnId | None  # the session's head when it began; another one than the base: an edit
    fence: int
    agent_key: str
    agent_digest: str
    model: str
    decision: dict[str, Any]
    orphaned: bool
    cancel_asked: bool
    question: dict[str, Any] | None
    deadline: float | None
    error_code: str | None
    error_message: str | None
    continues: AttemptId | None
    started_at: float
    ended_at: float | None
    task: TaskId | None = None  # a worker's claim holds it; only its task decides when it ends
    request_id: str = ""  # of the HTTP request that began it
    unanswered: dict[str, Any] | None = None  # the question that it waited with when it ended
    cli_version: str = ""  # of the agent CLI that ran it, as its worker reported it
    ran_tools: bool = False  # on a runtime: its worker reported a tool call

    @property
    def hold(self) -> Hold:
        return Hold(self.tenant, self.session, self.id, self.fence)


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """The stored ask. Its messages are gone once the turn that holds them is committed."""

    turn: TurnId
    tenant: TenantId
    session: SessionId
    kind: TurnKind
    key: str | None
    fingerprint: str
    caller: str
    user: str
    model: str | None
    agent_key: str | None
    edit: Edit | None
    condition: Expected | None  # the one head that it may begin at, however often it is tried
    options: CallOptions
    on_leave: OnLeave
    durable: bool
    messages: tuple[Message, ...] | None


@dataclass(frozen=True, slots=True)
class Begin:
    """Everything that begin writes. `again` tries a known turn once more instead of creating a new one."""

    ask: Ask
    turn: TurnId
    attempt: AttemptId
    holder: str
    lease_seconds: float
    agent_key: str
    agent_digest: str
    agent_model: str
    decision: dict[str, Any]
    again: bool = False
    continues: AttemptId | None = None  # whose finished steps are adopted
    follows: int | None = None  # the newest try when that was decided; a newer one has finished more steps
    base: Head | None = None  # of an edit; other asks continue from the head that begin finds
    expected: Expected | None = None  # if set, it decides; else the ask's own conditions do
    takes: int | None = None  # the follow-up that this is the turn of; it must still be waiting
    reclaims: tuple[int, ...] = ()  # steers in the adopted steps: they are this attempt's from now on

    @property
    def condition(self) -> Expected | None:
        """The one head this may begin at; None: any."""
        return self.expected or self.ask.condition

    def base_at(self, head: Head | None) -> Head | None:
        """The turn that the attempt follows, in a session with this head."""
        return head if self.ask.edit is None else self.base


@dataclass(frozen=True, slots=True)
class Begun:
    """The session as begin found it, now held by us. Its head is what the commit expects to find; `base`
    is what the turn is linked to. They differ in an edit."""

    hold: Hold
    turn: TurnId
    number: int
    model: str
    base: Head | None
    session: Session


@dataclass(frozen=True, slots=True)
class BeginConflict:
    """What prevents, or would prevent, a begin, read at one moment."""

    session: Session | None
    holder: Attempt | None = None
    lease_expired: bool = False
    #: The request stored under the same key; for an SDK's retry, the newest that was sent with the same body.
    prior: TurnRequest | None = None
    prior_attempt: Attempt | None = None  # the newest try of it
    prior_age_seconds: float = 0.0  # how long ago that try ended; 0: it runs


@dataclass(frozen=True, slots=True)
class Commit:
    """All that a commit writes, in one transaction. It moves the head from `head`, which must still be there,
    to the turn. If that does not follow `head`, `head` becomes the head of a branch."""

    turn: Turn
    head: TurnId | None
    override: str | None
    binds: str | None = None  # a session without an agent has this one from now on

    @property
    def replaces(self) -> TurnId | None:
        """The head that is a branch from now on; None: the turn was appended to it."""
        return None if self.turn.parent == self.head else self.head


class Committed(StrEnum):
    """What became of a commit. Only YES may be reported as success."""

    YES = "yes"
    ORPHANED = "orphaned"  # its client is disconnected; nothing was written
    LOST = "lost"  # the hold or the head is gone; nothing was written


@dataclass(frozen=True, slots=True)
class CommitResult:
    outcome: Committed
    last_event: int | None = None  # the number of the last event it stored; None: not known


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An attempt whose holder died, with the ask it was trying."""

    attempt: Attempt
    request: TurnRequest
    steps: tuple[Step, ...]
    head: TurnId | None
    deaths: int = 0  # how many of the turn's attempts ended because their process died


@dataclass(frozen=True, slots=True)
class UnreadableAttempt:
    """An attempt whose holder died, and whose ask or finished steps are not as they were stored."""

    attempt: Attempt
    damage: str
