"""Plain values for decision tables: every field has a default, and a test names only what it is about."""

from dataclasses import replace
from typing import Any

from lastgood.core.commit import link
from lastgood.model.attempts import (
    Ask,
    Attempt,
    AttemptStatus,
    BeginConflict,
    OnLeave,
    Step,
    StepKind,
    TurnRequest,
)
from lastgood.model.call_options import CallOptions
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import Message, encode, user
from lastgood.model.sessions import Head, Session, SessionStatus, TitleBy, Turn, TurnKind, Usage

TENANT = TenantId("tenant")
SESSION = SessionId("session")
TURN = TurnId("turn")
ATTEMPT = AttemptId("attempt")
HEAD = Head(TurnId("head"), 7, b"hash")


def session(**changes: Any) -> Session:
    plain = Session(
        id=SESSION,
        tenant=TENANT,
        number=1,
        agent_key="agent",
        title="",
        title_by=TitleBy.NOBODY,
        model=None,
        working_dir=None,
        rules=(),
        starred=False,
        metadata={},
        conversation=None,
        forked_from=None,
        head=HEAD,
        status=SessionStatus.IDLE,
        attempt=None,
        fence=1,
        last_event_seq=0,
        events_dropped=0,
        usage=Usage(),
        created_at=0.0,
        updated_at=0.0,
        created_by="tok_a",
        stored_bytes=100,
    )
    return replace(plain, **changes)


def attempt(status: AttemptStatus = AttemptStatus.RUNNING, **changes: Any) -> Attempt:
    plain = Attempt(
        id=ATTEMPT,
        tenant=TENANT,
        session=SESSION,
        turn=TURN,
        number=1,
        status=status,
        base=HEAD.turn,
        head=HEAD.turn,
        fence=1,
        agent_key="agent",
        agent_digest="digest",
        model="model",
        decision={},
        orphaned=False,
        cancel_asked=False,
        question=None,
        deadline=None,
        error_code=None,
        error_message=None,
        continues=None,
        started_at=0.0,
        ended_at=None,
    )
    return replace(plain, **changes)


def request(**changes: Any) -> TurnRequest:
    plain = TurnRequest(
        turn=TURN,
        tenant=TENANT,
        session=SESSION,
        kind=TurnKind.RUN,
        key=None,
        fingerprint="print",
        caller="caller",
        user="",
        model=None,
        agent_key=None,
        edit=None,
        condition=None,
        options=CallOptions(),
        on_leave=OnLeave.CONTINUE,
        durable=False,
        messages=(user("hello"),),
    )
    return replace(plain, **changes)


def ask(**changes: Any) -> Ask:
    plain = Ask(TENANT, SESSION, (user("hello"),), fingerprint="print", caller="caller")
    return replace(plain, **changes)


def standing(**changes: Any) -> BeginConflict:
    return replace(BeginConflict(session()), **changes)


def step(message: Message, usage: Usage | None = None) -> Step:
    return Step(StepKind.MODEL, message, usage or Usage())


def turn(base: Head | None, *messages: Message, kind: TurnKind = TurnKind.RUN) -> Turn:
    """A committed turn that follows `base`."""
    seq = (base.seq if base else 0) + 1
    name = TurnId(f"turn-{seq}")
    body = encode(messages)
    plain = Turn(
        id=name,
        session=SESSION,
        seq=seq,
        parent=base.turn if base else None,
        attempt=ATTEMPT,
        kind=kind,
        hash=b"",
        agent_key="agent",
        agent_digest="digest",
        model="model",
        decision={},
        usage=Usage(),
        created_at=0.0,
        user="",
        inputs=0,
        body=body,
        messages=messages,
    )
    return replace(plain, hash=link(base, plain))
