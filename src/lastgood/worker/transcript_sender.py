"""Sends what a run does to the server: numbered, in batches, until it is acknowledged, in bounded memory.

The transcript is for people. If the server is away for long, the oldest messages that wait give way to a note
that says how many: a run is never held up by its transcript.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from lastgood.worker.job import Activity, ActivityType

#: Sends a batch and returns the last acknowledged number; None: the claim is not ours any more.
Send = Callable[[Sequence[dict[str, Any]]], Awaitable[int | None]]

MAX_MESSAGE_BYTES = 60_000
_BATCH_MESSAGES = 100
_BATCH_BYTES = 512 * 1024
_WAITING_BYTES = 4 * 1024 * 1024
_CUT = " … [cut]"


class TranscriptSender:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()  # with their sizes
        self._bytes = 0
        self._dropped = 0
        self._seq = 0
        self._sent = 0  # the last number that was sent, acknowledged or not
        self._changed = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, activity: Activity) -> None:
        self._seq += 1
        self._append({"seq": self._seq, **message_of(activity)})
        while self._bytes > _WAITING_BYTES:
            size, message = self._waiting.popleft()
            self._bytes -= size
            self._dropped += message["seq"] > self._sent  # one that is being sent is not left out
        self._empty.clear()
        self._changed.set()

    async def run(self) -> None:
        """Until it is cancelled, or the claim is lost."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                batch, reported = self._batch(), self._dropped
                self._sent = batch[-1]["seq"]
                acked = await self._send(batch)
                if acked is None:
                    return
                self._dropped -= reported
                self._forget(acked)
            self._empty.set()

    async def flush(self, seconds: float) -> int:
        """Waits until everything is acknowledged. Returns how many messages are still waiting."""
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            return len(self._waiting)
        return 0

    def _append(self, message: dict[str, Any]) -> None:
        size = len(orjson.dumps(message))
        self._waiting.append((size, message))
        self._bytes += size

    def _batch(self) -> list[dict[str, Any]]:
        batch: list[dict[str, Any]] = []
        if self._dropped:
            # It takes the number of the last message that is missing, so the order stays.
            number = self._waiting[0][1]["seq"] - 1
            text = f"{self._dropped} messages were left out: the server was unreachable for too long"
            batch.append({"seq": number, "type": ActivityType.ERROR.value, "content": text})
        size = 0
        for one, message in self._waiting:
            size += one
            if batch and (size > _BATCH_BYTES or len(batch) >= _BATCH_MESSAGES):
                break
            batch.append(message)
        return batch

    def _forget(self, acked: int) -> None:
        while self._waiting and self._waiting[0][1]["seq"] <= acked:
            size, _ = self._waiting.popleft()
            self._bytes -= size


def message_of(activity: Activity) -> dict[str, Any]:
    """Without empty fields, and each field within the server's limit."""
    message: dict[str, Any] = {"type": activity.type.value}
    for name in ("content", "tool", "call", "output"):
        if text := getattr(activity, name):
            message[name] = cut(text)
    if activity.input is not None:
        shown = orjson.dumps(activity.input, default=str)
        is_small = len(shown) <= MAX_MESSAGE_BYTES
        message["input"] = activity.input if is_small else cut(shown.decode(errors="replace"))
    return message


def cut(text: str, limit: int = MAX_MESSAGE_BYTES) -> str:
    """Lone surrogates become question marks: no encoder accepts them."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode()
    return data[: limit - len(_CUT.encode())].decode(errors="ignore") + _CUT
