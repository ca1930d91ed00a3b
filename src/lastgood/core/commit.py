"""Decides what a commit writes, and how a chain is verified.

The hash of a turn covers its own bytes and the hash before it, so one changed
byte anywhere shows at the end of the chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from lastgood.model.attempts import Ask, Begin, Begun, Commit, Step
from lastgood.model.messages import encode
from lastgood.model.sessions import Head, Turn, Usage


def plan_commit(begin: Begin, begun: Begun, steps: Sequence[Step], now: float) -> Commit:
    ask: Ask = begin.ask
    # A sub-agent's steps stay with the attempt: the turn holds what its own agent said and was told.
    messages = (*ask.messages, *(step.message for step in steps if not step.within))
    body = encode(messages)
    seq = (begun.base.seq if begun.base else 0) + 1
    turn = Turn(
        id=begun.turn,
        session=ask.session,
        seq=seq,
        parent=begun.base.turn if begun.base else None,
        attempt=begun.hold.attempt,
        kind=ask.kind,
        hash=link(begun.base, begun.turn, seq, body),
        agent_key=begin.agent_key,
        agent_digest=begin.agent_digest,
        model=begun.model,
        decision=begin.decision | _remarks(steps),
        usage=sum((step.usage for step in steps), Usage()),
        created_at=now,
        user=ask.user,
        inputs=len(ask.messages),
        body=body,
        messages=messages,
    )
    return Commit(turn, ask.model, ask.agent_key if not begun.session.agent_key else None)


def _remarks(steps: Sequence[Step]) -> dict[str, int | bool]:
    """What should be known of a turn: that the model did not see all of it, or could not say all of it."""
    own = [step for step in steps if not step.within]
    left_out = max((step.left_out for step in own), default=0)
    remarks: dict[str, int | bool] = {"left_out": left_out} if left_out else {}
    if own and own[-1].cut_short:
        remarks["cut_short"] = True
    return remarks


def link(base: Head | None, turn: str, seq: int, body: bytes) -> bytes:
    """The hash of a turn, given the one before it."""
    digest = hashlib.sha256(base.hash if base else b"")
    digest.update(f"\n{turn}\n{seq}\n".encode())
    digest.update(body)
    return digest.digest()


def broken_link(turns: Iterable[Turn]) -> Turn | None:
    """The first turn that does not follow from the one before it; None: the chain is whole."""
    base: Head | None = None
    for turn in turns:
        expected = link(base, turn.id, turn.seq, turn.body)
        in_place = turn.seq == (base.seq if base else 0) + 1 and turn.parent == (base.turn if base else None)
        if turn.hash != expected or not in_place:
            return turn
        base = turn.head
    return None
