"""Decides what a session takes over from the one it is derived from.

Every fork goes through `derive`. A field that the table does not name is an error, so
a new field of a session cannot be forgotten here: an operator's rules once were.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from lastgood.model.ids import SessionId
from lastgood.model.sessions import NewSession, Session


class Origin(StrEnum):
    INHERITED = "inherited"  # the source's
    GIVEN = "given"  # the caller's
    FRESH = "fresh"  # as in any new session


ORIGINS = {
    "id": Origin.GIVEN,
    "tenant": Origin.INHERITED,
    "agent_key": Origin.INHERITED,
    "title": Origin.GIVEN,  # numbered, so that people can tell forks apart
    "title_by": Origin.INHERITED,
    "model": Origin.INHERITED,
    "working_dir": Origin.INHERITED,
    "rules": Origin.INHERITED,  # all layers: what was denied there is denied here, for the same reason
    "metadata": Origin.INHERITED,
    "conversation": Origin.FRESH,  # a name belongs to one session
    "created_by": Origin.GIVEN,
    "stored_bytes": Origin.INHERITED,  # it keeps what it inherits, even if the source is deleted
}


def derive(source: Session, id: SessionId, title: str, created_by: str) -> NewSession:
    inherited: dict[str, Any] = {
        field: getattr(source, field) for field, origin in ORIGINS.items() if origin is Origin.INHERITED
    }
    return NewSession(id=id, title=title, created_by=created_by, **inherited)
