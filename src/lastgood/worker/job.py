"""What a runtime kind is given, what it reports, and how it ends.

A kind drives a CLI. It knows no server and no claim: it gets a job, reports what happens while it runs, and
returns the result or raises JobFailed. The caller decides about deadlines and cancels the call; a kind
that is cancelled ends its whole process group before it returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from lastgood.model.agents import Safety


class FailureCode(StrEnum):
    """Why a job failed. Whether the task is tried again depends on the code alone."""

    NOT_STARTED = "not_started"  # the CLI is missing, or could not be started
    RESUME_FAILED = "resume_failed"  # the native session could not be resumed
    RATE_LIMITED = "rate_limited"  # by the model's provider
    MODEL_ERROR = "model_error"  # the model's provider refused or failed
    CLI_FAILED = "cli_failed"  # the CLI reported a failure, or exited with an error
    CLI_PROTOCOL = "cli_protocol"  # it exited without a success that its kind recognises
    TIMEOUT = "timeout"  # no progress, or past the deadline
    UNENFORCEABLE = "unenforceable"  # the kind cannot enforce the permissions of this job


class ActivityType(StrEnum):
    TEXT = "text"
    THINKING = "thinking"
    TOOL_USE = "tool_use"
    TOOL_RESULT = "tool_result"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Activity:
    """One thing that happened in a run, for people. `call` joins a tool's use with its result."""

    type: ActivityType
    content: str = ""
    tool: str = ""
    call: str = ""
    input: Any = None
    output: str = ""


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a transcript."""

    role: str  # user or assistant
    content: str


SafetyMode = Safety


@dataclass(frozen=True, slots=True)
class JobPermissions:
    """What a run may do, by rules as in an agent file: deny wins, then allow, then ask, then the mode.

    `ceiling` is the worker's own mode. It is judged apart from the rest: no rule and no mode of the server's
    allows what it denies or asks about.
    """

    mode: SafetyMode = SafetyMode.BALANCED
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ceiling: SafetyMode = SafetyMode.AUTONOMOUS


@dataclass(frozen=True, slots=True)
class JobMcpServer:
    """A server that the CLI connects to: it starts `command`, or else reaches `url`.

    `tools`: the only ones that may be called; None: all. `prefix` comes before their names in rules.
    """

    name: str
    prefix: str = ""
    tools: tuple[str, ...] | None = None
    command: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""  # below that of the job
    url: str = ""
    transport: str = "streamable"  # or sse
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """With `native_session`: resume it; `catch_up` is what it missed. Without: `transcript` is what was said
    so far, and an empty one is a fresh start. `disclosures` are facts the model must know before the prompt.

    A job with both is resumed. If its native session is gone and no tool was called, a kind starts once more,
    fresh, with the transcript, and its result says so; without a transcript it raises RESUME_FAILED.
    """

    prompt: str
    work_dir: Path
    native_session: str | None = None
    transcript: tuple[Said, ...] = ()
    catch_up: tuple[Said, ...] = ()
    disclosures: tuple[str, ...] = ()
    instruction: str = ""  # of the agent's definition
    model: str | None = None
    effort: str | None = None  # how much the model is to reason
    environment: Mapping[str, str] = field(default_factory=dict)  # all that the CLI sees
    permissions: JobPermissions = JobPermissions()
    mcp_servers: tuple[JobMcpServer, ...] = ()


@dataclass(frozen=True, slots=True)
class JobUsage:
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class JobResult:
    """The turn succeeded. `disclosure`: a resume that turned out fresh, for instance."""

    output: str
    native_session: str | None
    usage: JobUsage = JobUsage()
    cli_version: str = ""  # ends with "(untested)" if the kind was not tested with it
    retired_session: str | None = None  # a native session that must not be resumed again
    disclosure: str = ""


@dataclass(slots=True, eq=False)
class JobFailed(Exception):
    """`retry_after_seconds` is of a rate limit. After no `tool_calls` a retry repeats no effect."""

    code: FailureCode
    message: str
    native_session: str | None = None
    retired_session: str | None = None
    retry_after_seconds: float | None = None
    tool_calls: int = 0
    cli_version: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True, slots=True)
class JobQuestion:
    """A tool call that needs a person. `id` is stable: repeated after a restart, it is the same question."""

    id: str
    tool: str
    input: Any
    title: str = ""
    name: str = ""  # of the tool in Lastgood, if it has one; `renamed` are its arguments
    renamed: Mapping[str, str] = field(default_factory=dict)
    effect: str = ""


@dataclass(frozen=True, slots=True)
class JobAnswer:
    allowed: bool
    reason: str = ""


class Reporter(Protocol):
    async def pin(self, native_session: str) -> None:
        """The native session's id, as soon as the CLI has said it."""
        ...

    async def activity(self, activity: Activity) -> None: ...

    async def ask(self, question: JobQuestion) -> JobAnswer:
        """Returns a person's answer, or a refusal with the reason at the deadline."""
        ...


Deliver = Callable[[str], Awaitable[bool]]


class Steering:
    """Carries messages of a person into a run. The worker sends; the kind accepts while it can deliver."""

    def __init__(self) -> None:
        self._deliver: Deliver | None = None

    async def send(self, text: str) -> bool:
        """Returns False if the run did not take it: not begun, about to end, or of a kind that cannot."""
        return self._deliver is not None and await self._deliver(text)

    @contextlib.contextmanager
    def accepted_by(self, deliver: Deliver) -> Iterator[None]:
        self._deliver = deliver
        try:
            yield
        finally:
            self._deliver = None


class RuntimeKind(Protocol):
    """One per registered runtime. `format` names the CLI's session files: no other format can be resumed."""

    provider: str
    format: str
    can_steer: bool

    async def version(self) -> str | None:
        """Returns the CLI's version; None: it is not installed."""
        ...

    def cannot_enforce(self, permissions: JobPermissions) -> str | None:
        """Returns why this kind cannot enforce them, or None."""
        ...

    async def run(self, job: Job, reporter: Reporter, steering: Steering | None = None) -> JobResult:
        """Raises JobFailed. Cancelled: ends the CLI's process group first."""
        ...
