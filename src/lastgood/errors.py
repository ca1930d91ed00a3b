"""Every error that Lastgood raises on purpose.

The docstring of an error is its default message: what is wrong, then what to do. Clients may rely on
`code`. The surfaces map errors to HTTP statuses and exit codes.

    LastgoodError
    ├── InvalidRequest       TooLarge (QuotaExceeded), UnsupportedMedia, MethodNotAllowed, ModelUnknown,
    │                        AgentInvalid, IdempotencyMismatch, Unenforceable, WrongUsage
    ├── Unauthorized
    ├── Forbidden
    ├── ShuttingDown
    ├── TooManyRequests      QueueFull
    ├── RuntimeOffline
    ├── NotFound             SessionNotFound, TurnNotFound, AttemptNotFound, AgentNotFound, TaskNotFound,
    │                        RuntimeNotFound
    ├── Conflict             SessionBusy, StaleHead, NothingPending, AttemptLost, StaleClaim,
    │                        RuntimeAmbiguous
    ├── TurnFailed           TurnTimeout, TurnCancelled, TaskDeadline, AgentUnavailable, LoopDetected,
    │   │                    HookBlocked, BudgetExceeded
    │   └── ModelError       KeyRefused, QuotaUsedUp, ProviderRateLimited, ContextOverflow, ModelOverloaded,
    │                        ModelUnreachable, ModelGarbled
    ├── NeedsAnswer
    ├── ServerUnreachable    ResponseLost; both raised by clients only
    ├── ResponseUnreadable     raised by clients only
    ├── HistoryDamaged       one session
    └── StoreError           StoreUnavailable (OutcomeUnknown, StoreFull, NoDatabase), StoreLocked,
                             NotADatabase, DatabaseDamaged, OlderDatabase, SchemaMismatch, NewerDatabase
"""

from __future__ import annotations

from typing import Any


class LastgoodError(Exception):
    """Internal error in Lastgood; please report it."""

    code = "internal_error"  # a subclass without one has the code of its parent
    #: Set by clients: whether the server allows an automatic retry. None: the response did not say.
    retryable: bool | None = None

    def __init_subclass__(cls, code: str | None = None) -> None:
        cls.code = code or cls.code

    def __init__(self, message: str | None = None, **detail: Any) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))
        self.detail = detail

    @property
    def message(self) -> str:
        return str(self)


class InvalidRequest(LastgoodError, code="invalid_request"):
    """Invalid request; correct it and send it again."""


class TooLarge(InvalidRequest, code="too_large"):
    """Input exceeds the size limit of this server; send less, or raise the limit."""


class QuotaExceeded(TooLarge, code="quota_exceeded"):
    """Quota of this tenant or token exceeded; delete sessions, or ask the operator to raise it."""


class UnsupportedMedia(InvalidRequest, code="unsupported_media"):
    """The request body must be JSON; send it with `Content-Type: application/json`."""


class MethodNotAllowed(InvalidRequest, code="method_not_allowed"):
    """Method not allowed on this route; the `Allow` header lists the supported methods."""


class Unauthorized(LastgoodError, code="unauthorized"):
    """Missing or malformed bearer token; send `Authorization: Bearer <token>`."""


class Forbidden(LastgoodError, code="forbidden"):
    """Token lacks the required scope; use a token that has it."""


class ShuttingDown(LastgoodError, code="shutting_down"):
    """Server is shutting down; retry shortly."""


class TooManyRequests(LastgoodError, code="rate_limited"):
    """Rate limit exceeded; retry after the time in `Retry-After`."""

    retry_after: float = 1.0


class QueueFull(TooManyRequests, code="queue_full"):
    """Queue of this session is full; retry when some of its entries have run."""


class ModelUnknown(InvalidRequest, code="model_unknown"):
    """Unknown model; use provider/model, for example builtin/scripted."""


class AgentInvalid(InvalidRequest, code="agent_invalid"):
    """Agent file has errors; correct them and load it again."""


class IdempotencyMismatch(InvalidRequest, code="idempotency_mismatch"):
    """This idempotency key was used with a different request (session, message or model); use a new key."""


class WrongUsage(InvalidRequest, code="wrong_usage"):
    """Invalid command or setting; correct it and start again."""


class NotFound(LastgoodError, code="not_found"):
    """Not found."""


class SessionNotFound(NotFound, code="session_not_found"):
    """Session not found; list the sessions, or create one."""


class TurnNotFound(NotFound, code="turn_not_found"):
    """Turn not found in this session; read the session to see its turns."""


class AttemptNotFound(NotFound, code="attempt_not_found"):
    """Attempt not found in this session; list its attempts."""


class AgentNotFound(NotFound, code="agent_not_found"):
    """The session's agent is not served here; serve it again, or rebind the session."""


class TaskNotFound(NotFound, code="task_not_found"):
    """Task not found; list the tasks to see their ids."""


class RuntimeNotFound(NotFound, code="runtime_not_found"):
    """Runtime not found; list the runtimes to see those that you may use."""


class Unenforceable(InvalidRequest, code="unenforceable"):
    """Runtime cannot enforce the permissions of this session; use another runtime or other permissions."""


class RuntimeOffline(LastgoodError, code="runtime_offline"):
    """The runtime of this agent is offline; start its worker, or retry later."""


class Conflict(LastgoodError, code="conflict"):
    """The session changed in the meantime; read it again, then retry."""


class SessionBusy(Conflict, code="session_busy"):
    """Session is busy: a turn is running or waiting; retry when it has ended, or cancel it."""


class StaleHead(Conflict, code="stale_head"):
    """The head of the session is not the turn you expected; read the session again."""


class NothingPending(Conflict, code="nothing_pending"):
    """No question is pending in this session; read the session to see its state."""


class AttemptLost(Conflict, code="attempt_lost"):
    """This attempt lost its lease on the session; its further writes are rejected."""


class StaleClaim(Conflict, code="stale_claim"):
    """This claim is not current: the task was claimed again or has ended; stop its run."""


class RuntimeAmbiguous(Conflict, code="runtime_ambiguous"):
    """Several runtimes can run this agent; bind the agent or the session to one of them."""


class TurnFailed(LastgoodError, code="turn_failed"):
    """Turn failed; nothing was committed. Send it again."""


class TurnTimeout(TurnFailed, code="turn_timeout"):
    """Turn exceeded its time limit; nothing was committed. Send it again, or raise the limit."""


class TurnCancelled(TurnFailed, code="turn_cancelled"):
    """Turn was cancelled; nothing was committed."""


class TaskDeadline(TurnFailed, code="task_deadline"):
    """Task exceeded its deadline; nothing was committed. Send it again, or raise the deadline."""


class AgentUnavailable(TurnFailed, code="agent_unavailable"):
    """Agent source cannot be loaded, and no earlier copy is cached; nothing was committed."""


class LoopDetected(TurnFailed, code="loop_detected"):
    """Model repeated its calls or exceeded max_iterations; nothing was committed. Rephrase the request."""


class HookBlocked(TurnFailed, code="hook_blocked"):
    """A hook of the agent file ended the turn; nothing was committed. Change the request, or the hook."""


class BudgetExceeded(TurnFailed, code="budget_exceeded"):
    """Budget of the agent file exceeded; nothing was committed. Ask for less, or raise the budget."""


class ModelError(TurnFailed, code="model_error"):
    """Model call failed; nothing was committed. Send the turn again."""

    passes = False  # True: the error is transient
    retry_after: float | None = None  # seconds, if the provider sent a value


class KeyRefused(ModelError, code="key_refused"):
    """The model provider rejected the API key; set a valid key and send the turn again."""


class QuotaUsedUp(ModelError, code="quota_used_up"):
    """The quota of the account at the model provider is used up; nothing was committed."""


class ProviderRateLimited(ModelError, code=TooManyRequests.code):
    """The model provider limits the request rate; nothing was committed. Send the turn again later."""

    #: Clients handle both limits alike (wait for `Retry-After`, send it again), so the code is the same. The
    #: classes differ because this one ends a turn that runs, and TooManyRequests prevents one.
    passes = True


class ContextOverflow(ModelError, code="context_overflow"):
    """Conversation exceeds the context window; reset the session, fork an earlier turn, or send less."""


class ModelOverloaded(ModelError, code="model_overloaded"):
    """The model provider is overloaded or failed; nothing was committed. Send the turn again."""

    passes = True


class ModelUnreachable(ModelError, code="model_unreachable"):
    """The model provider is unreachable; nothing was committed. Check its address and the network."""

    passes = True


class ModelGarbled(ModelError, code="model_garbled"):
    """The model provider sent an invalid response; nothing was committed. Send the turn again."""


class NeedsAnswer(LastgoodError, code="waiting"):
    """The turn is waiting for human approval or input."""

    def __init__(self, question: dict[str, Any], seconds: float) -> None:
        super().__init__()
        self.question = question
        self.seconds = seconds


class ServerUnreachable(LastgoodError, code="server_unreachable"):
    """No Lastgood server responds at this address; start it with `lastgood serve`, or correct the address."""


class ResponseLost(ServerUnreachable, code="answer_lost"):
    """Connection closed before the response arrived; check whether the request took effect, then retry."""


class ResponseUnreadable(LastgoodError, code="answer_unreadable"):
    """Not a Lastgood server, or a newer version; check the address, or upgrade Lastgood."""


class HistoryDamaged(LastgoodError, code="history_damaged"):
    """Stored history of this session is damaged; no turn was run. Export the session up to the damage, fork
    it from an earlier turn, or delete it."""


class StoreError(LastgoodError, code="store_error"):
    """Database error."""


class StoreUnavailable(StoreError, code="store_unavailable"):
    """Database unavailable; nothing was changed. Retry shortly."""


class OutcomeUnknown(StoreUnavailable, code="outcome_unknown"):
    """The database did not confirm the write; read the session before you send the request again."""


class StoreFull(StoreUnavailable, code="store_full"):
    """The disk of the database is full or read-only; free some space and retry."""


class NoDatabase(StoreUnavailable, code="no_database"):
    """Database does not exist yet; run a turn first."""


class StoreLocked(StoreError, code="store_locked"):
    """Another Lastgood process uses this database; stop it, or use another --data-dir."""


class NotADatabase(StoreError, code="not_a_database"):
    """Not a Lastgood database; the file was not changed. Choose another path."""


class DatabaseDamaged(StoreError, code="database_damaged"):
    """Database file is damaged; it was not changed. Restore a backup."""


class OlderDatabase(StoreError, code="older_database"):
    """Database schema is out of date; it was not changed. Run `lastgood db upgrade`."""


class SchemaMismatch(StoreError, code="schema_mismatch"):
    """This database was created by a different development version of Lastgood; it was not changed. Move it
    away, or use the version that created it."""


class NewerDatabase(StoreError, code="newer_database"):
    """This database was written by a newer version of Lastgood; it was not changed. Upgrade Lastgood."""


def error_of(code: str, message: str) -> LastgoodError:
    """Returns the error that a stored attempt or a response names. An unknown code becomes TurnFailed."""
    known = _by_code().get(code)
    if known is None or known is NeedsAnswer:
        error: LastgoodError = TurnFailed(message)
        error.code = code
        return error
    return known(message)


def _by_code() -> dict[str, type[LastgoodError]]:
    """Later subclasses win: a stored `rate_limited` ended a turn, so it is the provider's."""
    found: dict[str, type[LastgoodError]] = {}
    left: list[type[LastgoodError]] = [LastgoodError]
    while left:
        kind = left.pop()
        found.setdefault(kind.code, kind)
        left.extend(kind.__subclasses__())
    return found
