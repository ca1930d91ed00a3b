"""A simulated client that edits: it reads a session, and goes on from an earlier turn of it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from lastgood.errors import LastgoodError
from lastgood.flows.session_reader import FullSession
from lastgood.model.attempts import After, OnLeave
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import Message, Role
from lastgood.model.sessions import TurnKind
from lastgood.wiring import Lastgood
from tests.faults.world import Resent

if TYPE_CHECKING:
    from tests.faults.simulation import Simulation


async def edit(simulation: Simulation, node: Lastgood, session: SessionId, token: str) -> None:
    """A client that has read the session goes on from an earlier turn of it, or from its beginning.

    Meanwhile others append on the other node, so what it replaces may be gone by then.
    """
    whole = await simulation.patiently(_read(node, session))
    if whole is None or whole.session.head is None:
        return
    turns, head = whole.turns, whole.session.head.turn
    dice = simulation.random.random
    if dice() < 0.4:
        asked: dict[str, Any] = _resent(whole, simulation.random)
    else:
        place = After(simulation.random.choice([None, *(turn.id for turn in turns[-4:])]))
        asked = {"after": place, "expected_head": head if dice() < 0.5 else None}
    how = simulation.random.choice(["plain", "durable", "keyed", "leaves"])
    if how == "leaves":
        leave = asyncio.Event()
        simulation.loop.call_later(dice() * 2, leave.set)
        asked |= {"on_leave": OnLeave.ORPHAN, "leave": leave}
    text = simulation.text()
    for _ in range(3 if how == "keyed" else 1):
        received = await simulation.patiently(
            simulation.world.ask(
                simulation.living().app,
                session,
                text,
                token,
                key=f"key {token}" if how == "keyed" else None,
                durable=how == "durable",
                watch=how == "keyed",
                **asked,
            )
        )
        if received is not None and received.outcome in ("committed", "cancelled", "refused"):
            return


async def _read(node: Lastgood, session: SessionId) -> FullSession | None:
    try:
        return await node.sessions.read(DEFAULT_TENANT, session)
    except LastgoodError:
        return None  # deleted, or the store is away


def _resent(whole: FullSession, dice: random.Random) -> dict[str, Any]:
    """What a chat client sends that changes one of its messages: all it was shown before, and the new one.

    It was shown nothing of a reset, nor of tools. A changed last message is a regenerate; that its
    words are new lets the checker tell one from the other.
    """
    resets = [place for place, turn in enumerate(whole.turns, 1) if turn.kind is TurnKind.RESET]
    first = resets[-1] if resets else 0
    place = max(first, len(whole.turns) - dice.choice([1, 1, 2, 3]))
    shown = [message for turn in whole.turns[first:place] for message in turn.messages]
    old = tuple(Message(m.role, m.content) for m in shown if m.role in (Role.USER, Role.ASSISTANT))
    after = After(whole.turns[place - 1].id if place else None)
    return {"after": after, "resent": Resent(whole.session, old)}
