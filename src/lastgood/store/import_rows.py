"""Imported turns and pointers to rows, the same for both databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lastgood.model.ids import SessionId
from lastgood.model.imports import NewPointer
from lastgood.model.runtimes import RuntimeIdentity
from lastgood.model.sessions import Head, NewSession, Turn
from lastgood.store.rows import of_turn

_NOBODY = RuntimeIdentity("", "", "")


def of_append(
    new: NewSession, session: SessionId, base: Head | None, turns: Sequence[Turn]
) -> dict[str, Any]:
    head = turns[-1].head
    return {
        "tenant": new.tenant,
        "session": session,
        "base": base.turn if base else None,
        "head": head.turn,
        "seq": head.seq,
        "hash": head.hash,
        "bytes": sum(len(turn.body) for turn in turns),
    }


def of_appended(new: NewSession, session: SessionId, segment: str, turn: Turn) -> dict[str, Any]:
    return of_turn(turn) | {
        "tenant": new.tenant,
        "session": session,
        "segment": segment,
        "attempt": turn.attempt,
    }


def of_new_pointer(new: NewSession, session: SessionId, pointer: NewPointer) -> dict[str, Any]:
    made_by = pointer.runtime or _NOBODY
    return {
        "tenant": new.tenant,
        "session": session,
        "agent_key": new.agent_key,
        "task": pointer.task,
        "attempt": pointer.attempt,
        "native_session": pointer.native_session,
        "runtime": made_by.id or None,
        "worker": pointer.worker,
        "provider": made_by.provider,
        "account": made_by.account,
        "format": made_by.format,
        "work_dir": pointer.work_dir,
        "through": pointer.through,
        "outcome": pointer.outcome.value,
        "dirty": pointer.is_dirty,
        "retired": pointer.retired,
    }
