"""Histories as they were committed: every chain is verified when it is read from the store.

All flows read turns through this module. What does not match its hash is reported as damage of that
session, with the turns before it: those can still be shown, exported and forked. It never reaches a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from lastgood.core.commit import damage_of
from lastgood.core.recovery import approval_place, has_effects
from lastgood.errors import HistoryDamaged
from lastgood.model.attempts import Attempt
from lastgood.model.ids import TenantId, TurnId
from lastgood.model.sessions import EncodedTurn, Head, Turn
from lastgood.ports.attempts import AttemptStore
from lastgood.ports.sessions import TurnStore

#: Others are served after so much of a chain was hashed: a few milliseconds.
_PAUSE_TURNS = 200
_PAUSE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Chain:
    """The turns up to a head, as far as they are stored. A damaged one says so in `Turn.damage`."""

    turns: tuple[Turn, ...] = ()
    damage: HistoryDamaged | None = None  # the first, if there is any
    whole: int = 0  # how many turns come before it

    @property
    def good(self) -> tuple[Turn, ...]:
        """The turns before the damage; all turns if nothing is damaged."""
        return self.turns[: self.whole]

    def checked(self) -> tuple[Turn, ...]:
        """All turns. HistoryDamaged: they are not all as they were committed."""
        if self.damage is not None:
            raise self.damage
        return self.turns


async def read_chain(store: TurnStore, tenant: TenantId, head: Head | None, *, after: int = 0) -> Chain:
    """The chain that ends in `head`, verified, without the first `after` turns."""
    if head is None or head.seq <= after:
        return Chain()
    # One more than wanted: the first wanted turn is verified against the hash of the one before it.
    turns = await store.read_turns(tenant, head.turn, after_seq=max(after - 1, 0))
    base = turns[0].head if after and turns and turns[0].seq == after else None
    return await _verified(turns[1:] if base else turns, base, head)


async def stream_chain(
    store: TurnStore, tenant: TenantId, head: Head | None, *, after: int = 0
) -> AsyncGenerator[EncodedTurn | HistoryDamaged, None]:
    """The same chain in bounded memory, without decoding any message. HistoryDamaged comes once, before
    the first turn that is damaged, or at the end if the chain does not end in `head`."""
    if head is None or head.seq <= after:
        return
    base: Head | None = None
    is_whole = True
    async with aclosing(store.stream_turns(tenant, head.turn, after_seq=max(after - 1, 0))) as turns:
        async for turn in turns:
            if after and turn.seq == after:
                base = turn.head
                continue
            problem = await _damage_of(base, turn)
            if problem is not None:
                if is_whole:
                    yield damaged_turn(turn, problem)
                is_whole = False
                turn = replace(turn, damage=problem)
            yield turn
            base = turn.head
    if is_whole and base != head:
        yield _damaged_head(head)


async def _damage_of(base: Head | None, turn: EncodedTurn) -> str | None:
    """Hashing a large body would hold the loop; on a thread it does not hold the interpreter either."""
    if len(turn.body) < _PAUSE_BYTES:
        return damage_of(base, turn)
    return await asyncio.to_thread(damage_of, base, turn)


async def _verified(turns: Sequence[Turn], base: Head | None, head: Head) -> Chain:
    found: list[Turn] = []
    damage: HistoryDamaged | None = None
    whole = hashed = 0
    for number, turn in enumerate(turns, 1):
        problem = damage_of(base, turn)
        if problem is not None:
            damage = damage or damaged_turn(turn, problem)
            turn = replace(turn, damage=problem)
        whole += damage is None
        found.append(turn)
        # Later turns are judged by what is stored of this one, so that only what was changed is marked.
        base = turn.head
        hashed += len(turn.body)
        if number % _PAUSE_TURNS == 0 or hashed > _PAUSE_BYTES:
            hashed = 0
            await asyncio.sleep(0)
    if base != head:
        damage = damage or _damaged_head(head)
    return Chain(tuple(found), damage, whole)


def damaged_turn(turn: EncodedTurn, problem: str) -> HistoryDamaged:
    before = turn.seq - 1
    works = {
        0: "No turn before it can be used",
        1: "Turn 1 can still be read, exported and forked",
    }.get(before, f"Turns 1 to {before} can still be read, exported and forked")
    return HistoryDamaged(
        f"Turn {turn.seq} ({turn.id}) of session {turn.session} is damaged: {problem}. It is not sent to "
        f"a model. {works}; the session can be deleted",
        session=turn.session,
        turn=turn.id,
        seq=turn.seq,
    )


def _damaged_head(head: Head) -> HistoryDamaged:
    return HistoryDamaged(
        f"The head of the session is turn {head.seq} ({head.turn}), but its stored turns do not end there. "
        "They are not sent to a model. The session can be read, exported and deleted, and forked from an "
        "earlier turn",
        turn=head.turn,
        seq=head.seq,
    )


async def had_effects(store: AttemptStore, attempt: Attempt) -> bool:
    """Whether a tool that must not run twice has run in it. Damaged steps do not say, so it may have."""
    try:
        steps = await store.read_steps(attempt.tenant, attempt.id)
    except HistoryDamaged:
        return True
    return has_effects(steps, approval_place(attempt.question or attempt.unanswered))


async def find_verified(store: TurnStore, tenant: TenantId, turn: TurnId) -> Turn | None:
    """One turn, verified against the hash of the turn before it. None: there is no such turn."""
    found = await store.find_turn(tenant, turn)
    if found is None:
        return None
    before = await store.find_turn(tenant, found.parent) if found.parent else None
    problem = damage_of(before.head if before else None, found)
    if problem is not None:
        # The damage may be in the turn before it, or even earlier; say where it begins.
        chain = await read_chain(store, tenant, found.head)
        raise chain.damage or damaged_turn(found, problem)
    return found
