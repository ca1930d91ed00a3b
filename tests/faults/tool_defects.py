"""Deliberate defects of what a killed server leaves to the next one: each must be caught.

A defect changes the running code of the servers of tests/faults/tool_server.py, before and after the
kill. Which story must object to it is written in test_tool_kills.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from lastgood.core import recovery as core_recovery
from lastgood.core.recovery import TryAgain, Unsettled
from lastgood.engine import turn_loop
from lastgood.engine.agent_run import Stage
from lastgood.flows import recovery as flow_recovery
from lastgood.model.agents import OnUnknown
from lastgood.model.attempts import Hold, Step, StepKind
from lastgood.model.events import Event
from lastgood.store.sqlite.attempts import SqliteAttempts


@contextmanager
def _repeats(policy: OnUnknown) -> Iterator[None]:
    def unsettled(*args: Any) -> tuple[Unsettled, ...]:
        return tuple(replace(found, policy=policy) for found in core_recovery.unsettled(*args))

    with patch.object(turn_loop, "unsettled", unsettled):
        yield


@contextmanager
def _loses_results() -> Iterator[None]:
    real = SqliteAttempts.journal_if_held

    async def journal(
        self: Any, hold: Hold, steps: Sequence[Step], events: Sequence[Event], **more: Any
    ) -> bool:
        return await real(self, hold, [step for step in steps if step.kind is StepKind.MODEL], events, **more)

    with patch.object(SqliteAttempts, "journal_if_held", journal):
        yield


@contextmanager
def _writes_calls_late() -> Iterator[None]:
    """The model's response is written together with the first result of it: a call begins unknown."""
    real = SqliteAttempts.journal_if_held
    kept: dict[str, list[Step]] = {}

    async def journal(
        self: Any, hold: Hold, steps: Sequence[Step], events: Sequence[Event], **more: Any
    ) -> bool:
        own = kept.setdefault(hold.attempt, [])
        own += steps
        if own[-1].kind is StepKind.MODEL:
            return await real(self, hold, (), events, **more)
        written, own[:] = own[:], []
        return await real(self, hold, written, events, **more)

    with patch.object(SqliteAttempts, "journal_if_held", journal):
        yield


@contextmanager
def _changes_keys() -> Iterator[None]:
    real = Stage.place_of
    with patch.object(Stage, "place_of", lambda self, call: f"{os.getpid()}:{real(self, call)}"):
        yield


@contextmanager
def _adopts_nothing() -> Iterator[None]:
    with patch.object(flow_recovery, "recover", lambda *args, **more: TryAgain(False, "from its input")):
        yield


DEFECTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "every open call is repeated": lambda: _repeats(OnUnknown.REPEAT),
    "no open call is repeated": lambda: _repeats(OnUnknown.FAIL),
    "results are not journaled": _loses_results,
    "a call is journaled with its result only": _writes_calls_late,
    "each process has keys of its own": _changes_keys,
    "finished steps are not adopted": _adopts_nothing,
}
