"""Cuts a stream of bytes into lines, whatever pieces it comes in. Knows nothing of what they say."""

from __future__ import annotations

from lastgood.errors import ModelGarbled


class LineSplitter:
    """Holds at most one unfinished line, and of that at most `limit` bytes."""

    __slots__ = ("_held", "_limit", "_size")

    def __init__(self, limit: int) -> None:
        self._held: list[bytes] = []
        self._size = 0
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends. A carriage return stays; JSON does not mind."""
        lines = data.split(b"\n")
        rest = lines.pop()
        if lines and self._held:
            self._held.append(lines[0])
            lines[0] = b"".join(self._held)
            self._held.clear()
            self._size = 0
        if rest:
            # Kept in pieces: joining at every piece would make a long line in small packets cost its square.
            self._held.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                raise ModelGarbled(f"the response has a line of more than {self._limit} bytes")
        return lines

    def rest(self) -> bytes:
        """What has no end yet."""
        return b"".join(self._held)
