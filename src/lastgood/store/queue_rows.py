"""Rows of the queue to model values and back, the same for both databases."""

from __future__ import annotations

from typing import Any

from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.messages import decode, encode
from lastgood.model.queue import NewQueued, Parking, Queued, QueueKind
from lastgood.store.checksums import QUEUED, queued_checksum
from lastgood.store.rows import Row

#: What may_enqueue says of a key that is in the queue already.
KNOWN = "known"


def to_queued(row: Row) -> Queued:
    (
        n, tenant, session, turn, kind, body, model, agent_key, key, fingerprint, caller, user, attempt,
        journaled, failures, parked, created_at, settled_at, stored,
    ) = row  # fmt: skip
    values = (tenant, session, turn, key, fingerprint, caller, user, model, agent_key, body)
    is_whole = stored == queued_checksum(dict(zip(QUEUED, values, strict=True)))
    return Queued(
        number=n,
        tenant=TenantId(tenant),
        session=SessionId(session),
        turn=TurnId(turn),
        kind=QueueKind(kind),
        messages=decode(body) if is_whole else (),
        model=model,
        agent_key=agent_key,
        key=key,
        fingerprint=fingerprint,
        caller=caller,
        user=user,
        attempt=attempt,
        is_journaled=bool(journaled),
        failures=failures,
        parked=parked,
        created_at=created_at,
        settled_at=settled_at,
        is_damaged=not is_whole,
    )


def of_queued(new: NewQueued) -> dict[str, Any]:
    plain = {
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
    return plain | {"checksum": queued_checksum(plain)}


def of_parking(parking: Parking | None) -> dict[str, Any]:
    return {
        "park_reason": parking.reason if parking else None,
        "park_failures": parking.failures if parking else None,
        "park_deaths": parking.deaths if parking else None,
        "park_others": parking.others if parking else None,
    }


def of_place(tenant: TenantId, session: SessionId, number: int) -> dict[str, Any]:
    return {"tenant": tenant, "session": session, "number": number}
