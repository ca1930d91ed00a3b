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
    │   └── ModelError       KeyRefused, QuotaUsedUp, ProviderRateLimited, ContextOverflow, Overloaded,
    │                        Unreachable, Garbled
    ├── NeedsAnswer
    ├── ServerUnreachable    AnswerLost; both raised by clients only
    ├── AnswerUnreadable     raised by clients only
    ├── HistoryDamaged       one session
    └── StoreError           StoreUnavailable (OutcomeUnknown, StoreFull, NoDatabase), StoreLocked,
                             NotADatabase, DatabaseDamaged, OlderDatabase, SchemaMismatch, NewerDatabase
"""

from __future__ import annotations

from typing import Any


class LastgoodError(Exception):
    """Internal error in Lastgood; please report it."""

    code = "internal_error"
    #: Set by clients: whether the server allows an automatic retry. None: the response did not say.
    retryable: bool | None = None

    def __init__(self, message: str | None = None, **detail: Any) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))
        self.detail = detail

    @property
    def message(self) -> str:
        return str(self)


class InvalidRequest(LastgoodError):
    """Invalid request; correct it and send it again."""

    code = "invalid_request"


class TooLarge(InvalidRequest):
    """Input exceeds the size limit of this server; send less, or raise the limit."""

    code = "too_large"


class QuotaExceeded(TooLarge):
    """Quota of this tenant or token exceeded; delete sessions, or ask the operator to raise it."""

    code = "quota_exceeded"


class UnsupportedMedia(InvalidRequest):
    """The request body must be JSON; send it with `Content-Type: application/json`."""

    code = "unsupported_media"


class MethodNotAllowed(InvalidRequest):
    """Method not allowed on this route; the `Allow` header lists the supported methods."""

    code = "method_not_allowed"


class Unauthorized(LastgoodError):
    """Missing or malformed bearer token; send `Authorization: Bearer <token>`."""

    code = "unauthorized"


class Forbidden(LastgoodError):
    """Token lacks the required scope; use a token that has it."""

    code = "forbidden"


class ShuttingDown(LastgoodError):
    """Server is shutting down; retry shortly."""

    code = "shutting_down"


class TooManyRequests(LastgoodError):
    """Rate limit exceeded; retry after the time in `Retry-After`."""

    code = "rate_limited"
    retry_after: float = 1.0


class QueueFull(TooManyRequests):
    """Queue of this session is full; retry when some of its entries have run."""

    code = "queue_full"


class ModelUnknown(InvalidRequest):
    """Unknown model; use provider/model, for example builtin/scripted."""

    code = "model_unknown"


class AgentInvalid(InvalidRequest):
    """Agent file has errors; correct them and load it again."""

    code = "agent_invalid"


class IdempotencyMismatch(InvalidRequest):
    """This idempotency key was used with a different request (session, message or model); use a new key."""

    code = "idempotency_mismatch"


class WrongUsage(InvalidRequest):
    """Invalid command or setting; correct it and start again."""

    code = "wrong_usage"


class NotFound(LastgoodError):
    """Not found."""

    code = "not_found"


class SessionNotFound(NotFound):
    """Session not found; list the sessions, or create one."""

    code = "session_not_found"


class TurnNotFound(NotFound):
    """Turn not found in this session; read the session to see its turns."""

    code = "turn_not_found"


class AttemptNotFound(NotFound):
    """Attempt not found in this session; list its attempts."""

    code = "attempt_not_found"


class AgentNotFound(NotFound):
    """The session's agent is not served here; serve it again, or rebind the session."""

    code = "agent_not_found"


class TaskNotFound(NotFound):
    """Task not found; list the tasks to see their ids."""

    code = "task_not_found"


class RuntimeNotFound(NotFound):
    """Runtime not found; list the runtimes to see those that you may use."""

    code = "runtime_not_found"


class Unenforceable(InvalidRequest):
    """Runtime cannot enforce the permissions of this session; use another runtime or other permissions."""

    code = "unenforceable"


class RuntimeOffline(LastgoodError):
    """The runtime of this agent is offline; start its worker, or retry later."""

    code = "runtime_offline"


class Conflict(LastgoodError):
    """The session changed in the meantime; read it again, then retry."""

    code = "conflict"


class SessionBusy(Conflict):
    """Session is busy: a turn is running or waiting; retry when it has ended, or cancel it."""

    code = "session_busy"


class StaleHead(Conflict):
    """The head of the session is not the turn you expected; read the session again."""

    code = "stale_head"


class NothingPending(Conflict):
    """No question is pending in this session; read the session to see its state."""

    code = "nothing_pending"


class AttemptLost(Conflict):
    """This attempt lost its lease on the session; its further writes are rejected."""

    code = "attempt_lost"


class StaleClaim(Conflict):
    """This claim is not current: the task was claimed again or has ended; stop its run."""

    code = "stale_claim"


class RuntimeAmbiguous(Conflict):
    """Several runtimes can run this agent; bind the agent or the session to one of them."""

    code = "runtime_ambiguous"


class TurnFailed(LastgoodError):
    """Turn failed; nothing was committed. Send it again."""

    code = "turn_failed"


class TurnTimeout(TurnFailed):
    """Turn exceeded its time limit; nothing was committed. Send it again, or raise the limit."""

    code = "turn_timeout"


class TurnCancelled(TurnFailed):
    """Turn was cancelled; nothing was committed."""

    code = "turn_cancelled"


class TaskDeadline(TurnFailed):
    """Task exceeded its deadline; nothing was committed. Send it again, or raise the deadline."""

    code = "task_deadline"


class AgentUnavailable(TurnFailed):
    """Agent source cannot be loaded, and no earlier copy is cached; nothing was committed."""

    code = "agent_unavailable"


class LoopDetected(TurnFailed):
    """Model repeated its calls or exceeded max_iterations; nothing was committed. Rephrase the request."""

    code = "loop_detected"


class HookBlocked(TurnFailed):
    """A hook of the agent file ended the turn; nothing was committed. Change the request, or the hook."""

    code = "hook_blocked"


class BudgetExceeded(TurnFailed):
    """Budget of the agent file exceeded; nothing was committed. Ask for less, or raise the budget."""

    code = "budget_exceeded"


class ModelError(TurnFailed):
    """Model call failed; nothing was committed. Send the turn again."""

    code = "model_error"
    passes = False  # True: the error is transient
    retry_after: float | None = None  # seconds, if the provider sent a value


class KeyRefused(ModelError):
    """The model provider rejected the API key; set a valid key and send the turn again."""

    code = "key_refused"


class QuotaUsedUp(ModelError):
    """The quota of the account at the model provider is used up; nothing was committed."""

    code = "quota_used_up"


class ProviderRateLimited(ModelError):
    """The model provider limits the request rate; nothing was committed. Send the turn again later."""

    #: Clients handle both limits alike (wait for `Retry-After`, send it again), so the code is the same. The
    #: classes differ because this one ends a turn that runs, and TooManyRequests prevents one.
    code = TooManyRequests.code
    passes = True


class ContextOverflow(ModelError):
    """Conversation exceeds the context window; reset the session, fork an earlier turn, or send less."""

    code = "context_overflow"


class Overloaded(ModelError):
    """The model provider is overloaded or failed; nothing was committed. Send the turn again."""

    code = "model_overloaded"
    passes = True


class Unreachable(ModelError):
    """The model provider is unreachable; nothing was committed. Check its address and the network."""

    code = "model_unreachable"
    passes = True


class Garbled(ModelError):
    """The model provider sent an invalid response; nothing was committed. Send the turn again."""

    code = "model_garbled"


class NeedsAnswer(LastgoodError):
    """The turn is waiting for human approval or input."""

    code = "waiting"

    def __init__(self, question: dict[str, Any], seconds: float) -> None:
        super().__init__()
        self.question = question
        self.seconds = seconds


class ServerUnreachable(LastgoodError):
    """No Lastgood server responds at this address; start it with `lastgood serve`, or correct the address."""

    code = "server_unreachable"


class AnswerLost(ServerUnreachable):
    """Connection closed before the response arrived; check whether the request took effect, then retry."""

    code = "answer_lost"


class AnswerUnreadable(LastgoodError):
    """Not a Lastgood server, or a newer version; check the address, or upgrade Lastgood."""

    code = "answer_unreadable"


class HistoryDamaged(LastgoodError):
    """Stored history of this session is damaged; no turn was run. Export the session up to the damage, fork
    it from an earlier turn, or delete it."""

    code = "history_damaged"


class StoreError(LastgoodError):
    """Database error."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """Database unavailable; nothing was changed. Retry shortly."""

    code = "store_unavailable"


class OutcomeUnknown(StoreUnavailable):
    """The database did not confirm the write; read the session before you send the request again."""

    code = "outcome_unknown"


class StoreFull(StoreUnavailable):
    """The disk of the database is full or read-only; free some space and retry."""

    code = "store_full"


class NoDatabase(StoreUnavailable):
    """Database does not exist yet; run a turn first."""

    code = "no_database"


class StoreLocked(StoreError):
    """Another Lastgood process uses this database; stop it, or use another --data-dir."""

    code = "store_locked"


class NotADatabase(StoreError):
    """Not a Lastgood database; the file was not changed. Choose another path."""

    code = "not_a_database"


class DatabaseDamaged(StoreError):
    """Database file is damaged; it was not changed. Restore a backup."""

    code = "database_damaged"


class OlderDatabase(StoreError):
    """Database schema is out of date; it was not changed. Run `lastgood db upgrade`."""

    code = "older_database"


class SchemaMismatch(StoreError):
    """This database was created by a different development version of Lastgood; it was not changed. Move it
    away, or use the version that created it."""

    code = "schema_mismatch"


class NewerDatabase(StoreError):
    """This database was written by a newer version of Lastgood; it was not changed. Upgrade Lastgood."""

    code = "newer_database"


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
