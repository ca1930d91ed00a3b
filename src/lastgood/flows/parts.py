"""What every flow is given."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.flows.histories import Histories
from lastgood.flows.signals import Signals
from lastgood.ports import Agents, Clock, Engine, Ids, Store


@dataclass(frozen=True, slots=True)
class Limits:
    lease_seconds: float = 15.0
    heartbeat_seconds: float = 5.0
    sweep_seconds: float = 5.0
    idle_seconds: float = 300.0  # without a sign of life from the model or a tool
    turn_seconds: float = 3600.0
    grace_seconds: float = 30.0  # how long an orphan is kept
    stop_seconds: float = 5.0  # how long a cancelled tool may take to stop
    title_seconds: float = 30.0
    tick_seconds: float = 0.03  # events of a stream are stored at most this often
    poll_seconds: float = 0.25  # how often a watcher looks for itself; signals are only hints
    input_bytes: int = 8 * 1024 * 1024
    event_seconds: float = 3600.0  # how long events are kept after their attempt has ended
    key_seconds: float = 48 * 3600.0  # how long a settled idempotency key is remembered


@dataclass(frozen=True, slots=True)
class Parts:
    store: Store
    engine: Engine
    agents: Agents
    clock: Clock
    ids: Ids
    node: str
    histories: Histories
    signals: Signals
    limits: Limits = Limits()
