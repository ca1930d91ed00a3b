"""Decides which of the agents served now a session means.

A session records the source key it ran on. For a URL agent that key holds the whole query, so a relaunch with
another tag makes the recorded key disappear. The rule: an exact match wins; else the one live source with the
same stable identity; else a refusal that names what it found. It never guesses, and never depends on what is
loaded: the answer is the same before and after a restart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus, urlsplit

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Exact:
    key: str

    @property
    def reason(self) -> str:
        return "the recorded source is served"


@dataclass(frozen=True, slots=True)
class Stable:
    key: str
    recorded: str

    @property
    def reason(self) -> str:
        return "the recorded source is not served; exactly one served source differs only in its query string"


@dataclass(frozen=True, slots=True)
class Ambiguous:
    recorded: str
    candidates: tuple[str, ...]

    @property
    def reason(self) -> str:
        return "several served sources differ from the recorded one only in their query string: " + ", ".join(
            self.candidates
        )


@dataclass(frozen=True, slots=True)
class Missing:
    recorded: str

    @property
    def reason(self) -> str:
        return f"no served source matches {self.recorded!r}"


Resolution = Exact | Stable | Ambiguous | Missing


def stable_identity(key: str) -> str:
    """What stays of a key when the volatile part is gone. Only URLs have one: their query and fragment."""
    if _BAD_ESCAPE.search(key):
        return key
    try:
        url = urlsplit(unquote_plus(key, errors="strict"))
        host = url.hostname
        port = url.port
    except ValueError:  # also UnicodeDecodeError: the escapes are no text
        return key
    if url.scheme not in ("http", "https") or not host:
        return key
    where = f"[{host}]" if ":" in host else host
    return f"{url.scheme}://{where}{'' if port is None else f':{port}'}{url.path}"


def resolve(recorded: str, served: Iterable[str]) -> Resolution:
    keys = tuple(dict.fromkeys(served))
    if recorded in keys:
        return Exact(recorded)
    identity = stable_identity(recorded)
    alike = tuple(sorted(key for key in keys if stable_identity(key) == identity))
    if not alike:
        return Missing(recorded)
    if len(alike) > 1:
        return Ambiguous(recorded, alike)
    return Stable(alike[0], recorded)


def as_record(resolution: Resolution) -> dict[str, Any]:
    """The decision as it is stored with the attempt and shown to people."""
    record: dict[str, Any] = {"agent": type(resolution).__name__.lower(), "reason": resolution.reason}
    match resolution:
        case Exact(key):
            record["key"] = key
        case Stable(key, recorded):
            record |= {"key": key, "recorded": recorded}
        case Ambiguous(recorded, candidates):
            record |= {"recorded": recorded, "candidates": list(candidates)}
        case _:
            record["recorded"] = resolution.recorded
    return record
