"""Events as the arrays that a statement stores them from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lastgood.model.events import Event
from lastgood.store.rows import event_body


def of_events(
    events: Sequence[Event], *, leap: int = 0, at: float | None = None, batch: int | None = None
) -> dict[str, Any]:
    """`events` is how far the session's counter moves; those stored get the last numbers of that."""
    return {
        "events": len(events) + leap,
        "events_at": at,
        "batch": batch,
        "event_kinds": [event.kind.value for event in events],
        "event_attempts": [event.attempt for event in events],
        "event_bodies": [event_body(event) for event in events],
    }
