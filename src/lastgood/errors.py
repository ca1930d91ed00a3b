"""Everything that can go wrong, by name.

An error's docstring is its default message and says what to do next. Codes are
what callers may rely on; statuses and exit codes are the surfaces' business.

    LastgoodError
    ├── InvalidRequest          malformed, blank or out of range
    │   ├── TooLarge
    │   │   └── QuotaExceeded   of a tenant or a token: sessions, stored bytes
    │   ├── UnsupportedMedia    a body that is not JSON
    │   ├── MethodNotAllowed
    │   ├── ModelUnknown        a model override nobody can serve
    │   ├── AgentInvalid        an agent file with errors, each with its line
    │   ├── IdempotencyMismatch
    │   └── WrongUsage          of a command: its words or its settings
    ├── Unauthorized            no token, or a wrong one
    ├── Forbidden               the token, the host or the origin is not good for this
    ├── ShuttingDown            this server takes no more work
    ├── TooManyRequests                 this caller asks for more than it may
    │   └── QueueFull
    ├── NotFound
    │   ├── SessionNotFound
    │   ├── TurnNotFound
    │   ├── AttemptNotFound
    │   └── AgentNotFound       also: ambiguous, naming the candidates
    ├── Conflict
    │   ├── SessionBusy
    │   ├── StaleHead
    │   ├── NothingPending
    │   └── AttemptLost         fenced out: another attempt holds the session
    ├── TurnFailed              the attempt failed; nothing was committed
    │   ├── TurnTimeout
    │   ├── TurnCancelled
    │   ├── AgentUnavailable    its source cannot be read, and there is no good copy
    │   ├── LoopDetected        the model asks for the same thing again, or never comes to an end
    │   └── ModelError
    │       ├── KeyRefused      no key, or not accepted
    │       ├── QuotaUsedUp
    │       ├── RateLimited
    │       ├── ContextOverflow
    │       ├── Overloaded
    │       ├── Unreachable     the network
    │       └── Garbled         what came back is no answer
    ├── NeedsAnswer             the turn waits for a person
    ├── ServerUnreachable       of a client: nobody answers at that address
    │   └── AnswerLost          the connection broke before the answer came
    ├── AnswerUnreadable        of a client: what answers is no Lastgood server, or a newer one
    ├── HistoryDamaged          what is stored of one session is not what was committed
    └── StoreError
        ├── StoreUnavailable    try again
        ├── OutcomeUnknown      the answer of a write was lost
        ├── StoreFull
        ├── NoDatabase          nothing was ever stored there
        ├── StoreLocked         another process owns the database file
        ├── NotADatabase
        ├── DatabaseDamaged     the file, not one session in it
        ├── OlderDatabase       it may not be brought up to date
        ├── SchemaMismatch      it was made by another development version
        └── NewerDatabase
"""

from __future__ import annotations

import inspect
from typing import Any


class LastgoodError(Exception):
    """Something went wrong inside Lastgood; please report it."""

    code = "internal_error"
    #: Of a client: whether the server allows an automatic retry. None: it did not say.
    retryable: bool | None = None

    def __init__(self, message: str | None = None, **detail: Any) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))
        self.detail = detail

    @property
    def message(self) -> str:
        return str(self)


class InvalidRequest(LastgoodError):
    """The request is malformed; correct it and send it again."""

    code = "invalid_request"


class TooLarge(InvalidRequest):
    """The input is larger than this server accepts; send less, or raise the limit."""

    code = "too_large"


class QuotaExceeded(TooLarge):
    """The quota of this tenant or token is used up; delete sessions, or have the operator raise it."""

    code = "quota_exceeded"


class UnsupportedMedia(InvalidRequest):
    """The body must be JSON; send it with Content-Type: application/json."""

    code = "unsupported_media"


class MethodNotAllowed(InvalidRequest):
    """This address does not take that method; the Allow header lists those it takes."""

    code = "method_not_allowed"


class Unauthorized(LastgoodError):
    """A token is needed, and this is none; send Authorization: Bearer TOKEN."""

    code = "unauthorized"


class Forbidden(LastgoodError):
    """This token is not good for that; use one with the right scope."""

    code = "forbidden"


class ShuttingDown(LastgoodError):
    """This server is shutting down and takes no more work; send it again shortly."""

    code = "shutting_down"


class TooManyRequests(LastgoodError):
    """You ask for more than this server gives to one caller; wait a moment and send it again."""

    code = "rate_limited"
    retry_after: float = 1.0


class QueueFull(TooManyRequests):
    """Too much waits for this session already; send it again when some of it is done."""

    code = "queue_full"


class ModelUnknown(InvalidRequest):
    """No such model; use provider/model, for example builtin/scripted."""

    code = "model_unknown"


class AgentInvalid(InvalidRequest):
    """The agent file has errors; correct them and load it again."""

    code = "agent_invalid"


class IdempotencyMismatch(InvalidRequest):
    """This key was used with another request: session, message or model differ. Use a new key for it."""

    code = "idempotency_mismatch"


class WrongUsage(InvalidRequest):
    """A command or a setting cannot be used like this; correct it and start again."""

    code = "wrong_usage"


class NotFound(LastgoodError):
    """There is no such thing."""

    code = "not_found"


class SessionNotFound(NotFound):
    """No such session; list the sessions there are, or create one."""

    code = "session_not_found"


class TurnNotFound(NotFound):
    """No such turn in this session; read the session to see its turns."""

    code = "turn_not_found"


class AttemptNotFound(NotFound):
    """No such attempt in this session; list its attempts to see those there are."""

    code = "attempt_not_found"


class AgentNotFound(NotFound):
    """The session's agent is not served here; serve it again, or rebind the session."""

    code = "agent_not_found"


class Conflict(LastgoodError):
    """The state has moved on; read it again and decide anew."""

    code = "conflict"


class SessionBusy(Conflict):
    """A turn of this session is running or waiting; try again when it has ended, or cancel it."""

    code = "session_busy"


class StaleHead(Conflict):
    """The session has moved past the turn you expected; read it again."""

    code = "stale_head"


class NothingPending(Conflict):
    """Nothing waits for an answer here; read the session to see its state."""

    code = "nothing_pending"


class AttemptLost(Conflict):
    """This attempt no longer holds its session; nothing it does from here on counts."""

    code = "attempt_lost"


class TurnFailed(LastgoodError):
    """The turn failed and nothing was committed; send it again."""

    code = "turn_failed"


class TurnTimeout(TurnFailed):
    """The turn took too long and was ended; nothing was committed. Send it again, or raise the limit."""

    code = "turn_timeout"


class TurnCancelled(TurnFailed):
    """The turn was cancelled; nothing was committed."""

    code = "turn_cancelled"


class AgentUnavailable(TurnFailed):
    """The agent cannot be loaded now, and there is no good copy of it; nothing was committed."""

    code = "agent_unavailable"


class LoopDetected(TurnFailed):
    """The model went round in circles and was stopped; nothing was committed. Ask it differently."""

    code = "loop_detected"


class ModelError(TurnFailed):
    """The model failed to answer; nothing was committed. Send the turn again."""

    code = "model_error"
    passes = False  # True: the same request may succeed a moment later
    retry_after: float | None = None  # seconds, if the provider said so


class KeyRefused(ModelError):
    """The model's provider did not accept the key; set the right one and send the turn again."""

    code = "key_refused"


class QuotaUsedUp(ModelError):
    """The account at the model's provider is used up; nothing was committed."""

    code = "quota_used_up"


class RateLimited(ModelError):
    """The model's provider takes no more requests for now; send the turn again later."""

    code = "rate_limited"
    passes = True


class ContextOverflow(ModelError):
    """The conversation is too long for the model; reset the session, fork an earlier turn, or say less."""

    code = "context_overflow"


class Overloaded(ModelError):
    """The model's provider failed; nothing was committed. Send the turn again."""

    code = "model_overloaded"
    passes = True


class Unreachable(ModelError):
    """The model's provider cannot be reached; nothing was committed. Check its address and the network."""

    code = "model_unreachable"
    passes = True


class Garbled(ModelError):
    """What the model's provider sent is no answer; nothing was committed. Send the turn again."""

    code = "model_garbled"


class NeedsAnswer(LastgoodError):
    """The turn waits for a person's answer."""

    code = "waiting"

    def __init__(self, question: dict[str, Any], seconds: float) -> None:
        super().__init__()
        self.question = question
        self.seconds = seconds


class ServerUnreachable(LastgoodError):
    """No Lastgood server answers there; start it with `lastgood serve`, or correct the address."""

    code = "server_unreachable"


class AnswerLost(ServerUnreachable):
    """The connection broke before the answer came; look whether it was done before you send it again."""

    code = "answer_lost"


class AnswerUnreadable(LastgoodError):
    """What answers there is no Lastgood server, or a newer one; check the address, or upgrade Lastgood."""

    code = "answer_unreadable"


class HistoryDamaged(LastgoodError):
    """What is stored of this session is not what was committed, so no turn was run on it. Read or export the
    session up to the damage, fork it from a turn before, or delete it."""

    code = "history_damaged"


class StoreError(LastgoodError):
    """The database failed."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database cannot be reached; nothing was changed. Try again shortly."""

    code = "store_unavailable"


class OutcomeUnknown(StoreUnavailable):
    """The database did not say whether the write happened; read the session before sending it again."""

    code = "outcome_unknown"


class StoreFull(StoreUnavailable):
    """The disk of the database is full or cannot be written; free some space and try again."""

    code = "store_full"


class NoDatabase(StoreUnavailable):
    """There is no database there yet; run a turn first."""

    code = "no_database"


class StoreLocked(StoreError):
    """Another Lastgood process is using this database; stop it, or use another --data-dir."""

    code = "store_locked"


class NotADatabase(StoreError):
    """This file is not a Lastgood database; it was left as it is. Choose another path."""

    code = "not_a_database"


class DatabaseDamaged(StoreError):
    """The database file is damaged; it was left as it is. Restore a backup."""

    code = "database_damaged"


class OlderDatabase(StoreError):
    """This database is not up to date; it was left as it is. Start once with --migrate auto."""

    code = "older_database"


class SchemaMismatch(StoreError):
    """This database was made by a different development version of Lastgood; it was left as it is. Move it
    away, or use the version that made it."""

    code = "schema_mismatch"


class NewerDatabase(StoreError):
    """This database was written by a newer Lastgood; it was left as it is. Upgrade Lastgood."""

    code = "newer_database"


def error_of(code: str, message: str) -> LastgoodError:
    """An error as it was written down. A code that this version does not know is a failed turn."""
    known = _by_code().get(code)
    if known is None or known is NeedsAnswer:
        error: LastgoodError = TurnFailed(message)
        error.code = code
        return error
    return known(message)


def _by_code() -> dict[str, type[LastgoodError]]:
    found: dict[str, type[LastgoodError]] = {}
    left: list[type[LastgoodError]] = [LastgoodError]
    while left:
        kind = left.pop()
        found.setdefault(kind.code, kind)
        left.extend(kind.__subclasses__())
    return found
