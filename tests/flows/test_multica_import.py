"""Sessions of a multica database, imported into both stores: from a real PostgreSQL with multica's tables."""

import itertools
from collections.abc import AsyncIterator

import pytest

from lastgood.core.resume import FreshStart, NativeResume, ResumeRequest, TranscriptReplay, decide_resume
from lastgood.errors import InvalidRequest, StoreError, StoreUnavailable
from lastgood.flows.database_check import check_database
from lastgood.flows.import_report import ImportOptions, ImportReport
from lastgood.flows.multica_import import MulticaImport
from lastgood.flows.work.runtimes import runtime_id
from lastgood.model.ids import TenantId
from lastgood.model.messages import user
from lastgood.model.runtimes import RuntimeIdentity
from lastgood.model.sessions import ScopeKind, Session, TaskScope, Turn, TurnKind
from lastgood.model.tasks import Pointer
from lastgood.store.multica import open_multica
from lastgood.wiring import RandomIds
from lastgood.worker.runtimes.claude import ClaudeKind
from lastgood.worker.runtimes.codex import CodexKind
from tests.contract import builders
from tests.contract.conftest import Backend, dump
from tests.multica import Multica, make_multica, new_id
from tests.postgres import PostgresServer
from tests.turn_chains import broken_link

pytestmark = pytest.mark.anyio

TENANT = TenantId("default")
OPTIONS = ImportOptions(TENANT)
_numbers = itertools.count()


@pytest.fixture
async def multica_dsn(postgres_server: PostgresServer) -> AsyncIterator[str]:
    name = f"multica_{next(_numbers)}"
    postgres_server.create_database(name)
    yield postgres_server.dsn(name)
    postgres_server.drop_database(name)


@pytest.fixture
async def multica(multica_dsn: str) -> AsyncIterator[Multica]:
    made = await make_multica(multica_dsn)
    yield made
    await made.connection.close()


class Importer:
    def __init__(self, backend: Backend, dsn: str) -> None:
        self.backend = backend
        self.dsn = dsn

    async def __call__(self, options: ImportOptions = OPTIONS) -> ImportReport:
        async with open_multica(self.dsn) as source:
            report = await MulticaImport(source, self.backend.store, RandomIds(), options).run()
        assert (await check_database(self.backend.store)).findings == []
        return report

    async def session(self, kind: ScopeKind, id: str, agent: str = "coder") -> Session:
        session = await self.backend.store.find_scope(TENANT, TaskScope(kind, id), agent)
        assert session is not None
        return session

    async def turns(self, session: Session) -> tuple[Turn, ...]:
        if session.head is None:
            return ()
        turns = await self.backend.store.read_turns(TENANT, session.head.turn)
        assert broken_link(turns) is None
        return turns

    async def pointers(self, session: Session) -> tuple[Pointer, ...]:
        return await self.backend.store.list_pointers(TENANT, session.id)


@pytest.fixture
def importer(backend: Backend, multica_dsn: str, multica: Multica) -> Importer:
    return Importer(backend, multica_dsn)


def runtime(name: str, provider: str = "claude") -> RuntimeIdentity:
    """As `lastgood worker --worker-id daemon-of-NAME --runtime PROVIDER=PROVIDER` registers it."""
    kind: type[ClaudeKind] | type[CodexKind] = ClaudeKind if provider == "claude" else CodexKind
    worker = f"daemon-of-{name}"
    id = runtime_id(TENANT, worker, kind.provider, provider, "")
    return RuntimeIdentity(id, worker, kind.provider, format=kind.format)


def said(turns: tuple[Turn, ...]) -> list[list[str]]:
    return [[message.content for message in turn.messages] for turn in turns]


async def decision(
    importer: Importer, session: Session, on: RuntimeIdentity
) -> NativeResume | TranscriptReplay | FreshStart:
    turns = await importer.turns(session)
    request = ResumeRequest(on, "", [turn.id for turn in turns])
    return decide_resume(request, await importer.pointers(session))


# -- chats -----------------------------------------------------------------------------------


async def test_a_chat_becomes_a_session_with_its_turns_and_pointers(
    importer: Importer, multica: Multica
) -> None:
    agent, laptop = await multica.agent("coder"), await multica.runtime("laptop")
    chat = await multica.chat(agent, title=" Fix  it ", session_id="s1", runtime_id=laptop, work_dir="/w")
    await multica.exchange(chat, agent, laptop, "one", "s1", work_dir="/w")
    await multica.exchange(chat, agent, laptop, "two", "s1", work_dir="/w")
    report = await importer(ImportOptions(TENANT, owner="alice"))
    assert (report.chats, report.created, report.turns, report.pointers) == (1, 1, 2, 2)
    assert (report.without_runtime, report.left_out, report.agents) == (0, 0, {"coder": "coder"})
    session = await importer.session(ScopeKind.CHAT, chat)
    assert (session.title, session.owner, session.agent_key) == ("Fix it", "alice", "coder")
    turns = await importer.turns(session)
    assert said(turns) == [["one", "reply to one"], ["two", "reply to two"]]
    assert [turn.inputs for turn in turns] == [1, 1]
    first, second = await importer.pointers(session)
    assert (first.through, second.through) == (turns[0].id, turns[1].id)
    assert (second.native_session, second.runtime, second.work_dir) == ("s1", runtime("laptop"), "/w")
    resumed = await decision(importer, session, runtime("laptop"))
    assert isinstance(resumed, NativeResume)
    assert (resumed.native_session, resumed.is_behind) == ("s1", False)


async def test_M4_5_M4_6_a_stale_chat_pointer_beside_a_newer_task_of_another_runtime_stays_without_one(
    importer: Importer, multica: Multica
) -> None:
    agent = await multica.agent("coder")
    old, new = await multica.runtime("old"), await multica.runtime("new")
    # The pointer of the chat was not moved when the chat went on elsewhere; its runtime was.
    chat = await multica.chat(agent, session_id="stale", runtime_id=new, work_dir="/old")
    await multica.exchange(chat, agent, old, "one", "stale", work_dir="/old")
    await multica.exchange(chat, agent, new, "two", "newer", work_dir="/new")
    report = await importer()
    assert report.without_runtime == 1
    session = await importer.session(ScopeKind.CHAT, chat)
    stale, of_old, of_new = await importer.pointers(session)
    assert (stale.native_session, stale.runtime) == ("stale", None)
    assert (of_old.native_session, of_old.runtime) == ("stale", runtime("old"))
    assert (of_new.native_session, of_new.runtime) == ("newer", runtime("new"))
    # So the new runtime resumes its own, the old one its own with what it missed, and a third one neither.
    on_new = await decision(importer, session, runtime("new"))
    assert isinstance(on_new, NativeResume)
    assert on_new.native_session == "newer"
    on_old = await decision(importer, session, runtime("old"))
    assert isinstance(on_old, NativeResume)
    assert (on_old.native_session, on_old.is_behind) == ("stale", True)
    on_third = await decision(importer, session, runtime("third"))
    assert isinstance(on_third, TranscriptReplay)
    assert "it was recorded without a runtime" in {one.reason for one in on_third.rejected}


async def test_M4_5_a_pointer_without_a_runtime_gets_that_of_the_latest_finished_task_with_its_session(
    importer: Importer, multica: Multica
) -> None:
    agent, laptop = await multica.agent("coder"), await multica.runtime("laptop", "codex")
    chat = await multica.chat(agent, session_id="s1", work_dir="/w")
    await multica.exchange(chat, agent, laptop, "one", "s1")
    assert (await importer()).without_runtime == 0
    (pointer,) = await importer.pointers(await importer.session(ScopeKind.CHAT, chat))
    assert (pointer.native_session, pointer.runtime) == ("s1", runtime("laptop", "codex"))


async def test_M4_5_a_chat_without_tasks_has_a_pointer_that_is_never_resumed(
    importer: Importer, multica: Multica
) -> None:
    agent, laptop = await multica.agent("coder"), await multica.runtime("laptop")
    chat = await multica.chat(agent, session_id="s1", runtime_id=laptop, work_dir="/w")
    await multica.say(chat, "user", "one")
    await multica.say(chat, "assistant", "reply")
    assert (await importer()).without_runtime == 1
    session = await importer.session(ScopeKind.CHAT, chat)
    (pointer,) = await importer.pointers(session)
    assert (pointer.native_session, pointer.runtime, pointer.work_dir) == ("s1", None, "/w")
    assert isinstance(await decision(importer, session, runtime("laptop")), TranscriptReplay)


async def test_failed_unanswered_and_empty_messages_are_left_out(
    importer: Importer, multica: Multica
) -> None:
    agent, laptop = await multica.agent("coder"), await multica.runtime("laptop")
    chat = await multica.chat(agent)
    await multica.say(chat, "assistant", "Hello, I am your agent", message_kind="onboarding_intro")
    await multica.exchange(chat, agent, laptop, "one", "s1")
    await multica.say(chat, "user", "two")
    await multica.say(chat, "assistant", "rate limited", failure_reason="agent_error.provider_quota_limit")
    await multica.exchange(chat, agent, laptop, "three", "s1")
    await multica.say(chat, "user", "four")
    report = await importer()
    assert (report.turns, report.left_out) == (2, 4)
    turns = await importer.turns(await importer.session(ScopeKind.CHAT, chat))
    assert said(turns) == [["one", "reply to one"], ["three", "reply to three"]]


async def test_a_new_context_of_a_channel_is_a_reset(importer: Importer, multica: Multica) -> None:
    agent = await multica.agent("coder")
    chat = await multica.chat(agent)
    for revision, text in ((None, "one"), (2, "two"), (2, "three")):
        await multica.say(chat, "user", text, channel_context_revision=revision)
        await multica.say(chat, "assistant", f"reply to {text}", channel_context_revision=revision)
    assert (await importer()).turns == 4
    turns = await importer.turns(await importer.session(ScopeKind.CHAT, chat))
    kinds = [turn.kind for turn in turns]
    assert kinds == [TurnKind.RUN, TurnKind.RESET, TurnKind.RUN, TurnKind.RUN]


async def test_a_long_chat_comes_in_pieces_and_is_one_chain(importer: Importer, multica: Multica) -> None:
    agent = await multica.agent("coder")
    chat = await multica.chat(agent)
    await multica.connection.execute(
        "INSERT INTO chat_message (id, chat_session_id, role, content, created_at) "
        "SELECT gen_random_uuid(), $1, CASE n % 2 WHEN 0 THEN 'user' ELSE 'assistant' END, 'message ' || n, "
        "to_timestamp(1700000000 + n) FROM generate_series(0, 999) AS n",
        chat,
    )
    assert (await importer()).turns == 500
    session = await importer.session(ScopeKind.CHAT, chat)
    turns = await importer.turns(session)
    assert session.stored_bytes == sum(len(turn.body) for turn in turns)
    assert said(turns)[499] == ["message 998", "message 999"]


# -- issues ----------------------------------------------------------------------------------


async def test_an_issue_becomes_a_session_that_knows_its_native_sessions(
    importer: Importer, multica: Multica
) -> None:
    coder, reviewer = await multica.agent("coder"), await multica.agent("reviewer")
    laptop = await multica.runtime("laptop")
    issue = await multica.insert("issue", title="Crash at start")
    await multica.task(coder, laptop, issue_id=issue, session_id="c1", work_dir="/c")
    await multica.task(coder, laptop, "failed", issue_id=issue, session_id="c1", work_dir="/c")
    await multica.task(reviewer, laptop, issue_id=issue, session_id="r1", work_dir="/r")
    await multica.task(coder, laptop, "queued", issue_id=issue)
    report = await importer()
    assert (report.issues, report.created, report.turns, report.pointers) == (2, 2, 0, 3)
    session = await importer.session(ScopeKind.ISSUE, issue)
    assert (session.title, session.turns) == ("Crash at start", 0)
    resumed = await decision(importer, session, runtime("laptop"))
    assert isinstance(resumed, NativeResume)
    assert (resumed.native_session, resumed.work_dir and resumed.work_dir.path) == ("c1", "/c")
    other = await importer.session(ScopeKind.ISSUE, issue, "reviewer")
    assert [one.native_session for one in await importer.pointers(other)] == ["r1"]


async def test_a_task_whose_runtime_was_deleted_keeps_its_folder_and_no_runtime(
    importer: Importer, multica: Multica
) -> None:
    agent, issue = await multica.agent("coder"), new_id()
    await multica.task(agent, None, issue_id=issue, session_id="s1", work_dir="/w")
    await importer()
    (pointer,) = await importer.pointers(await importer.session(ScopeKind.ISSUE, issue))
    assert (pointer.native_session, pointer.runtime, pointer.work_dir) == ("s1", None, "/w")


# -- again -----------------------------------------------------------------------------------


async def test_imported_twice_nothing_changes_and_new_rows_are_added(
    importer: Importer, multica: Multica, backend: Backend
) -> None:
    agent, laptop = await multica.agent("coder"), await multica.runtime("laptop")
    chat = await multica.chat(agent, session_id="s1")
    await multica.exchange(chat, agent, laptop, "one", "s1")
    await multica.say(chat, "user", "two")
    issue = new_id()
    await multica.task(agent, laptop, issue_id=issue, session_id="i1")
    await importer()
    before = await dump(backend)
    again = await importer()
    assert (again.created, again.extended, again.unchanged) == (0, 0, 2)
    assert (again.turns, again.pointers) == (0, 0)
    assert await dump(backend) == before
    task = await multica.task(agent, laptop, chat_session_id=chat, session_id="s1")
    await multica.say(chat, "assistant", "reply to two", task_id=task)
    await multica.exchange(chat, agent, laptop, "three", "s1")
    more = await importer()
    assert (more.extended, more.unchanged, more.turns, more.pointers) == (1, 1, 2, 2)
    session = await importer.session(ScopeKind.CHAT, chat)
    turns = await importer.turns(session)
    assert said(turns) == [[text, f"reply to {text}"] for text in ("one", "two", "three")]
    assert [one.through for one in await importer.pointers(session)] == [turn.id for turn in turns]


async def test_a_session_that_was_continued_here_gets_no_more_turns_from_there(
    importer: Importer, multica: Multica
) -> None:
    agent, laptop = await multica.agent("coder"), await multica.runtime("laptop")
    chat = await multica.chat(agent, session_id="s1")
    await multica.exchange(chat, agent, laptop, "one", "s1")
    await importer()
    session = await importer.session(ScopeKind.CHAT, chat)
    await builders.talk(importer.backend.store, session, 1)
    await multica.exchange(chat, agent, laptop, "two", "s1")
    report = await importer()
    assert (report.turns, report.continued) == (0, [chat])
    assert len(await importer.turns(await importer.session(ScopeKind.CHAT, chat))) == 2


async def test_a_session_that_is_in_use_is_left_for_the_next_time(
    importer: Importer, multica: Multica
) -> None:
    agent, laptop = await multica.agent("coder"), await multica.runtime("laptop")
    chat = await multica.chat(agent)
    await multica.exchange(chat, agent, laptop, "one", "s1")
    await importer()
    held = await importer.session(ScopeKind.CHAT, chat)
    await builders.start(importer.backend.store, builders.ask(held, user("three")))
    await multica.exchange(chat, agent, laptop, "two", "s1")
    report = await importer()
    assert (report.turns, report.pointers, report.busy) == (0, 0, [chat])
    assert len(await importer.turns(await importer.session(ScopeKind.CHAT, chat))) == 1


async def test_a_dry_run_reports_the_same_and_writes_nothing(
    importer: Importer, multica: Multica, backend: Backend
) -> None:
    agent, laptop = await multica.agent("coder"), await multica.runtime("laptop")
    chat = await multica.chat(agent, session_id="other")
    await multica.exchange(chat, agent, laptop, "one", "s1")
    before = await dump(backend)
    dry = await importer(ImportOptions(TENANT, dry_run=True))
    assert await dump(backend) == before
    assert dry == await importer()


# -- agents, workspaces, tenants -------------------------------------------------------------


async def test_agents_get_the_keys_that_were_named(importer: Importer, multica: Multica) -> None:
    first, second = await multica.agent("Coder One"), await multica.agent("Reviewer")
    for agent in (first, second):
        await multica.task(agent, None, issue_id=new_id(), session_id="s")
    report = await importer(ImportOptions(TENANT, keys={"Coder One": "coder", second: "critic"}))
    assert report.agents == {"Coder One": "coder", "Reviewer": "critic"}
    with pytest.raises(InvalidRequest, match="no agent is named 'nobody'"):
        await importer(ImportOptions(TENANT, keys={"nobody": "x"}))


async def test_two_agents_under_one_key_are_refused_before_anything_is_written(
    importer: Importer, multica: Multica, backend: Backend
) -> None:
    await multica.agent("coder")
    await multica.agent("coder")
    before = await dump(backend)
    with pytest.raises(InvalidRequest, match="two agents of multica would become the agent 'coder'"):
        await importer()
    assert await dump(backend) == before


async def test_workspaces_are_not_mixed(importer: Importer, multica: Multica) -> None:
    await multica.task(await multica.agent("coder"), None, issue_id=new_id(), session_id="s")
    mine, multica.workspace = multica.workspace, new_id()
    await multica.task(await multica.agent("other"), None, issue_id=new_id(), session_id="s")
    with pytest.raises(InvalidRequest, match="this database has 2 workspaces"):
        await importer()
    report = await importer(ImportOptions(TENANT, workspace=mine))
    assert (report.agents, report.issues) == ({"coder": "coder"}, 1)
    with pytest.raises(InvalidRequest, match="no agent of this database is in workspace"):
        await importer(ImportOptions(TENANT, workspace=new_id()))


async def test_I35_two_tenants_import_the_same_database_apart(importer: Importer, multica: Multica) -> None:
    await multica.task(await multica.agent("coder"), None, issue_id=new_id(), session_id="s")
    first = await importer()
    second = await importer(ImportOptions(TenantId("other")))
    assert (first.pointers, second.pointers, second.created) == (1, 1, 1)


# -- other databases -------------------------------------------------------------------------


async def test_a_database_of_an_older_release_is_read(importer: Importer, multica: Multica) -> None:
    """Without the columns and tables that came later; with those that every release with chats has."""
    agent, laptop = await multica.agent("coder"), await multica.runtime("laptop")
    chat = await multica.chat(agent, session_id="s1")
    await multica.exchange(chat, agent, laptop, "one", "s1")
    for change in (
        "DROP TABLE agent",
        "DROP TABLE issue",
        "ALTER TABLE chat_session DROP COLUMN runtime_id",
        "ALTER TABLE chat_message DROP COLUMN failure_reason, DROP COLUMN message_kind, "
        "DROP COLUMN channel_context_revision, DROP COLUMN task_id",
        "ALTER TABLE agent_task_queue DROP COLUMN failure_reason, DROP COLUMN retired_session_id",
        "ALTER TABLE agent_runtime DROP COLUMN profile_id",
    ):
        await multica.connection.execute(change)
    report = await importer()
    assert (report.turns, report.pointers, report.agents) == (1, 1, {agent: agent})
    (pointer,) = await importer.pointers(await importer.session(ScopeKind.CHAT, chat, agent))
    assert (pointer.runtime, pointer.through) == (runtime("laptop"), None)


async def test_a_database_that_is_not_multicas_is_refused(multica_dsn: str) -> None:
    with pytest.raises(InvalidRequest, match="this is not a multica database: it has none of the tables"):
        async with open_multica(multica_dsn):
            pass


async def test_missing_tables_and_columns_are_named(multica: Multica, multica_dsn: str) -> None:
    await multica.connection.execute("DROP TABLE agent_runtime")
    await multica.connection.execute("ALTER TABLE agent_task_queue DROP COLUMN chat_session_id")
    message = "lacks the column agent_task_queue.chat_session_id, the table agent_runtime"
    with pytest.raises(InvalidRequest, match=message):
        async with open_multica(multica_dsn):
            pass


async def test_an_unreachable_database_is_an_error_with_a_reason(
    postgres_server: PostgresServer,
) -> None:
    with pytest.raises(StoreUnavailable, match="cannot reach the multica database"):
        async with open_multica("postgresql://127.0.0.1:1/multica"):
            pass
    with pytest.raises(StoreError, match=r"cannot open the multica database: .*does not exist"):
        async with open_multica(postgres_server.dsn("nothing")):
            pass
    with pytest.raises(InvalidRequest, match="starts with postgresql://"):
        async with open_multica("sqlite:///multica.db"):
            pass


async def test_multicas_database_is_only_read(multica_dsn: str, multica: Multica) -> None:
    with pytest.raises(StoreError, match="cannot execute DELETE in a read-only transaction"):
        async with open_multica(multica_dsn) as source:
            await source._connection.execute("DELETE FROM chat_message")
