"""What is left of a process that was killed: the groups that it still had are ended, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.e2e.command import until
from tests.mcp.conftest import alive

pytestmark = pytest.mark.slow

_OWNER = """
import asyncio, os, signal, subprocess
from lastgood.engine.mcp.orphan_guard import OrphanGuard

async def main():
    guard = OrphanGuard()
    pids = [subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True).pid
            for _ in range(3)]
    await asyncio.gather(*map(guard.add, pids))
    guard.remove(4_000_000)
    guard.remove(pids[0])
    guard.remove(pids[1])
    print(*pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_only_groups_that_were_not_removed_are_killed_with_their_owner() -> None:
    ran = subprocess.run([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == -signal.SIGKILL
    *removed, left = map(int, ran.stdout.split())
    try:
        until(lambda: not alive(left))
        assert all(map(alive, removed))  # they come first in the list
    finally:
        for pid in removed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
