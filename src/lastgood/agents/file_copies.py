"""The last good version of an agent file, kept on disk so that a restart does not lose it.

A copy holds the file and what its definition read from beside it. Knows no agents: the bytes go through
the parser again, as if they came from the file.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson


@dataclass(frozen=True, slots=True)
class FileCopy:
    """`beside`: what was read next to the file, by name; None: there was no such file."""

    body: bytes
    beside: Mapping[str, bytes | None]
    saved_at: float

    def says_the_same(self, other: FileCopy | None) -> bool:
        return other is not None and (self.body, self.beside) == (other.body, other.beside)


class FileCopies:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _place(self, file: Path) -> Path:
        return self._folder / hashlib.sha256(os.fsencode(file.absolute())).hexdigest()

    def read(self, file: Path) -> FileCopy | None:
        """Returns None if there is no copy or it is damaged."""
        try:
            digest, _, kept = self._place(file).read_bytes().partition(b"\n")
            if digest != _digest(kept):
                return None
            plain = orjson.loads(kept)
            beside = {name: None if text is None else _bytes(text) for name, text in plain["beside"].items()}
            return FileCopy(_bytes(plain["body"]), beside, float(plain["saved_at"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, file: Path, copy: FileCopy) -> None:
        """Written atomically. If the write fails, the copy is missing after the next restart; no turn
        fails."""
        beside = {name: None if body is None else _text(body) for name, body in copy.beside.items()}
        kept = orjson.dumps({"body": _text(copy.body), "beside": beside, "saved_at": copy.saved_at})
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(_digest(kept) + b"\n" + kept)
                    stream.flush()
                    os.fsync(handle)
                os.replace(name, self._place(file))
            except BaseException:
                os.unlink(name)
                raise

    def remove(self, file: Path) -> None:
        with suppress(OSError):
            self._place(file).unlink()


def _digest(kept: bytes) -> bytes:
    return hashlib.sha256(kept).hexdigest().encode()


def _text(body: bytes) -> str:
    """One character per byte: what is kept need not be UTF-8."""
    return body.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
