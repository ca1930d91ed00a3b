"""Decides what rows of a multica database mean as turns and pointers.

A multica chat records its native session and its runtime in columns that were added at different times, so
they may not belong together. A chat's pointer gets a runtime only from the latest finished task that recorded
a native session, and only if that session is the chat's (M4.5). In every other case the pointer stays
without a runtime, and is never resumed: a replayed transcript costs tokens, a wrong session costs trust.

Task rows are paired by themselves: each holds its own native session, runtime and working directory.
Knows no database; callers pass rows in the order in which they happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lastgood.model.ids import TurnId
from lastgood.model.multica import MulticaChat, MulticaMessage, MulticaTask
from lastgood.model.tasks import PointerOutcome

FINISHED = frozenset({"completed", "failed", "cancelled"})

#: Failures after which multica itself never resumes the native session, unless a later run of it succeeds.
_RETIRING = frozenset(
    {
        "agent_error.context_overflow",
        "agent_fallback_message",
        "api_invalid_request",
        "codex_resume_oversized",
        "codex_semantic_inactivity",
        "iteration_limit",
    }
)


def runtime_of_chat(chat: MulticaChat, tasks: Iterable[MulticaTask]) -> str | None:
    """Returns None unless it is certain which runtime made the chat's native session.

    `tasks`: all of the chat, in any order. Tasks that finished at the same moment count as the latest
    together, and must agree.
    """
    finished = [task for task in tasks if task.status in FINISHED and task.native_session is not None]
    if chat.native_session is None or not finished:
        return None
    end = max(task.finished_at for task in finished)
    latest = {(task.native_session, task.runtime) for task in finished if task.finished_at == end}
    if len(latest) > 1:
        return None
    ((native_session, runtime),) = latest
    if native_session != chat.native_session:
        return None
    # The chat names a runtime by itself, and another one: one of the two is wrong.
    return None if chat.runtime not in (None, runtime) else runtime


# -- turns -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a person said and what the agent replied. `resets`: the agent did not see what came before."""

    said: tuple[MulticaMessage, ...]
    replied: tuple[MulticaMessage, ...]
    resets: bool = False

    @property
    def last(self) -> MulticaMessage:
        return self.replied[-1]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that replied, without repetitions."""
        return tuple(dict.fromkeys(one.task for one in self.replied if one.task is not None))


@dataclass(slots=True)
class ExchangeReader:
    """Pairs messages as they are read, one by one. `left_out` counts those that are no part of a turn:
    notices, empty ones, messages that got no reply or an error for a reply, and replies to nothing."""

    left_out: int = 0
    generation: int = 0  # of the last exchange; 0: there was none
    _said: list[MulticaMessage] = field(default_factory=list)
    _replied: list[MulticaMessage] = field(default_factory=list)

    def read(self, message: MulticaMessage) -> Exchange | None:
        """Returns the exchange that ended before this message, if one did."""
        if message.kind != "message" or not message.content.strip():
            self.left_out += 1
            return None
        if message.role == "user":
            ended = self._end() if self._replied else None
            self._said.append(message)
            return ended
        if message.is_failure:
            ended = self._end() if self._replied else None
            self.left_out += len(self._said) + 1
            self._said.clear()
            return ended
        if not self._said:
            self.left_out += 1
            return None
        self._replied.append(message)
        return None

    def finish(self) -> Exchange | None:
        """Returns the last exchange. Messages without a reply stay out: they may get one later."""
        if self._replied:
            return self._end()
        self.left_out += len(self._said)
        self._said.clear()
        return None

    def _end(self) -> Exchange:
        generation = self._replied[-1].generation
        resets = 0 < self.generation < generation
        exchange = Exchange(tuple(self._said), tuple(self._replied), resets)
        self.generation = generation
        self._said.clear()
        self._replied.clear()
        return exchange


# -- pointers --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImportedPointer:
    """`task`: None in the pointer of a chat whose runtime is not certain."""

    task: str | None
    native_session: str | None
    runtime: str | None
    work_dir: str | None
    through: TurnId | None
    outcome: PointerOutcome
    is_dirty: bool = False
    retired: str | None = None


def pointers_of(
    chat: MulticaChat | None, tasks: Sequence[MulticaTask], turns: Mapping[str, TurnId]
) -> list[ImportedPointer]:
    """The pointers of one chat, or of one issue and agent, oldest first.

    `tasks`: in the order in which they finished. `turns`: the committed turn of a task that replied.
    """
    retired = _retired(tasks)
    seen: dict[tuple[str | None, str | None], TurnId | None] = {}
    found = [] if chat is None else _of_chat(chat, tasks)
    for task in tasks:
        if task.status not in FINISHED or (task.native_session is None and task.work_dir is None):
            continue
        session = (task.native_session, task.runtime)
        is_good = task.status == "completed"
        through = turns.get(task.id) if is_good else None
        seen[session] = through or seen.get(session)
        found.append(
            ImportedPointer(
                task.id,
                task.native_session,
                task.runtime,
                task.work_dir,
                seen[session],
                _outcome(task),
                is_dirty=not is_good,
                retired=retired.get(task.native_session or ""),
            )
        )
    return found


def _of_chat(chat: MulticaChat, tasks: Sequence[MulticaTask]) -> list[ImportedPointer]:
    """A chat's pointer that is certain is its task's; the row of that task says all of it.

    One that is not comes first: the rows of tasks are newer, or as good."""
    if runtime_of_chat(chat, tasks) is not None or (chat.native_session is None and chat.work_dir is None):
        return []
    pointer = ImportedPointer(
        None, chat.native_session, None, chat.work_dir, None, PointerOutcome.UNCOUNTED, is_dirty=True
    )
    return [pointer]


def _outcome(task: MulticaTask) -> PointerOutcome:
    match task.status:
        case "completed":
            return PointerOutcome.COMMITTED
        case "failed":
            return PointerOutcome.FAILED
        case _:
            return PointerOutcome.UNCOUNTED


def _retired(tasks: Sequence[MulticaTask]) -> dict[str, str]:
    """Native sessions that multica would not resume: given up by a run, or failed for good in their last."""
    found = {
        task.retired_session: "multica abandoned it" for task in tasks if task.retired_session is not None
    }
    last = {task.native_session: task for task in tasks if task.native_session is not None}
    for session, task in last.items():
        if task.status == "failed" and task.failure in _RETIRING:
            found[session] = f"multica abandoned it: {task.failure}"
    return found
