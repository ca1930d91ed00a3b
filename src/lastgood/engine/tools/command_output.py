"""The output of a command: how much is kept, and how much is streamed while it runs."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable

HEAD_BYTES = 512 * 1024
TAIL_BYTES = 512 * 1024
#: Shown while it runs, at most; the result has the rest.
STREAM_CHARACTERS = 64 * 1024
STREAM_SECONDS = 0.1


class Capture:
    """The beginning and the end. What lies between is counted and forgotten."""

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.left_out = 0

    def feed(self, data: bytes) -> None:
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes:
            self._cut()

    @property
    def size(self) -> int:
        return len(self._head) + len(self._tail)

    @property
    def is_whole(self) -> bool:
        return not self.left_out

    def copy(self) -> Capture:
        """What has come so far."""
        copied = Capture(self._head_bytes, self._tail_bytes)
        copied._head, copied._tail, copied.left_out = self._head[:], self._tail[:], self.left_out
        return copied

    def clear(self) -> None:
        """Forgets what was kept."""
        self.left_out += self.size
        self._head, self._tail, self._head_bytes = bytearray(), bytearray(), 0

    def _cut(self) -> None:
        surplus = max(len(self._tail) - self._tail_bytes, 0)
        del self._tail[:surplus]
        self.left_out += surplus

    def text(self) -> str:
        self._cut()
        if not self.size:
            return ""
        if not self.left_out:
            return (self._head + self._tail).decode(errors="replace")
        # A character that the cut went through is left out with the rest.
        head = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(bytes(self._head))
        torn = next((at for at, byte in enumerate(self._tail[:4]) if byte & 0xC0 != 0x80), 0)
        tail = self._tail[torn:].decode(errors="replace")
        return f"{head}\n\n[{self.left_out} bytes of output omitted]\n\n{tail}"


class OutputStream:
    """Shows text in pieces, not more often than a person can see, and not more than a limit.

    A key that was handed to the command may be cut in two by a piece's end. So as much as could
    be the beginning of one is held back until more comes.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        say: Callable[[str], None],
        scrub: Callable[[str], str],
        longest_key: int,
    ) -> None:
        self._loop = loop
        self._say = say
        self._scrub = scrub
        self._held = max(longest_key - 1, 0)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text = ""
        self._room = STREAM_CHARACTERS
        self._is_full = False
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, data: bytes) -> None:
        if self._is_full:
            return
        self._text += self._decoder.decode(data)
        self._is_full = len(self._text) > self._room + self._held
        if self._timer is None:
            self._timer = self._loop.call_later(STREAM_SECONDS, self._show, self._held)

    def _show(self, held: int) -> None:
        self._timer = None
        text = self._scrub(self._text)
        known = max(len(text) - held, 0)
        shown, self._text = text[:known], text[known:]
        if self._is_full:
            shown, self._text = f"{shown[: self._room]}\n[the rest of the output is in the result]\n", ""
        self._room -= len(shown)
        if shown:
            self._say(shown)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._text:
            self._show(0)
