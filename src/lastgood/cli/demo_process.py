"""A `lastgood` process of the demo, with an environment and a log file of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


class DemoProcess:
    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def has_exited(self) -> bool:
        return self._process is None or self._process.returncode is not None

    @property
    def last_words(self) -> str:
        return " ".join(self._log.read_text().strip().splitlines()[-1:])

    async def start(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LASTGOOD_")}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lastgood", *words),
                env=clean | dict(variables),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for the demo, which ends its processes itself.
                start_new_session=True,
            )

    async def end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(number)
            await process.wait()
