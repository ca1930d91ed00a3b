"""The hash of a turn, implemented a second time from docs/guarantees.md: no rule proves itself right."""

import hashlib
import json
import struct
from collections.abc import Mapping
from typing import Any

from lastgood.model.messages import encode, from_json
from lastgood.model.sessions import Turn


def _sized(field: bytes) -> bytes:
    return struct.pack(">Q", len(field)) + field


def turn_hash(before: bytes, plain: Mapping[str, Any], body: bytes) -> bytes:
    """Of a turn as it is exported."""
    names = ("id", "kind", "attempt", "agent_key", "agent_digest", "model", "user")
    usage = plain["usage"]
    counts = (plain["seq"], plain["inputs"], usage["input_tokens"], usage["output_tokens"])
    decision = json.dumps(plain["decision"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    facts = [
        before,
        *(str(plain[name]).encode() for name in names),
        " ".join(map(str, counts)).encode(),
        struct.pack(">d", usage["cost"]) + struct.pack(">d", plain["created_at"]),
        decision.encode(),
    ]
    whole = _sized(b"".join(map(_sized, facts))) + _sized(body)
    return b"\x01" + hashlib.sha256(whole).digest()


def exported_hash(before: bytes, plain: Mapping[str, Any]) -> bytes:
    return turn_hash(before, plain, encode([from_json(message) for message in plain["messages"]]))


def hash_after(before: bytes, turn: Turn) -> bytes:
    usage = turn.usage
    counted = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cost": usage.cost,
    }
    plain = {name: getattr(turn, name) for name in Turn.__dataclass_fields__} | {"usage": counted}
    return turn_hash(before, plain, turn.body)
