"""Checks that committed turns form a chain."""

from collections.abc import Iterable

from lastgood.core.commit import damage_of
from lastgood.model.sessions import Head, Turn


def broken_link(turns: Iterable[Turn]) -> Turn | None:
    """Returns the first turn that does not follow from the previous one, or None if all do."""
    base: Head | None = None
    for turn in turns:
        if damage_of(base, turn) is not None:
            return turn
        base = turn.head
    return None
