"""Kills the MCP servers of a process that was killed itself.

A server should exit when its input ends, and some do not. So one small process waits for the end of a pipe
that only we hold, and kills the groups that are left then. It ignores the signals of a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib

#: For servers that do exit by themselves, to store what they have.
GRACE_SECONDS = 2

_WATCH = """
trap '' TERM INT HUP
groups=' '
while read -r sign group; do
  case $sign in
    +) groups="$groups$group " ;;
    -) groups="${groups%% $group *} ${groups#* $group }" ;;
  esac
done
sleep "$1"
for group in $groups; do kill -9 "-$group"; done
"""


class OrphanGuard:
    """Process groups are named by the pid of their first process."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._watcher: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    async def add(self, group: int) -> None:
        async with self._starting:
            self._groups.add(group)
            if self._watcher is None or self._watcher.returncode is not None:
                self._watcher = await asyncio.create_subprocess_exec(
                    *("/bin/sh", "-c", _WATCH, "sh", str(GRACE_SECONDS)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                    env={"PATH": "/usr/bin:/bin"},
                )
                self._tell(*(f"+ {one}" for one in self._groups))
            else:
                self._tell(f"+ {group}")

    def remove(self, group: int) -> None:
        """Before its number can be another process's."""
        if group in self._groups:
            self._groups.remove(group)
            self._tell(f"- {group}")

    def _tell(self, *lines: str) -> None:
        if self._watcher is not None and self._watcher.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._watcher.stdin.write("".join(f"{line}\n" for line in lines).encode())

    async def close(self) -> None:
        """When no server is left."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None and watcher.returncode is None:
            watcher.kill()
            await watcher.wait()
