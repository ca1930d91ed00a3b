"""Imports the sessions of a multica database: one per chat, and one per issue and agent.

A chat's messages become committed turns. Of an issue only the pointers are imported: what was said about it
is in comments. Each session is written in transactions of its own, in bounded pieces, and every piece goes on
from the head that the piece before it left. So an import that was stopped is finished by running it again,
and one that was finished adds what is new. A session that was continued here gets no more turns from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from lastgood.core.commit import link
from lastgood.core.input_checks import MOST_IN_TITLE
from lastgood.core.multica_import import (
    Exchange,
    ExchangeReader,
    ImportedPointer,
    pointers_of,
    runtime_of_chat,
)
from lastgood.errors import InvalidRequest
from lastgood.flows.import_report import ImportedRuntime, ImportOptions, ImportReport
from lastgood.flows.work.runtimes import runtime_id
from lastgood.model.ids import AttemptId, TaskId, TenantId, TurnId
from lastgood.model.imports import NewPointer
from lastgood.model.messages import assistant, encode, user
from lastgood.model.multica import MulticaAgent, MulticaChat, MulticaIssue, MulticaRuntime
from lastgood.model.runtimes import RuntimeIdentity
from lastgood.model.sessions import (
    Head,
    NewSession,
    ScopeKind,
    Session,
    TaskScope,
    TitleBy,
    Turn,
    TurnKind,
    Usage,
)
from lastgood.ports import Ids, Store
from lastgood.ports.imports import MulticaSource

_SYSTEM = "multica"
#: So many turns, or so many bytes of them, are written at once.
_TURNS_AT_ONCE = 200
_BYTES_AT_ONCE = 4 * 1024 * 1024
#: So many sessions are named in each list of a report.
_MOST_NAMED = 100

#: Formats of session files, as our own runtimes report them. Those of other programs are not resumed.
_FORMATS = {"claude": "claude-jsonl", "codex": "codex-rollout"}


Progress = Callable[[ImportReport], None]


class MulticaImport:
    def __init__(self, source: MulticaSource, store: Store, ids: Ids, options: ImportOptions) -> None:
        self._source = source
        self._store = store
        self._ids = ids
        self._options = options
        self._runtimes: Mapping[str, MulticaRuntime] = {}
        self.report = ImportReport()

    async def run(self, progress: Progress = lambda report: None) -> ImportReport:
        """Raises InvalidRequest before anything is written if two agents would get the same key."""
        agents = await self._agents()
        self._runtimes = await self._source.runtimes()
        self.report.runtimes = [
            ImportedRuntime(one.name, one.daemon, f"{_profile(one)}={one.provider}")
            for one in self._runtimes.values()
            if one.daemon
        ]
        for agent, key in agents:
            self.report.agents[agent.name] = key
            async with aclosing(self._source.chats(agent.id)) as chats:
                async for chat in chats:
                    await self._chat(chat, key)
                    progress(self.report)
            async with aclosing(self._source.issues(agent.id)) as issues:
                async for issue in issues:
                    await self._issue(issue, key)
                    progress(self.report)
        return self.report

    async def _agents(self) -> list[tuple[MulticaAgent, str]]:
        agents = await self._source.agents()
        workspaces = sorted({one.workspace for one in agents if one.workspace is not None})
        wanted = self._options.workspace
        if wanted is not None and wanted not in workspaces:
            known = ", ".join(workspaces) or "it has none"
            raise InvalidRequest(f"no agent of this database is in workspace {wanted}; workspaces: {known}")
        if wanted is None and len(workspaces) > 1:
            raise InvalidRequest(
                f"this database has {len(workspaces)} workspaces: {', '.join(workspaces)}; import each with "
                "--workspace ID, into a tenant of its own"
            )
        chosen = [one for one in agents if wanted is None or one.workspace == wanted]
        unknown = self._options.keys.keys() - {name for one in chosen for name in (one.id, one.name)}
        if unknown:
            raise InvalidRequest(f"no agent is named {min(unknown)!r}; use its name or id in multica")
        return _check_distinct_keys([(one, self._key(one)) for one in chosen])

    def _key(self, agent: MulticaAgent) -> str:
        keys = self._options.keys
        return keys.get(agent.id) or keys.get(agent.name) or agent.name

    # -- sessions ------------------------------------------------------------------------------

    async def _chat(self, chat: MulticaChat, key: str) -> None:
        self.report.chats += 1
        scope = TaskScope(ScopeKind.CHAT, chat.id)
        known = await self._known(scope, key)
        writing = _ScopeWriter(
            self._store, self._ids, self._new(scope, key, chat.title), known, self._options
        )
        reader = ExchangeReader(generation=known.generation)
        async with aclosing(self._exchanges(chat, reader, known.last_message)) as exchanges:
            async for exchange in exchanges:
                if known.is_continued:
                    _name(self.report.continued, chat.id)
                    break
                await writing.add(exchange)
        self.report.left_out += reader.left_out
        tasks = await self._source.tasks(chat.agent, chat=chat.id)
        if chat.native_session is not None and runtime_of_chat(chat, tasks) is None:
            self.report.without_runtime += 1
        await self._finish(writing, pointers_of(chat, tasks, known.turns), known, chat.id)

    async def _issue(self, issue: MulticaIssue, key: str) -> None:
        self.report.issues += 1
        scope = TaskScope(ScopeKind.ISSUE, issue.id)
        known = await self._known(scope, key)
        writing = _ScopeWriter(
            self._store, self._ids, self._new(scope, key, issue.title), known, self._options
        )
        tasks = await self._source.tasks(issue.agent, issue=issue.id)
        await self._finish(writing, pointers_of(None, tasks, known.turns), known, issue.id)

    async def _finish(
        self, writing: _ScopeWriter, found: Sequence[ImportedPointer], known: _Known, scope: str
    ) -> None:
        pointers = [self._pointer(one, scope) for one in found]
        new = [one for one in pointers if one.attempt not in known.attempts]
        await writing.finish(new)
        self.report.turns += writing.turns
        self.report.pointers += writing.pointers
        if writing.is_busy:
            _name(self.report.busy, scope)
        elif not writing.turns and not writing.pointers:
            if known.session is None:
                self.report.empty += 1
            else:
                self.report.unchanged += 1
        elif known.session is None:
            self.report.created += 1
        else:
            self.report.extended += 1

    def _new(self, scope: TaskScope, key: str, title: str) -> NewSession:
        title = " ".join(title.split())[:MOST_IN_TITLE]
        return NewSession(
            id=self._ids.session(),
            tenant=self._options.tenant,
            agent_key=key,
            title=title,
            title_by=TitleBy.PERSON if title else TitleBy.NOBODY,
            metadata={"imported_from": _SYSTEM},
            owner=self._options.owner,
            scope=scope,
        )

    async def _exchanges(
        self, chat: MulticaChat, reader: ExchangeReader, after: str | None
    ) -> AsyncGenerator[Exchange, None]:
        """Those after the message that was imported last. If that one was deleted there, nothing is known of
        the order any more, and none is new."""
        is_new = after is None
        async with aclosing(self._source.messages(chat.id)) as messages:
            async for message in messages:
                if is_new:
                    ended = reader.read(message)
                    if ended is not None:
                        yield ended
                is_new = is_new or message.id == after
        last = reader.finish()
        if last is not None:
            yield last

    async def _known(self, scope: TaskScope, key: str) -> _Known:
        """What earlier imports have written, as the turns themselves say."""
        tenant = self._options.tenant
        session = await self._store.find_scope(tenant, scope, key)
        if session is None:
            return _Known(None)
        pointers = await self._store.list_pointers(tenant, session.id)
        known = _Known(session, attempts=frozenset(one.attempt for one in pointers))
        if session.head is None:
            return known
        async with aclosing(self._store.stream_turns(tenant, session.head.turn)) as turns:
            async for turn in turns:
                origin = turn.decision.get("imported_from")
                if not isinstance(origin, dict) or origin.get("system") != _SYSTEM:
                    known.is_continued = True
                    continue
                known.last_message = origin["message"]
                known.generation = origin["generation"]
                known.turns |= dict.fromkeys(origin["tasks"], turn.id)
        return known

    # -- pointers ------------------------------------------------------------------------------

    def _pointer(self, found: ImportedPointer, scope: str) -> NewPointer:
        runtime = self._runtimes.get(found.runtime or "")
        origin = found.task or f"chat {scope}"
        return NewPointer(
            attempt=_attempt_of(self._options.tenant, origin),
            task=TaskId("task_" + _derived(self._options.tenant, origin)),
            native_session=found.native_session,
            runtime=None if runtime is None else self._identity(runtime),
            worker="" if runtime is None else runtime.daemon,
            work_dir=found.work_dir,
            through=found.through,
            outcome=found.outcome,
            is_dirty=found.is_dirty,
            retired=found.retired,
        )

    def _identity(self, runtime: MulticaRuntime) -> RuntimeIdentity:
        """The runtime that a worker with the id of multica's daemon registers for the same program."""
        id = runtime_id(self._options.tenant, runtime.daemon, runtime.provider, _profile(runtime), "")
        format = _FORMATS.get(runtime.provider, "")
        return RuntimeIdentity(id, runtime.daemon, runtime.provider, format=format)


@dataclass(slots=True)
class _Known:
    session: Session | None
    attempts: frozenset[AttemptId] = frozenset()  # with a pointer
    turns: dict[str, TurnId] = field(default_factory=dict)  # by the task of multica that replied
    last_message: str | None = None
    generation: int = 0
    is_continued: bool = False  # turns were added here


class _ScopeWriter:
    """Writes one session in pieces. In a dry run it counts."""

    def __init__(
        self, store: Store, ids: Ids, new: NewSession, known: _Known, options: ImportOptions
    ) -> None:
        self._store = store
        self._ids = ids
        self._new = new if known.session is None else replace(new, id=known.session.id)
        self._known = known
        self._options = options
        self._base: Head | None = known.session.head if known.session else None
        self._written = self._base
        self._turns: list[Turn] = []
        self._bytes = 0
        self.turns = 0
        self.pointers = 0
        self.is_busy = False

    async def add(self, exchange: Exchange) -> None:
        if exchange.resets:
            self._append(exchange, TurnKind.RESET)
        self._append(exchange, TurnKind.RUN)
        if len(self._turns) >= _TURNS_AT_ONCE or self._bytes >= _BYTES_AT_ONCE:
            await self._write(())

    async def finish(self, pointers: Sequence[NewPointer]) -> None:
        if self._turns or pointers:
            await self._write(pointers)

    def _append(self, exchange: Exchange, kind: TurnKind) -> None:
        turn = self._turn(exchange, kind)
        self._turns.append(turn)
        self._bytes += len(turn.body)
        self._base = turn.head
        self._known.turns |= dict.fromkeys(exchange.tasks, turn.id)

    def _turn(self, exchange: Exchange, kind: TurnKind) -> Turn:
        said = [user(one.content) for one in exchange.said]
        replied = [assistant(one.content) for one in exchange.replied]
        messages = (*said, *replied) if kind is TurnKind.RUN else ()
        base, tasks = self._base, exchange.tasks
        origin = {
            "system": _SYSTEM,
            "message": exchange.last.id,
            "tasks": list(tasks),
            "generation": exchange.last.generation,
        }
        turn = Turn(
            id=self._ids.turn(),
            session=self._new.id,
            seq=(base.seq if base else 0) + 1,
            parent=base.turn if base else None,
            attempt=_attempt_of(self._new.tenant, tasks[-1]) if tasks else self._ids.attempt(),
            kind=kind,
            hash=b"",
            agent_key=self._new.agent_key,
            agent_digest="",
            model="",
            decision={"imported_from": origin},
            usage=Usage(),
            created_at=exchange.last.created_at,
            user="",
            inputs=len(said) if messages else 0,
            body=encode(messages),
            messages=messages,
        )
        return replace(turn, hash=link(base, turn))

    async def _write(self, pointers: Sequence[NewPointer]) -> None:
        """A session that is in use gets nothing more: what follows would not fit its head."""
        if self.is_busy:
            return
        if not self._options.dry_run:
            written = await self._store.import_into_scope(self._new, self._written, self._turns, pointers)
            if written is None:
                self.is_busy = True
                return
            self._new = replace(self._new, id=written.session.id)
            self._written = written.session.head
            self.pointers += written.pointers
        else:
            self.pointers += len(pointers)
        self.turns += len(self._turns)
        self._turns, self._bytes = [], 0


def _check_distinct_keys(agents: list[tuple[MulticaAgent, str]]) -> list[tuple[MulticaAgent, str]]:
    """Two agents under one key would share the session of an issue."""
    seen: dict[str, MulticaAgent] = {}
    for agent, key in agents:
        other = seen.setdefault(key, agent)
        if other is not agent:
            raise InvalidRequest(
                f"two agents of multica would become the agent {key!r}: {other.id} and {agent.id}; "
                "name one of them with --agent ID=KEY"
            )
    return agents


def _profile(runtime: MulticaRuntime) -> str:
    """Workers register the name that `--runtime NAME=KIND` gives as the profile."""
    return runtime.profile or runtime.provider


def _name(names: list[str], one: str) -> None:
    if len(names) < _MOST_NAMED:
        names.append(one)


def _attempt_of(tenant: TenantId, origin: str) -> AttemptId:
    return AttemptId("att_" + _derived(tenant, origin))


def _derived(tenant: TenantId, origin: str) -> str:
    """The same id for the same row, however often it is imported; another one in another tenant."""
    return hashlib.sha256(f"{_SYSTEM}\0{tenant}\0{origin}".encode()).hexdigest()[:32]
