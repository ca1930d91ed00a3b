"""Planted defects of edits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from lastgood.model.attempts import TurnRequest
from lastgood.store.rows import to_request
from lastgood.store.sqlite import attempt_reads
from tests.faults.defects import defect, statement

_AT_BEGIN = """SET head = CASE WHEN :edits THEN :after ELSE head END,
    seq = CASE WHEN :edits THEN coalesce((SELECT seq FROM turns WHERE id = :after), 0) ELSE seq END,
    head_hash = CASE WHEN :edits THEN (SELECT hash FROM turns WHERE id = :after) ELSE head_hash END,
    fence"""


@defect("an edit moves the head before its commit")
def _() -> Iterator[None]:
    with statement("hold_session", ("SET fence", _AT_BEGIN)):
        yield


@defect("a chain is read without its segment, so siblings mix")
def _() -> Iterator[None]:
    with statement("read_segment", ("segment = :segment AND ", "")):
        yield


@defect("a branch outlives its session")
def _() -> Iterator[None]:
    with statement("delete_branches", ("WHERE session_id", "WHERE 0 AND session_id")):
        yield


@defect("turns of a branch outlive their session")
def _() -> Iterator[None]:
    with statement("erase_turns", (" UNION SELECT head FROM branches WHERE session_id = :session", "")):
        yield


@defect("recovery forgets which head a turn was asked for")
def _() -> Iterator[None]:
    def forgetful(row: Any) -> TurnRequest:
        request = to_request(row)
        return request if request.edit else replace(request, condition=None)

    with patch.object(attempt_reads, "to_request", forgetful):
        yield
