"""An ask on its way to a turn: checked, given its session, and placed in its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lastgood.core.input_checks import check_text
from lastgood.errors import InvalidRequest, TurnNotFound
from lastgood.model.attempts import After, Ask, Edit
from lastgood.model.messages import Message, Role
from lastgood.model.sessions import Session

MOST_IN_KEY = 255


def located(ask: Ask, body: Sequence[Message], session: Session) -> Ask:
    named = None if ask.agent_key == session.agent_key else ask.agent_key
    has_history = any(message.role is Role.ASSISTANT for message in body)
    return replace(ask, session=session.id, agent_key=named, has_history=has_history)


def placed(ask: Ask, session: Session, after: After) -> Ask:
    """An append if `after` is the head; else an edit of the expected head, or of the present one."""
    head = session.head.turn if session.head else None
    if after.turn == head:
        return replace(ask, is_first=head is None, expected_head=ask.expected_head or head)
    if head is None:
        raise TurnNotFound()
    return replace(ask, edit=Edit(after.turn, ask.expected_head or head))


def check_names(ask: Ask) -> None:
    for what, text in (
        ("model", ask.model),
        ("key", ask.key),
        ("agent", ask.agent_key),
        ("user", ask.user),
    ):
        check_text(text or "", f"the {what}")
    if ask.key is not None and not 1 <= len(ask.key) <= MOST_IN_KEY:
        raise InvalidRequest(f"Idempotency key must be 1 to {MOST_IN_KEY} characters")
