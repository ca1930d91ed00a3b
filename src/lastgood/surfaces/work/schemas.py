"""Request bodies of the work API. Fields that this version does not know are ignored: workers and servers one
release apart work together."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from lastgood.surfaces.http.body_parser import Body

MOST_RUNTIMES = 50
MOST_CLAIMS = 16
MOST_LIVE = 200
MOST_MESSAGES = 500
MOST_STEERS = 1000


def _absent_if_empty(given: Any) -> Any:
    """Some clients cannot leave a string out; an empty one says the same."""
    return None if given == "" else given


Id = Annotated[str, Field(min_length=1, max_length=255)]
Word = Annotated[str, Field(min_length=1, max_length=100)]
Short = Annotated[str, Field(max_length=500)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Key = Annotated[str, Field(min_length=1, max_length=2048)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]
NativeSession = Annotated[str, Field(min_length=1, max_length=1000)]
OptionalId = Annotated[Id | None, BeforeValidator(_absent_if_empty)]
OptionalPath = Annotated[Path | None, BeforeValidator(_absent_if_empty)]
OptionalNativeSession = Annotated[NativeSession | None, BeforeValidator(_absent_if_empty)]
Seconds = Annotated[float, Field(ge=0, le=10_000_000)]
Count = Annotated[int, Field(ge=0, le=2**53)]


# -- workers -------------------------------------------------------------------------------


class RuntimeBody(Body):
    name: Name
    provider: Word
    profile: Short | None = None
    account: Short | None = None
    format: Short | None = None
    cli_version: Short | None = None
    steerable: bool | None = None
    enforces: Word | None = Field(
        default=None, description="`all` or `none`: which permissions it can enforce on its CLI"
    )


class RegisterBody(Body):
    worker_id: Word
    name: Name | None = None
    instance: Id | None = None
    version: Short | None = None
    protocol: Count | None = Field(default=None, description="Version of the work API; 1 if absent")
    runtimes: list[RuntimeBody] = Field(min_length=1, max_length=MOST_RUNTIMES)


class LiveBody(Body):
    task_id: Id
    claim_token: Id
    why: Short | None = Field(default=None, description="Why its run has not started yet")


class HeartbeatBody(Body):
    worker_id: Word
    epoch: Count | None = None
    runtime_ids: list[Id] = Field(max_length=MOST_RUNTIMES)
    live: list[LiveBody] | None = Field(default=None, max_length=MOST_LIVE)
    status: Short | None = None


class DeregisterBody(Body):
    worker_id: Word
    epoch: Count | None = None


class ClaimBody(Body):
    worker_id: Word
    epoch: Count | None = None
    runtime_ids: list[Id] = Field(min_length=1, max_length=MOST_RUNTIMES)
    max_tasks: Annotated[int, Field(ge=1)] | None = None  # fewer may be given
    wait_seconds: Seconds | None = None
    status: Short | None = None


# -- reports -------------------------------------------------------------------------------


class ReportBody(Body):
    claim_token: Id


class PinBody(ReportBody):
    native_session: NativeSession
    work_dir: OptionalPath = None


class MessageBody(Body):
    seq: Annotated[int, Field(ge=1, le=2**53)]
    type: Word
    content: str | None = None
    tool: str | None = None
    call: str | None = None
    input: Any = None
    output: str | None = None


class MessagesBody(ReportBody):
    messages: list[MessageBody] = Field(max_length=MOST_MESSAGES)
    delivered: list[Count] | None = Field(default=None, max_length=MOST_STEERS)


class UsageFields(Body):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cost: Annotated[float, Field(ge=0, le=1e9)] | None = None


class UsageBody(ReportBody):
    usage: UsageFields
    model: Short | None = None


class QuestionBody(Body):
    id: Id
    tool: Short | None = None
    input: Any = None
    title: Short | None = None
    name: Short | None = Field(default=None, description="Name of the tool in Lastgood")
    renamed: dict[str, str] | None = Field(default=None, description="Its arguments, by the CLI's names")
    effect: Short | None = Field(default=None, description="`safe`, `destructive` or `unknown`")
    deadline_seconds: Seconds | None = None


class AskBody(ReportBody):
    question: QuestionBody


class SnapshotBody(ReportBody):
    kind: Word
    summary: dict[str, Any] | None = None
    body: str = Field(description="base64")


class CompleteBody(ReportBody):
    output: str
    native_session: OptionalNativeSession = None
    work_dir: OptionalPath = None
    usage: UsageFields | None = None
    model: Short | None = None
    retired_session: OptionalNativeSession = None
    disclosure: Annotated[str, Field(max_length=4000)] | None = None
    cli_version: Short | None = None
    delivered: list[Count] | None = Field(default=None, max_length=MOST_STEERS)


class FailBody(ReportBody):
    code: Word
    error: str
    native_session: OptionalNativeSession = None
    work_dir: OptionalPath = None
    retired_session: OptionalNativeSession = None
    resume_failed: bool | None = None
    tool_calls: Count | None = None
    retry_after_seconds: Seconds | None = None
    cli_version: Short | None = None


class EnrollBody(Body):
    code: Id
    name: Name


# -- users ---------------------------------------------------------------------------------


class ScopeBody(Body):
    kind: Literal["issue", "chat"]
    id: Id


class NewTaskBody(Body):
    agent: Key
    scope: ScopeBody
    prompt: str = Field(min_length=1)
    runtime: OptionalId = None
    working_dir: OptionalPath = None
    priority: int | None = None
    fresh: bool | None = None
    rerun_of: OptionalId = None
    note: Annotated[str, Field(max_length=4000)] | None = None


class RerunBody(Body):
    runtime: OptionalId = None
    fresh: bool | None = None
    note: Annotated[str, Field(max_length=4000)] | None = None
    priority: int | None = None


class ContinueTaskBody(Body):
    all: bool | None = None


class AnswerBody(Body):
    allowed: bool
    reason: Annotated[str, Field(max_length=4000)] | None = None


class BindBody(Body):
    """`runtime_id: null` removes the binding."""

    runtime_id: Id | None
    queued: Literal["keep", "move"] | None = None
    offline: Literal["wait", "fail"] | None = None
    max_wait_seconds: Annotated[float, Field(gt=0, le=30 * 86400)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0, le=30 * 86400)] | None = None
    max_running: Annotated[int, Field(ge=1, le=10_000)] | None = None
    published: bool | None = None
    on_agent_change: Literal["disclose", "replay", "fresh"] | None = None
    on_dirty: Literal["disclose", "replay"] | None = None


class PinRuntimeBody(Body):
    runtime_id: Id | None
    queued: Literal["keep", "move"] | None = None


class ShareBody(Body):
    shared_with: list[Name]


class RetireBody(Body):
    native_session: NativeSession
    agent: Key
    runtime: OptionalId = None


class EnrollmentBody(Body):
    worker_id: Word | None = None
    ttl_seconds: Seconds | None = None


class TokenBody(Body):
    name: Name
    scopes: list[Word] = Field(min_length=1, max_length=10)
    user: Name | None = None
    worker_id: Word | None = None
    expires_in_seconds: Seconds | None = None
