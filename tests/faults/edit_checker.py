"""Judges edits and what they replaced: I1, I2, I15, I16. A part of the checker."""

from __future__ import annotations

from lastgood.model.ids import DEFAULT_TENANT, SessionId
from tests.faults.stored_state import StoredSession, says
from tests.faults.world import World


def edit_faults(kept: StoredSession, world: World) -> list[str]:
    """Only a committed edit takes a turn out of the head's chain, and only what came after its base."""
    found = []
    name, known = kept.session.id, kept.all_turns
    for branch, chain in kept.replaced.items():
        by = known.get(branch.replaced_by)
        if by is None:
            found.append(
                f"I2 {name}: {branch.head} was replaced by {branch.replaced_by}, which is not committed"
            )
            continue
        if by.parent not in {None, *(turn.id for turn in chain[:-1])}:
            found.append(f"I2 {name}: {by.id} replaced {branch.head}, and goes on from no turn before it")
        received = next(
            (received for received in world.log if received.texts and says(by, received.texts[-1])), None
        )
        if received is not None and (not received.is_edit or received.after != by.parent):
            found.append(f"I2 {name}: {received.token} replaced {branch.head}, and did not ask for that")
    for received in world.log:
        by = (
            known.get(received.turn)
            if received.turn and received.is_edit and received.session == name
            else None
        )
        if by is not None and by.parent != received.after:
            found.append(
                f"I1 {name}: the edit {received.token} goes on from {by.parent}, not from {received.after}"
            )
    return found + _heads(kept, world)


def _heads(kept: StoredSession, world: World) -> list[str]:
    """In the order of the fences: whoever began found the turn that was committed last before it as the head.

    So nothing else has moved the head, neither an edit that came to nothing nor one that still ran.
    """
    found = []
    name, forked = kept.session.id, kept.session.forked_from
    turns = {turn.attempt: turn for turn in kept.all_turns.values()}
    branches = {branch.head: branch for branch in kept.replaced}
    meant = {
        received.turn: received.replaces for received in world.log if received.turn and received.replaces
    }
    head = forked[1] if forked else None
    for attempt in sorted(kept.attempts.values(), key=lambda attempt: attempt.fence):
        if attempt.head != head:
            found.append(f"I2 {name}: {attempt.id} began at the head {attempt.head}, and it was {head}")
            return found
        turn = turns.get(attempt.id)
        if turn is None:
            continue
        if turn.parent != attempt.base:
            found.append(f"I1 {name}: {turn.id} follows {turn.parent}, and was made for {attempt.base}")
        if meant.get(turn.id, head) != head:
            found.append(f"I2 {name}: {turn.id} replaced {head}, and meant {meant[turn.id]}")
        if attempt.base != head and (head not in branches or branches[head].replaced_by != turn.id):
            found.append(f"I16 {name}: {turn.id} replaced {head}, which is no branch")
        head = turn.id
    if head != (kept.session.head.turn if kept.session.head else None):
        found.append(f"I2 {name}: {head} was committed last, and the head is {kept.session.head}")
    return found


async def leftovers(world: World, state: dict[SessionId, StoredSession]) -> list[str]:
    """After a delete: branches, and turns that no other session has. A fork nobody heard of may have them."""
    found = []
    reachable = {turn for kept in state.values() for turn in kept.all_turns}
    forks_known = all(
        received.outcome != "unknown" for received in world.log if received.what in ("fork", "delete")
    )
    for received in world.log:
        if received.what != "delete" or received.outcome != "done":
            continue
        if await world.store.list_branches(DEFAULT_TENANT, received.session, limit=1):
            found.append(f"I15 {received.session}: was deleted, and has branches")
        turns = {one.turn for one in world.log if one.session == received.session and one.turn}
        for turn in sorted(turns - reachable) if forks_known else ():
            if await world.store.find_turn(DEFAULT_TENANT, turn) is not None:
                found.append(f"I15 {received.session}: was deleted, and its turn {turn} is there")
    return found
