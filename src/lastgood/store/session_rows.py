"""Sessions to rows and back, the same for both databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from lastgood.model.agents import Permissions, Safety
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import (
    Head,
    LocatedSession,
    NewSession,
    ScopeKind,
    Session,
    SessionPage,
    SessionStatus,
    TaskScope,
    TitleBy,
    Turn,
    Usage,
)
from lastgood.model.tokens import Scope
from lastgood.store.rows import Row, of_turn, readable, unreadable

#: A cursor before the first page: larger than any session's number.
NEWEST = 2**62
#: The place of a session's number in its row.
_NUMBER = 2


def to_session(row: Row) -> Session:
    """HistoryDamaged: it cannot be read."""
    try:
        return _to_session(row)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise unreadable(f"session {row[0]}", str(row[0])) from error


def to_located(row: Row, agent_key: str | None) -> LocatedSession:
    *columns, is_bound = row
    session = to_session(tuple(columns))
    key = session.agent_key if agent_key is None else agent_key
    return LocatedSession(session, None if is_bound else key)


def _to_session(row: Row) -> Session:
    (
        id, tenant, n, agent_key, title, title_by, model, working_dir, rules, starred, metadata,
        conversation, forked_session, forked_turn, head, seq, head_hash, attempt, fence,
        event_seq, events_dropped, input_tokens, output_tokens, cost, created_at, updated_at,
        created_by, stored_bytes, owner, scope_kind, scope_id, runtime, pinned, status,
    ) = row  # fmt: skip
    return Session(
        id=SessionId(id),
        tenant=TenantId(tenant),
        number=n,
        agent_key=agent_key,
        title=title,
        title_by=TitleBy(title_by),
        model=model,
        working_dir=working_dir,
        rules=() if rules == "[]" else _to_rules(rules),
        starred=bool(starred),
        metadata={} if metadata == "{}" else orjson.loads(metadata),
        conversation=conversation,
        forked_from=(forked_session, forked_turn) if forked_session else None,
        head=Head(TurnId(head), seq, bytes(head_hash)) if head else None,
        status=SessionStatus(status),
        attempt=attempt,
        fence=fence,
        last_event_seq=event_seq,
        events_dropped=events_dropped,
        usage=Usage(input_tokens, output_tokens, cost),
        created_at=created_at,
        updated_at=updated_at,
        created_by=created_by,
        stored_bytes=stored_bytes,
        owner=owner,
        scope=TaskScope(ScopeKind(scope_kind), scope_id) if scope_kind else None,
        runtime_id=runtime,
        runtime_pinned=bool(pinned),
    )


def _to_rules(text: str) -> tuple[RuleLayer, ...]:
    return tuple(
        RuleLayer(
            Scope(plain["set_by"]),
            plain["token"],
            Permissions(*(tuple(plain[kind]) for kind in ("allow", "ask", "deny"))),
            Safety(plain["safety"]) if plain["safety"] else None,
        )
        for plain in orjson.loads(text)
    )


def of_rules(rules: tuple[RuleLayer, ...]) -> str:
    """One spelling for one value: writes compare the column with what was read."""
    plain = [
        {
            "set_by": layer.set_by.value,
            "token": layer.token,
            "allow": layer.permissions.allow,
            "ask": layer.permissions.ask,
            "deny": layer.permissions.deny,
            "safety": layer.safety.value if layer.safety else None,
        }
        for layer in rules
    ]
    return orjson.dumps(plain).decode()


def of_new_session(new: NewSession) -> dict[str, Any]:
    return {
        "id": new.id,
        "tenant": new.tenant,
        "agent_key": new.agent_key,
        "title": new.title,
        "title_by": new.title_by.value,
        "model": new.model,
        "working_dir": new.working_dir,
        "rules": of_rules(new.rules),
        "metadata": orjson.dumps(new.metadata).decode(),
        "conversation": new.conversation,
        "created_by": new.created_by,
        "stored_bytes": new.stored_bytes,
        "owner": new.owner,
        "scope_kind": new.scope.kind.value if new.scope else None,
        "scope_id": new.scope.id if new.scope else None,
        "runtime_id": new.runtime_id,
        "runtime_pinned": new.runtime_pinned,
    }


def of_import(new: NewSession, turns: Sequence[Turn]) -> dict[str, Any]:
    """The session's own row; what its turns say of it is taken from them."""
    head = turns[-1].head if turns else None
    usage = sum((turn.usage for turn in turns), Usage())
    return of_new_session(new) | {
        "head": head.turn if head else None,
        "seq": head.seq if head else 0,
        "hash": head.hash if head else None,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cost": usage.cost,
        "created_at": turns[0].created_at if turns else None,
        "updated_at": turns[-1].created_at if turns else None,
    }


def of_imported(new: NewSession, turn: Turn) -> dict[str, Any]:
    """A turn of it. The attempt that made it is not here, and its id says nothing any more."""
    return of_turn(turn) | {
        "tenant": new.tenant,
        "session": new.id,
        "segment": new.id,
        "attempt": turn.attempt,
    }


def of_field(field: str, value: Any) -> Any:
    """A field of a session as its column holds it."""
    return orjson.dumps(value).decode() if field == "metadata" else value


def of_list(
    tenant: TenantId,
    limit: int,
    cursor: int | None,
    query: str,
    agent: str | None,
    status: SessionStatus | None,
) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "before": NEWEST if cursor is None else cursor,
        "query": _like(query),
        "exact": query,
        "agent": agent,
        "status": status.value if status else None,
        "limit": limit + 1,  # one more says whether there is a next page
    }


def to_page(rows: Sequence[Row], limit: int) -> SessionPage:
    page = tuple(readable(rows[:limit], to_session))
    return SessionPage(page, rows[limit - 1][_NUMBER] if len(rows) > limit else None)


def _like(query: str) -> str:
    """A LIKE pattern for a search; the database lowers the title, we lower the query."""
    if not query:
        return ""
    escaped = query.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
