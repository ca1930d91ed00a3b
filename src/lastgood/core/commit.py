"""Decides what a commit writes, and how a chain is verified.

The hash of a turn covers everything that the turn says, and the hash before it: one changed
byte anywhere in a chain shows. Its first byte is the version of the rule it was made by, so
that a later rule can be added without making old turns look damaged.

Where a turn is stored (its tenant, its session) is not part of its hash: forks share turns, and an
import moves them. A turn in the wrong place breaks the chain that it is missing from.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import replace

import orjson

from lastgood.model.attempts import Ask, Begin, Begun, Commit, Step, said
from lastgood.model.messages import encode
from lastgood.model.sessions import EncodedTurn, Head, Turn, Usage


def plan_commit(begin: Begin, begun: Begun, steps: Sequence[Step], now: float) -> Commit:
    ask: Ask = begin.ask
    # A sub-agent's steps stay with the attempt: the turn holds only the messages of its own agent.
    messages = (*ask.messages, *said(step for step in steps if not step.within))
    body = encode(messages)
    seq = (begun.base.seq if begun.base else 0) + 1
    turn = Turn(
        id=begun.turn,
        session=ask.session,
        seq=seq,
        parent=begun.base.turn if begun.base else None,
        attempt=begun.hold.attempt,
        kind=ask.kind,
        hash=b"",
        agent_key=begin.agent_key,
        agent_digest=begin.agent_digest,
        model=_answered_by(steps) or begun.model,
        decision=begin.decision | _remarks(steps),
        usage=sum((step.usage for step in steps), Usage()),
        created_at=now,
        user=ask.user,
        inputs=len(ask.messages),
        body=body,
        messages=messages,
    )
    turn = replace(turn, hash=link(begun.base, turn))
    head = begun.session.head
    binds = ask.agent_key if not begun.session.agent_key else None
    return Commit(turn, head.turn if head else None, ask.model, binds)


def _answered_by(steps: Sequence[Step]) -> str:
    """The model that gave the last response: `auto` and fallbacks leave open which one that is."""
    return next((step.model for step in reversed(steps) if step.model and not step.within), "")


def _remarks(steps: Sequence[Step]) -> dict[str, int | bool]:
    """Returns what the turn must disclose: that its prompt was shortened, or its answer was cut off; and how
    much of the model's context its last response has used, if that is known."""
    own = [step for step in steps if not step.within]
    left_out = max((step.left_out for step in own), default=0)
    remarks: dict[str, int | bool] = {"left_out": left_out} if left_out else {}
    if own and own[-1].cut_short:
        remarks["cut_short"] = True
    last = next((step for step in reversed(own) if step.model), None)
    if last is not None and last.context_size:
        tokens = last.usage.input_tokens + last.usage.output_tokens
        remarks |= {"context_tokens": tokens, "context_size": last.context_size}
    return remarks


#: The rule that new turns are hashed by.
HASH_VERSION = 1


def link(base: Head | None, turn: EncodedTurn) -> bytes:
    """The hash of a turn, given the one before it. Does not read the turn's own `hash`."""
    digest = hashlib.sha256()
    for field in (_facts(base, turn), turn.body):
        digest.update(len(field).to_bytes(8))
        digest.update(field)
    return bytes([HASH_VERSION]) + digest.digest()


def _facts(base: Head | None, turn: EncodedTurn) -> bytes:
    """All that is hashed except the body. Each field has its length before it, so no two turns
    encode to the same bytes."""
    usage = turn.usage
    texts = (
        turn.id,
        turn.kind.value,
        turn.attempt,
        turn.agent_key,
        turn.agent_digest,
        turn.model,
        turn.user,
        f"{turn.seq} {turn.inputs} {usage.input_tokens} {usage.output_tokens}",
    )
    fields = [
        base.hash if base else b"",
        *(text.encode("utf-8", "surrogatepass") for text in texts),
        # A database may return 0.0 for -0.0, and JSON 5 for 5.0.
        struct.pack(">dd", usage.cost + 0.0, turn.created_at + 0.0),
        orjson.dumps(turn.decision, option=orjson.OPT_SORT_KEYS),
    ]
    return b"".join(len(field).to_bytes(8) + field for field in fields)


def damage_of(base: Head | None, turn: EncodedTurn) -> str | None:
    """Returns what is wrong with a turn that should follow `base`, or None if it is as it was committed."""
    if turn.damage:
        return turn.damage
    if turn.parent != (base.turn if base else None) or turn.seq != (base.seq if base else 0) + 1:
        return "it does not follow the previous turn"
    if turn.hash[:1] != bytes([HASH_VERSION]):
        return "its hash uses an algorithm unknown to this version of Lastgood"
    if turn.hash != link(base, turn):
        return "its content does not match its hash"
    return None
