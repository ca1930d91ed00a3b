"""Ends CLIs that a killed worker has left behind: they would work in the same directory as the next run.

Every CLI inherits a variable that names the worker's root. The holder of the root's lock is its only worker,
so every other process with that variable is an orphan. Knows /proc only: elsewhere it finds nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

VARIABLE = "STARTED_BY_WORKER"


def end_orphans(root: Path) -> int:
    """Returns how many processes were found."""
    wanted = f"{VARIABLE}={root}".encode()
    found = 0
    for entry in Path("/proc").glob("[0-9]*") if Path("/proc/self/environ").exists() else ():
        pid = int(entry.name)
        # Gone, or somebody else's.
        with contextlib.suppress(OSError):
            if pid != os.getpid() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(pid, signal.SIGKILL)
                found += 1
    return found
