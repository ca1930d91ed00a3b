"""A world's log on disk, for processes that are killed.

Each entry is one write that starts a new line: one that was torn by a kill spoils
itself alone, and is as good as never written.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from tests.faults.world import ClientCall, World


class ClientLog:
    def __init__(self, path: Path) -> None:
        self._path = path

    def keep(self, world: World) -> None:
        """From now on everything that `world` sees is also written here."""
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

        def write(kind: str, entry: dict[str, Any]) -> None:
            os.write(file, b"\n" + orjson.dumps([kind, entry]))

        def received(one: ClientCall) -> None:
            place = next(number for number, entry in enumerate(world.log) if entry is one)
            write("call", {"by": f"{os.getpid()} {place}", **asdict(one)})

        world.on_prompt = lambda record: write("prompt", record)
        world.on_effect = lambda line: write("effect", line)
        world.on_call = received

    def read(self, world: World) -> None:
        """What dead processes saw. What they had no answer to, has an unknown one."""
        calls: dict[str, ClientCall] = {}
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            try:
                kind, entry = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if kind == "prompt":
                world.prompts.append(entry)
            elif kind == "effect":
                world.ledger.append(entry)
            else:
                by = entry.pop("by")
                entry["texts"] = tuple(entry["texts"])
                entry["events"] = [tuple(event) for event in entry["events"]]
                calls[by] = ClientCall(**entry)
        for received in calls.values():
            received.outcome = received.outcome or "unknown"
        world.log = [*calls.values(), *world.log]
