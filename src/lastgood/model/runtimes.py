"""Workers, the runtimes they offer, and which runtime an agent is bound to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lastgood.model.ids import TaskId, TenantId


@dataclass(frozen=True, slots=True)
class RuntimeIdentity:
    """What must be equal for a native session to be resumed: sessions belong to the machine, the CLI and the
    account that made them."""

    id: str  # stable: derived from tenant, worker, provider, profile and account
    worker: str
    provider: str
    account: str = ""
    format: str = ""  # of the CLI's session files; another one cannot be read


class Enforcement(StrEnum):
    """Which permissions a runtime can hold its CLI to."""

    ALL = "all"
    NONE = "none"  # it takes only tasks that restrict nothing
    UNKNOWN = ""  # unknown; the worker itself rejects what it cannot enforce


@dataclass(frozen=True, slots=True)
class NewRuntime:
    identity: RuntimeIdentity
    name: str
    profile: str = ""
    cli_version: str = ""
    steerable: bool = False  # its CLI takes messages while a turn runs
    enforces: Enforcement = Enforcement.UNKNOWN


@dataclass(frozen=True, slots=True)
class Registration:
    """A worker process that starts. Another `instance` of the same worker takes over with a higher epoch."""

    tenant: TenantId
    worker: str
    name: str
    owner: str  # the user whose token it is
    instance: str
    version: str
    runtimes: tuple[NewRuntime, ...]


@dataclass(frozen=True, slots=True)
class Runtime:
    identity: RuntimeIdentity
    tenant: TenantId
    name: str
    profile: str
    owner: str
    shared_with: tuple[str, ...]  # users; "*": every user of the tenant
    cli_version: str
    steerable: bool
    status: str  # of its worker, in its own words: why it claims nothing; empty: it claims
    seen_seconds_ago: float  # by database time; decades if its worker has deregistered
    created_at: float
    removed_at: float | None
    enforces: Enforcement = Enforcement.UNKNOWN

    @property
    def id(self) -> str:
        return self.identity.id


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker that has registered at least once."""

    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Registered:
    epoch: int
    took_over: bool  # from another instance that was there before
    runtimes: tuple[Runtime, ...]  # in the order of the registration


@dataclass(frozen=True, slots=True)
class LiveClaim:
    task: TaskId
    token: bytes  # hashed
    why: str = ""  # it has not started yet


@dataclass(frozen=True, slots=True)
class Heartbeat:
    tenant: TenantId
    worker: str
    epoch: int
    runtimes: tuple[str, ...]
    live: tuple[LiveClaim, ...]
    status: str = ""
    owner: str = ""  # the user whose token it is: only the worker's owner beats, claims and reports for it


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    """`replaced`: another instance has taken over; this one claims no more tasks and finishes its own."""

    renewed: tuple[TaskId, ...] = ()
    lost: tuple[TaskId, ...] = ()
    cancel: tuple[TaskId, ...] = ()
    unknown_runtimes: tuple[str, ...] = ()
    replaced: bool = False


class OnOffline(StrEnum):
    """What a caller gets while the runtime of its agent is offline."""

    WAIT = "wait"
    FAIL = "fail"


class OnQueued(StrEnum):
    """What happens to queued tasks when their agent or session is bound to another runtime."""

    KEEP = "keep"
    MOVE = "move"


class OnAgentChange(StrEnum):
    """What becomes of a native session that ran with another definition of the agent."""

    DISCLOSE = "disclose"  # it is resumed, and the model and people are informed
    REPLAY = "replay"  # a new one starts with the transcript
    FRESH = "fresh"  # a new one starts with nothing, in a new working directory


class OnDirty(StrEnum):
    """What becomes of a native session that holds a prompt whose turn was not committed."""

    DISCLOSE = "disclose"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class AgentBinding:
    tenant: TenantId
    agent_key: str
    runtime: str
    offline: OnOffline = OnOffline.WAIT
    max_wait_seconds: float = 24 * 3600.0
    deadline_seconds: float = 4 * 3600.0  # of one claim
    max_running: int | None = None  # tasks of this agent at once
    published: bool = False  # tokens with the scope `chat` reach it
    bound_by: str = ""
    on_agent_change: OnAgentChange = OnAgentChange.DISCLOSE
    on_dirty: OnDirty = OnDirty.DISCLOSE


@dataclass(frozen=True, slots=True)
class Enrollment:
    """A one-time code that a new machine exchanges for a worker token."""

    tenant: TenantId
    owner: str
    worker: str
    expires_at: float
