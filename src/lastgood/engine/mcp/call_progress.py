"""Shows the progress that an MCP server reports during a call, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

#: Of one call. A server may report as often and as much as it likes.
MOST_CHARACTERS = 64 * 1024
MOST_NOTICE_CHARACTERS = 2048


class ProgressNotices:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._left = say, MOST_CHARACTERS

    async def show(self, progress: float, total: float | None, message: str | None) -> None:
        """As the SDK calls it."""
        if self._left <= 0:
            return
        share = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        notice = f"[{share}] {(message or '')[:MOST_NOTICE_CHARACTERS]}".rstrip()
        self._left -= len(notice) + 1
        self._say(notice[:MOST_NOTICE_CHARACTERS] + "\n")
        if self._left <= 0:
            self._say("[the server reports more progress than is shown]\n")
