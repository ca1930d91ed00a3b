"""What the owner of a machine decides about its worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lastgood.model.agents import Safety
from lastgood.worker.runtimes.runtime_kinds import RuntimeChoice


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    heartbeat_seconds: float = 15.0
    poll_seconds: float = 25.0
    lease_seconds: float = 90.0  # until a claim says otherwise
    flush_seconds: float = 5.0  # for the rest of a transcript, before the final report
    farewell_seconds: float = 10.0  # for undelivered reports, before the process ends
    clean_up_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    server: str
    name: str
    runtimes: tuple[RuntimeChoice, ...]
    root: Path
    slots: int = 1
    allow_dirs: tuple[Path, ...] = ()
    ceiling: Safety = Safety.BALANCED
    pass_env: tuple[str, ...] = ()
    allow_mcp: tuple[str, ...] = ()
    min_free_bytes: int = 1 << 30
    snapshots_allowed_dirs: bool = False
    ca_file: Path | None = None
    drain_seconds: float = 60.0
    idle_seconds: float = 1800.0
    keep_seconds: float = 14 * 86400.0
    times: WorkerTimes = field(default=WorkerTimes())
