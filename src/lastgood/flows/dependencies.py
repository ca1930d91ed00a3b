"""The dependencies of every flow."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.flows.history_cache import HistoryCache
from lastgood.flows.quotas import Quotas
from lastgood.flows.signals import Signals
from lastgood.ports import Clock, Ids, Store
from lastgood.ports.engine import Agents, Engine


@dataclass(frozen=True, slots=True)
class FlowLimits:
    lease_seconds: float = 15.0  # on a store that several processes share
    heartbeat_seconds: float = 5.0
    wedged_seconds: float = 60.0  # an event loop that was blocked this long loses its leases
    sweep_seconds: float = 5.0
    idle_seconds: float = 300.0  # without output from the model or a tool
    turn_seconds: float = 3600.0
    grace_seconds: float = 30.0  # how long an orphan is kept
    stop_seconds: float = 5.0  # how long a cancelled tool may take to stop
    title_seconds: float = 30.0
    tick_seconds: float = 0.03  # events of a stream are stored at most this often
    poll_seconds: float = 0.25  # how often a watcher polls; signals are only hints
    input_bytes: int = 8 * 1024 * 1024
    event_seconds: float = 3600.0  # how long events are kept after their attempt has ended
    key_seconds: float = 48 * 3600.0  # how long a settled idempotency key is remembered

    @property
    def lease_stop_seconds(self) -> float:
        """How long after the last renewal a run stops by itself: its tools can end before the lease does."""
        return self.lease_seconds - min(self.stop_seconds, self.lease_seconds / 3)

    @property
    def outage_seconds(self) -> float:
        """How long an attempt waits for a store that does not answer, on a store without leases, too."""
        return self.lease_stop_seconds


@dataclass(frozen=True, slots=True)
class Dependencies:
    store: Store
    engine: Engine
    agents: Agents
    clock: Clock
    ids: Ids
    node: str
    histories: HistoryCache
    signals: Signals
    quotas: Quotas
    limits: FlowLimits = FlowLimits()
