"""Decides what a session takes over from the one it is derived from.

Every fork goes through `derive`. A field that the table does not name is an error, so
a new field of a session cannot be forgotten here: an operator's rules once were.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from lastgood.model.ids import SessionId
from lastgood.model.sessions import NewSession, Session


class FieldOrigin(StrEnum):
    INHERITED = "inherited"  # the source's
    GIVEN = "given"  # the caller's
    FRESH = "fresh"  # as in any new session


ORIGINS = {
    "id": FieldOrigin.GIVEN,
    "tenant": FieldOrigin.INHERITED,
    "agent_key": FieldOrigin.INHERITED,
    "title": FieldOrigin.GIVEN,  # numbered, so that people can tell forks apart
    "title_by": FieldOrigin.INHERITED,
    "model": FieldOrigin.INHERITED,
    "working_dir": FieldOrigin.INHERITED,
    "rules": FieldOrigin.INHERITED,  # all layers: what was denied there is denied here, for the same reason
    "metadata": FieldOrigin.INHERITED,
    "conversation": FieldOrigin.FRESH,  # a name belongs to one session
    "created_by": FieldOrigin.GIVEN,
    "stored_bytes": FieldOrigin.INHERITED,  # it keeps what it inherits, even if the source is deleted
    "owner": FieldOrigin.GIVEN,  # the user who forks
    "scope": FieldOrigin.FRESH,  # an issue or chat has one session with an agent
    "runtime_id": FieldOrigin.INHERITED,  # a user who may not read the source may not read its fork
    "runtime_pinned": FieldOrigin.FRESH,  # it follows its agent
}


def derive(source: Session, id: SessionId, title: str, created_by: str, owner: str) -> NewSession:
    inherited: dict[str, Any] = {
        field: getattr(source, field) for field, origin in ORIGINS.items() if origin is FieldOrigin.INHERITED
    }
    return NewSession(id=id, title=title, created_by=created_by, owner=owner, **inherited)
