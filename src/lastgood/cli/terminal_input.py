"""Reads a line from the terminal, and gives up when a signal arrives."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastgood.cli.chat import Interrupts


async def next_line(interrupts: Interrupts, prompt: str) -> str | None:
    """Returns a line from the terminal, or None on Ctrl-D, Ctrl-C or SIGTERM."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    sys.stderr.write(prompt)
    sys.stderr.flush()
    # Not input() on a thread: a thread that waits for a key would outlive Ctrl-C.
    loop.add_reader(sys.stdin.fileno(), ready.set)
    try:
        waits = [asyncio.create_task(event.wait()) for event in (ready, interrupts.asked)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    # A terminal hands over one line at a time.
    line = b"" if interrupts.asked.is_set() else os.read(sys.stdin.fileno(), 65536)
    if not line:
        sys.stderr.write("\n")
        return None
    return line.decode(errors="surrogateescape").rstrip("\n")
