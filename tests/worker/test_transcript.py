"""The transcript of a run: numbered, in batches, acknowledged, and in bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from lastgood.worker.job import Activity, ActivityType
from lastgood.worker.progress import ProgressWatch
from lastgood.worker.transcript_sender import MAX_MESSAGE_BYTES, TranscriptSender, cut, message_of

pytestmark = pytest.mark.anyio


def text(content: str) -> Activity:
    return Activity(ActivityType.TEXT, content)


class Receiver:
    """Acknowledges what it has while it is there."""

    def __init__(self) -> None:
        self.batches: list[list[dict[str, Any]]] = []
        self.there = asyncio.Event()

    async def __call__(self, messages: Sequence[dict[str, Any]]) -> int | None:
        await self.there.wait()
        self.batches.append(list(messages))
        return int(messages[-1]["seq"])

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [message for batch in self.batches for message in batch]


async def sent(receiver: Receiver, activities: Sequence[Activity]) -> list[dict[str, Any]]:
    """Everything is added while the server is away."""
    sender = TranscriptSender(receiver)
    running = asyncio.create_task(sender.run())
    for activity in activities:
        sender.add(activity)
        await asyncio.sleep(0)
    receiver.there.set()
    assert await sender.flush(30) == 0
    running.cancel()
    return receiver.messages


async def test_messages_are_numbered_and_sent_once_in_order() -> None:
    receiver = Receiver()
    messages = await sent(receiver, [text(str(number)) for number in range(250)])
    assert [(one["seq"], one["content"]) for one in messages] == [(n + 1, str(n)) for n in range(250)]
    assert max(len(batch) for batch in receiver.batches) <= 100


async def test_while_the_server_is_away_memory_is_bounded_and_the_gap_is_said() -> None:
    messages = await sent(Receiver(), [text("x" * 50_000) for _ in range(300)])
    assert sum(len(orjson.dumps(one)) for one in messages) < 6 * 1024 * 1024
    (gap,) = [one for one in messages if one["type"] == "error"]
    left_out = int(gap["content"].split()[0])
    assert left_out + len(messages) - 1 == 300
    numbers = [one["seq"] for one in messages]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 300


async def test_what_was_not_acknowledged_in_time_is_counted() -> None:
    sender = TranscriptSender(Receiver())
    running = asyncio.create_task(sender.run())
    sender.add(text("a"))
    assert await sender.flush(0.01) == 1
    running.cancel()


async def test_a_lost_claim_ends_the_sending() -> None:
    async def refuse(_: Sequence[dict[str, Any]]) -> int | None:
        return None

    sender = TranscriptSender(refuse)
    sender.add(text("a"))
    await asyncio.wait_for(sender.run(), 10)


def test_long_fields_are_cut_with_a_mark() -> None:
    message = message_of(
        Activity(ActivityType.TOOL_USE, tool="t", input={"a": "ü" * 100_000}, output="é" * 90_000)
    )
    assert message["output"].endswith("[cut]")
    assert len(message["output"].encode()) <= MAX_MESSAGE_BYTES
    assert len(orjson.dumps(message["input"])) <= 2 * MAX_MESSAGE_BYTES
    assert cut("\ud800 half") == "? half"


def test_bytes_are_no_progress_and_waiting_is_no_lack_of_it() -> None:
    watch = ProgressWatch(0.0, 10.0)
    for second in range(1, 12):
        watch.saw(text("retrying"), float(second))
    assert watch.is_stuck(11.5)
    watch.saw(text("something new"), 12.0)
    assert not watch.is_stuck(13.0)
    watch.excuse(100.0)
    assert not watch.is_stuck(109.0)
    assert not ProgressWatch(0.0, 0.0).is_stuck(1e9)
