"""Rows to model values and back, the same for both databases."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import orjson

from lastgood.errors import HistoryDamaged
from lastgood.model.attempts import (
    Attempt,
    AttemptStatus,
    Begin,
    Commit,
    Edit,
    Expected,
    Hold,
    OnLeave,
    Step,
    StepKind,
    ToolOutcome,
    TurnRequest,
)
from lastgood.model.call_options import CallOptions, options_as_json, options_from_json
from lastgood.model.events import Event, EventKind, StoredEvent, data_of
from lastgood.model.events import as_json as event_as_json
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import as_json, decode, encode, from_json
from lastgood.model.sessions import Branch, EncodedTurn, Turn, TurnKind, Usage
from lastgood.store.checksums import REQUEST, STEP, is_request_whole, request_checksum, step_checksum

log = logging.getLogger(__name__)

Row = Sequence[Any]
T = TypeVar("T")

#: PostgreSQL has no NUL in text, and no database has half a character.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


def writable(text: str) -> str:
    """For texts of others about an attempt: no character may keep the attempt from ending."""
    return _UNWRITABLE.sub("\ufffd", text)


#: Of each column of a turn. SQLite returns whatever a damaged page contains.
_TURN_TYPES = (
    str, str, int, str | None, str, str, bytes, str, str, str, int, int, float | int, float | int, str, str,
    int, bytes,
)  # fmt: skip


#: What reading a damaged row may raise.
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)


def to_turn(row: Row) -> Turn:
    """A row that cannot be read becomes a turn that says so: the others of its session can still be shown."""
    try:
        plain = _turn_fields(row)
        return Turn(**plain, messages=decode(plain["body"]))
    except UNREADABLE as error:
        return _unreadable_turn(row, error)


def to_encoded_turn(row: Row) -> EncodedTurn:
    try:
        return EncodedTurn(**_turn_fields(row))
    except UNREADABLE as error:
        return _unreadable_turn(row, error)


def _unreadable_turn(row: Row, error: Exception) -> Turn:
    id, session, seq, parent = row[:4]
    return Turn(
        id=TurnId(str(id)),
        session=SessionId(str(session)),
        seq=seq if isinstance(seq, int) else 0,
        parent=None if parent is None else TurnId(str(parent)),
        attempt=AttemptId(""),
        kind=TurnKind.RUN,
        hash=row[6] if isinstance(row[6], bytes) else b"",
        agent_key="",
        agent_digest="",
        model="",
        decision={},
        usage=Usage(),
        created_at=0.0,
        user="",
        inputs=0,
        body=b"",
        messages=(),
        damage=f"its row cannot be read ({type(error).__name__}: {str(error)[:100]})",
    )


def _turn_fields(row: Row) -> dict[str, Any]:
    for value, kind in zip(row, _TURN_TYPES, strict=True):
        if not isinstance(value, kind):
            raise TypeError(f"a column holds {type(value).__name__}")
    (
        id, session, seq, parent, attempt, kind, hash_, agent_key, agent_digest, model,
        input_tokens, output_tokens, cost, created_at, decision, user, inputs, body,
    ) = row  # fmt: skip
    return {
        "id": TurnId(id),
        "session": SessionId(session),
        "seq": seq,
        "parent": parent,
        "attempt": AttemptId(attempt),
        "kind": TurnKind(kind),
        "hash": hash_,
        "agent_key": agent_key,
        "agent_digest": agent_digest,
        "model": model,
        "decision": orjson.loads(decision),
        "usage": Usage(input_tokens, output_tokens, cost),
        "created_at": created_at,
        "user": user,
        "inputs": inputs,
        "body": body,
    }


def readable(rows: Iterable[Row], convert: Callable[[Row], T]) -> Iterator[T]:
    """For lists of many sessions' rows: one that is damaged is logged, and the others are still there."""
    for row in rows:
        try:
            yield convert(row)
        except HistoryDamaged as error:
            log.error("%s; run `lastgood db check`", error)


def to_attempt(row: Row) -> Attempt:
    """HistoryDamaged: it cannot be read."""
    try:
        return _to_attempt(row)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise unreadable(f"attempt {row[0]} of session {row[2]}", str(row[2])) from error


def unreadable(what: str, session: str) -> HistoryDamaged:
    return HistoryDamaged(
        f"The row of {what} cannot be read. Delete the session; other sessions are not affected",
        session=session,
    )


def _to_attempt(row: Row) -> Attempt:
    (
        id, tenant, session, turn, number, status, base, head, fence, agent_key, agent_digest, model,
        decision, orphaned, cancel_asked, question, deadline, error_code, error_message, continues,
        started_at, ended_at, task, request_id, cli_version, ran_tools,
    ) = row  # fmt: skip
    return Attempt(
        id=AttemptId(id),
        tenant=TenantId(tenant),
        session=SessionId(session),
        turn=TurnId(turn),
        number=number,
        status=AttemptStatus(status),
        base=base,
        head=head,
        fence=fence,
        agent_key=agent_key,
        agent_digest=agent_digest,
        model=model,
        decision=orjson.loads(decision),
        orphaned=bool(orphaned),
        cancel_asked=bool(cancel_asked),
        question=orjson.loads(question) if question and ended_at is None else None,
        deadline=deadline,
        error_code=error_code,
        error_message=error_message,
        continues=continues,
        started_at=started_at,
        ended_at=ended_at,
        task=task,
        request_id=request_id,
        unanswered=orjson.loads(question) if question and ended_at is not None else None,
        cli_version=cli_version,
        ran_tools=bool(ran_tools),
    )


def to_request(row: Row) -> TurnRequest:
    """HistoryDamaged: it is not as it was stored."""
    *said, body, stored = row
    named = dict(zip(REQUEST, said, strict=True)) | {"input": body}
    if not isinstance(stored, bytes) or not is_request_whole(named, stored):
        raise damaged(str(said[2]), f"the stored input of turn {said[0]}", turn=str(said[0]))
    (
        turn, tenant, session, kind, key, fingerprint, caller, user, model, agent_key, after, replaces,
        expects, options, on_leave, durable,
    ) = said  # fmt: skip
    edit = Edit(after, TurnId(replaces)) if replaces else None
    condition = None if expects is None else Expected(TurnId(expects) if expects else None)
    return TurnRequest(
        turn=TurnId(turn),
        tenant=TenantId(tenant),
        session=SessionId(session),
        kind=TurnKind(kind),
        key=key,
        fingerprint=fingerprint,
        caller=caller,
        user=user,
        model=model,
        agent_key=agent_key,
        edit=edit,
        condition=Expected(edit.replaces) if edit else condition,
        options=options_from_json(orjson.loads(options)) if options else CallOptions(),
        on_leave=OnLeave(on_leave),
        durable=bool(durable),
        messages=None if body is None else decode(body),
    )


def to_branch(row: Row) -> Branch:
    return Branch(*row)


def damaged(session: str, what: str, **detail: str) -> HistoryDamaged:
    return HistoryDamaged(
        f"{what[0].upper()}{what[1:]} of session {session} does not match its checksum and was not sent to "
        "a model. The session can be read, exported, forked and deleted; send the message as a new turn",
        session=session,
        **detail,
    )


def to_steps(rows: Iterable[Row]) -> tuple[Step, ...]:
    """The journal of one attempt. HistoryDamaged: a step is not as it was stored, or one is missing."""
    return tuple(_to_step(row, number) for number, row in enumerate(rows, 1))


def _to_step(row: Row, number: int) -> Step:
    session, attempt, n, kind, body, input_tokens, output_tokens, cost, stored = row
    values = (session, kind, input_tokens, output_tokens, cost, body)
    if n != number or stored != step_checksum(dict(zip(STEP, values, strict=True))):
        raise damaged(str(session), f"step {number} of attempt {attempt}", attempt=str(attempt))
    plain = orjson.loads(body)
    message = from_json(plain.pop("message"))
    plain["effects"] = tuple(plain.get("effects", ()))
    if "outcome" in plain:
        plain["outcome"] = ToolOutcome(plain["outcome"])
    return Step(StepKind(kind), message, Usage(input_tokens, output_tokens, cost), **plain)


def to_event(row: Row) -> StoredEvent:
    seq, kind, attempt, body, created_at = row
    return StoredEvent(seq, attempt, data_of(EventKind(kind), orjson.loads(bytes(body))), created_at)


def of_hold(hold: Hold) -> dict[str, Any]:
    return {"tenant": hold.tenant, "session": hold.session, "attempt": hold.attempt, "fence": hold.fence}


def of_begin(begin: Begin) -> dict[str, Any]:
    plain = _of_begin(begin)
    return plain | {"checksum": request_checksum(plain)}


def _of_begin(begin: Begin) -> dict[str, Any]:
    ask = begin.ask
    return {
        "tenant": ask.tenant,
        "session": ask.session,
        "turn": begin.turn,
        "attempt": begin.attempt,
        "holder": begin.holder,
        "lease": begin.lease_seconds,
        "checks_head": begin.condition is not None,
        "expected_head": begin.condition.head if begin.condition else None,
        "edits": ask.edit is not None,
        "after": ask.edit.after if ask.edit else None,
        "replaces": ask.edit.replaces if ask.edit else None,
        "expects": None if ask.edit or ask.condition is None else ask.condition.head or "",
        "kind": ask.kind.value,
        "key": ask.key,
        "fingerprint": ask.fingerprint,
        "caller": ask.caller,
        "user": ask.user,
        "override": ask.model,
        "asked_agent_key": ask.agent_key,
        "options": orjson.dumps(plain).decode() if (plain := options_as_json(ask.options)) else None,
        "on_leave": ask.on_leave.value,
        "durable": ask.durable,
        "input": encode(ask.messages),
        "agent_key": begin.agent_key,
        "agent_digest": begin.agent_digest,
        "agent_model": begin.agent_model,
        "decision": orjson.dumps(begin.decision).decode(),
        "continues": begin.continues,
        "follows": begin.follows,
        "takes": begin.takes,
        "reclaims": begin.reclaims,
        "request_id": ask.request_id,
        "claims": len(begin.reclaims) + (begin.takes is not None),
    }


def of_commit(commit: Commit) -> dict[str, Any]:
    return of_turn(commit.turn) | {
        "expected_head": commit.head,
        "replaces": commit.replaces,
        "override": commit.override,
        "binds": commit.binds,
    }


def of_turn(turn: Turn) -> dict[str, Any]:
    return {
        "turn": turn.id,
        "seq": turn.seq,
        "base": turn.parent,
        "kind": turn.kind.value,
        "hash": turn.hash,
        "agent_key": turn.agent_key,
        "agent_digest": turn.agent_digest,
        "model": turn.model,
        "decision": orjson.dumps(turn.decision).decode(),
        "input_tokens": turn.usage.input_tokens,
        "output_tokens": turn.usage.output_tokens,
        "cost": turn.usage.cost,
        "now": turn.created_at,
        "user": turn.user,
        "inputs": turn.inputs,
        "body": turn.body,
    }


def of_step(step: Step, session: SessionId) -> dict[str, Any]:
    plain = {
        "session": session,
        "kind": step.kind.value,
        "input_tokens": step.usage.input_tokens,
        "output_tokens": step.usage.output_tokens,
        "cost": step.usage.cost,
        "body": orjson.dumps(_step_body(step)),
    }
    return plain | {"checksum": step_checksum(plain)}


def _step_body(step: Step) -> dict[str, Any]:
    plain: dict[str, Any] = {"message": as_json(step.message)}
    if step.within:
        plain["within"] = step.within
    if step.full is not None:
        plain["full"] = step.full
    if step.left_out:
        plain["left_out"] = step.left_out
    if step.cut_short:
        plain["cut_short"] = True
    if step.model:
        plain["model"] = step.model
    if step.context_size:
        plain["context_size"] = step.context_size
    if step.queued:
        plain["queued"] = step.queued
    if step.effects:
        plain["effects"] = step.effects
    if step.outcome is not None:
        plain["outcome"] = step.outcome.value
    if step.seconds:
        plain["seconds"] = round(step.seconds, 3)
    if step.ended_at:
        plain["ended_at"] = round(step.ended_at, 3)
    if step.agent:
        plain["agent"] = step.agent
    if step.hook:
        plain |= {"hook": step.hook, "ruling": step.ruling, "reason": step.reason}
    if step.hands_to:
        plain["hands_to"] = step.hands_to
    return plain


def event_body(event: Event) -> bytes:
    return orjson.dumps(event_as_json(event.data))


#: Numbers skipped when an attempt is interrupted. Event batches are not flushed
#: to the disk one by one, so a power cut may take the last of them; a number that
#: a watcher may have seen must not come back with another meaning.
EVENT_LEAP = 2**20

#: A page of events ends with the event that makes it this large.
EVENT_PAGE_BYTES = 1_000_000
