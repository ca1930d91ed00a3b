"""The event loop is held: how long, how often, and by whom."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvloop

from lastgood.surfaces.http import loop_monitor
from lastgood.surfaces.http.loop_monitor import LoopMonitor, mark_request
from tests.polls import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": uvloop.new_event_loop} if request.param == "uvloop" else {}


@pytest.fixture
async def watch() -> AsyncIterator[LoopMonitor]:
    watch = LoopMonitor()
    async with watch.watching():
        yield watch


def hold(seconds: float) -> None:
    """Python code that does not give the loop back."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


async def until_counted(watch: LoopMonitor, stalls: int) -> None:
    async with asyncio.timeout(20):
        while watch.stalls < stalls:
            await asyncio.sleep(0.01)


def held(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if "event loop stalled" in record.message]


async def test_a_stall_is_counted_measured_and_logged_with_its_request(
    watch: LoopMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    is_over = asyncio.Event()

    async def request() -> None:
        mark_request("the-one")
        await asyncio.sleep(0)
        hold(0.6)
        is_over.set()

    async def other() -> None:
        mark_request("another")
        await is_over.wait()

    await asyncio.gather(asyncio.create_task(request()), asyncio.create_task(other()))
    await until_counted(watch, 1)
    assert watch.lag_seconds > 0.5
    (received,) = held(caplog)
    assert received["request_ids"] == ["the-one"]
    assert received["seconds"] > 0.5
    assert received["cpu_seconds"] > 0.1, "it was held by code that ran"
    assert any("hold" in line for line in received["at"])


async def test_a_stall_in_which_nothing_ran_used_no_cpu_time(
    watch: LoopMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    def wait() -> None:
        threading.Event().wait(0.6)  # as for a disk, or for a processor

    asyncio.get_running_loop().call_soon(wait)
    await until_counted(watch, 1)
    (received,) = held(caplog)
    assert received["seconds"] > 0.5
    assert received["cpu_seconds"] < 0.25


async def test_what_a_request_starts_carries_its_id(
    watch: LoopMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[asyncio.Task[None]] = []

    async def run() -> None:
        hold(0.5)

    async def request() -> None:
        mark_request("the-one")
        started.append(asyncio.create_task(run()))

    await asyncio.create_task(request())
    await until_counted(watch, 1)
    assert held(caplog)[0]["request_ids"] == ["the-one"]


async def test_a_stall_that_no_request_made_names_none(
    watch: LoopMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.get_running_loop().call_soon(hold, 0.5)
    await until_counted(watch, 1)
    assert held(caplog)[0]["request_ids"] == []


async def test_short_steps_are_no_stall(watch: LoopMonitor, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        hold(0.02)
        await asyncio.sleep(0)
    due = watch._due
    await eventually(lambda: watch._due > due)  # the timer has measured the last step
    assert held(caplog) == [one for one in held(caplog) if one["seconds"] > 0.25]
    assert watch.stalls == len(held(caplog))


async def test_the_longest_lag_is_forgotten_after_two_periods(
    watch: LoopMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_monitor, "PERIOD_SECONDS", 0.2)
    watch._period_ends = 0.0
    hold(0.8)
    await until_counted(watch, 1)
    assert watch.lag_seconds > 0.6
    async with asyncio.timeout(20):
        while watch.lag_seconds > 0.6:
            await asyncio.sleep(0.01)


async def test_a_stall_keeps_no_frame_alive(watch: LoopMonitor) -> None:
    """A frame holds its variables. One of them was an open cursor, and later reads saw an old snapshot."""

    class Held:
        pass

    def stall() -> weakref.ref[Held]:
        held = Held()
        hold(0.8)
        return weakref.ref(held)

    held = stall()
    await until_counted(watch, 1)
    assert held() is None
