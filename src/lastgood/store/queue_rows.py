"""Rows of the queue to model values and back, the same for both databases."""

from __future__ import annotations

from typing import Any

from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.messages import decode, encode
from lastgood.model.queue import NewQueued, Queued, QueueKind
from lastgood.store.rows import Row

#: What may_enqueue says of a key that is in the queue already.
KNOWN = "known"


def to_queued(row: Row) -> Queued:
    (
        n, tenant, session, turn, kind, body, model, agent_key, key, fingerprint, caller, user, attempt,
        heard, failures, parked, created_at, settled_at,
    ) = row  # fmt: skip
    return Queued(
        number=n,
        tenant=TenantId(tenant),
        session=SessionId(session),
        turn=TurnId(turn),
        kind=QueueKind(kind),
        messages=decode(bytes(body)),
        model=model,
        agent_key=agent_key,
        key=key,
        fingerprint=fingerprint,
        caller=caller,
        user=user,
        attempt=attempt,
        heard=bool(heard),
        failures=failures,
        parked=parked,
        created_at=created_at,
        settled_at=settled_at,
    )


def of_queued(new: NewQueued) -> dict[str, Any]:
    return {
        "tenant": new.tenant,
        "session": new.session,
        "turn": new.turn,
        "kind": new.kind.value,
        "key": new.key,
        "fingerprint": new.fingerprint,
        "caller": new.caller,
        "user": new.user,
        "model": new.model,
        "agent_key": new.agent_key,
        "input": encode(new.messages),
    }


def of_place(tenant: TenantId, session: SessionId, number: int) -> dict[str, Any]:
    return {"tenant": tenant, "session": session, "number": number}
