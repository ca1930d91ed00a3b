"""Checksums of stored rows that reach prompts and are not part of a hash chain.

A journaled step, a stored request and an entry of the queue are read back after a crash and shown to a
model. Their checksum is written with them and compared whenever they are read.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any

SIZE = 16

_NONE = b"n" + (0).to_bytes(8)
_TRUE = b"b" + (1).to_bytes(8) + b"1"
_FALSE = b"b" + (1).to_bytes(8) + b"0"
_NUMBER = b"d" + (8).to_bytes(8)

#: What is covered of each table. A column that is not here changes after its row was written, or is read by
#: nobody who builds a prompt; tests/contract/test_check.py has the reason for each.
STEP = ("session", "kind", "input_tokens", "output_tokens", "cost", "body")
REQUEST = (
    "turn",
    "tenant",
    "session",
    "kind",
    "key",
    "fingerprint",
    "caller",
    "user",
    "override",
    "asked_agent_key",
    "after",
    "replaces",
    "expects",
    "options",
    "on_leave",
    "durable",
)
QUEUED = (
    "tenant",
    "session",
    "turn",
    "key",
    "fingerprint",
    "caller",
    "user",
    "model",
    "agent_key",
    "input",
)


def step_checksum(row: Mapping[str, Any]) -> bytes:
    return checksum(row[name] for name in STEP)


def request_checksum(row: Mapping[str, Any]) -> bytes:
    """In two halves: a commit takes the input out of a request, and the rest must still be verifiable."""
    facts = checksum(_flag(row[name]) if name == "durable" else row[name] for name in REQUEST)
    return facts if row["input"] is None else facts + checksum([row["input"]])


def _flag(value: Any) -> Any:
    """SQLite has no booleans; 2 is not a valid one."""
    return bool(value) if value in (0, 1) else value


def is_request_whole(row: Mapping[str, Any], stored: bytes) -> bool:
    return stored[:SIZE] == request_checksum(row) if row["input"] is None else stored == request_checksum(row)


def queued_checksum(row: Mapping[str, Any]) -> bytes:
    return checksum(row[name] for name in QUEUED)


def checksum(values: Iterable[Any]) -> bytes:
    """Each value has its type and its length before it, so no two rows are the same bytes."""
    return hashlib.blake2b(b"".join(map(_plain, values)), digest_size=SIZE).digest()


def _plain(value: Any) -> bytes:
    if value is None:
        return _NONE
    if isinstance(value, str):
        plain = value.encode("utf-8", "surrogatepass")
        return b"s" + len(plain).to_bytes(8) + plain
    if isinstance(value, bytes):
        return b"x" + len(value).to_bytes(8) + value
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, int | float):
        # A database may return 5.0 for 5, and 0.0 for -0.0.
        return _NUMBER + struct.pack(">d", value + 0.0)
    raise TypeError(f"no checksum of {type(value).__name__}")
