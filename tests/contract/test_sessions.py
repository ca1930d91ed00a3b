"""Sessions: made, listed, changed one field at a time, forked and deleted for good."""

from dataclasses import replace
from typing import Any

import pytest

from lastgood.model.agents import Permissions, Safety
from lastgood.model.attempts import AttemptStatus, BeginConflict, Committed
from lastgood.model.events import Event, TitleSet
from lastgood.model.ids import SessionId
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import Session, SessionStatus, TitleBy, Usage
from lastgood.model.tokens import Scope
from lastgood.ports import Store
from tests.contract import builders, work_builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio


async def listed(store: Store, **how: Any) -> list[SessionId]:
    page = await store.list_sessions(TENANT, **({"limit": 100} | how))
    return [session.id for session in page.sessions]


RULES = (
    RuleLayer(Scope.ADMIN, "tok_a", Permissions(allow=("echo",), ask=("shell:cmd=rm *",), deny=("é",))),
    RuleLayer(Scope.SESSION, "tok_b", safety=Safety.STRICT),
)


# --- made and read -----------------------------------------------------------------------------------------


async def test_a_session_comes_back_as_it_was_made(store: Store) -> None:
    new = builders.new_session(
        agent_key="https://example.com/a.yaml?tag=é",
        title="A title 🧭",
        title_by=TitleBy.PERSON,
        model="some/model",
        working_dir="/somewhere",
        rules=RULES,
        metadata={"a": [1, 2.5, None, "é"], "b": {"c": True}},
        conversation="conversation",
    )
    made = await store.create_session(new)
    assert made is not None
    assert await store.get_session(TENANT, new.id) == made
    for field in new.__dataclass_fields__:
        assert getattr(made, field) == getattr(new, field)
    assert (made.head, made.turns, made.attempt, made.forked_from) == (None, 0, None, None)
    assert (made.status, made.usage, made.starred) == (SessionStatus.IDLE, Usage(), False)
    assert 1_600_000_000 < made.created_at <= made.updated_at


async def test_an_unknown_session_is_no_session(store: Store) -> None:
    assert await store.get_session(TENANT, SessionId("unknown")) is None


async def test_an_id_is_given_once(backend: Backend) -> None:
    session = await builders.session(backend.store)
    before = await dump(backend)
    new = builders.new_session()
    assert await backend.store.create_session(replace(new, id=session.id)) is None
    assert await backend.store.create_session(replace(new, id=session.id, tenant=STRANGER)) is None
    assert await dump(backend) == before


# --- listed ------------------------------------------------------------------------------------------------


async def test_I5_sessions_are_listed_newest_first(store: Store) -> None:
    made = [(await builders.session(store)).id for _ in range(4)]
    await builders.session(store, STRANGER)
    assert await listed(store) == made[::-1]


async def test_pages_join_to_the_whole_list(store: Store) -> None:
    made = [(await builders.session(store)).id for _ in range(5)][::-1]
    for limit in range(1, 7):
        pages, cursor = [], None
        for _ in made:  # more pages than sessions would be a cursor that stands still
            page = await store.list_sessions(TENANT, limit=limit, cursor=cursor)
            pages.append([session.id for session in page.sessions])
            if (cursor := page.next_cursor) is None:
                break
        assert [id for page_ids in pages for id in page_ids] == made
        assert all(len(page_ids) == limit for page_ids in pages[:-1])


async def test_no_sessions_are_an_empty_page(store: Store) -> None:
    page = await store.list_sessions(TENANT, limit=10)
    assert (page.sessions, page.next_cursor) == ((), None)


async def test_pages_stay_in_place_while_sessions_come_and_go(store: Store) -> None:
    made = [await builders.session(store) for _ in range(6)]
    first = await store.list_sessions(TENANT, limit=2)
    await builders.session(store)
    await builders.commit(store, made[0])
    await store.set_title(TENANT, made[1].id, "touched", TitleBy.PERSON)
    await store.delete_session(TENANT, made[4].id)  # the cursor itself
    rest = await listed(store, cursor=first.next_cursor)
    assert rest == [session.id for session in made[3::-1]]


async def test_a_number_is_never_given_twice(store: Store) -> None:
    first = await builders.session(store)
    await store.delete_session(TENANT, first.id)
    assert (await builders.session(store)).number > first.number


@pytest.mark.parametrize(
    ("title", "query", "found"),
    [
        ("A nice title", "nice", True),
        ("A nice title", "NICE", True),
        ("A NICE title", "nice", True),
        ("A nice title", "", True),
        ("A nice title", "other", False),
        ("100 % sure", "100 %", True),
        ("100 percent", "0 %", False),
        ("snake_case", "e_c", True),
        ("snakecase", "e_c", False),
        ("a\\b", "\\", True),
        ("a/b", "\\", False),
        ("it's", "t's", True),
        ("Äpfel", "Äpfel", True),
        ("Äpfel", "äpfel", True),
        ("ÜBER", "über", True),
        ("Привет", "привет", True),
        ("日本語", "本", True),
    ],
)
async def test_a_search_finds_words_of_titles_in_any_case_and_script(
    store: Store, title: str, query: str, found: bool
) -> None:
    session = await builders.session(store, title=title)
    assert await listed(store, query=query) == ([session.id] if found else [])


async def of_every_kind(store: Store) -> dict[tuple[str, SessionStatus], list[SessionId]]:
    """Sessions of two agents in every state, newest first."""
    made: dict[tuple[str, SessionStatus], list[SessionId]] = {}
    for _ in range(3):
        for agent in ("agent", "agent2"):
            for status in SessionStatus:
                session = await builders.session(store, agent_key=agent, title=f"{agent} {status}")
                if status is SessionStatus.QUEUED:
                    await work_builders.task(store, session)
                elif status is not SessionStatus.IDLE:
                    tried = await builders.start(store, builders.ask(session))
                    if status is SessionStatus.WAITING:
                        await store.wait_if_held(tried.hold, {"q": 1}, 60, [])
                made.setdefault((agent, status), []).insert(0, session.id)
    return made


async def test_a_list_can_be_of_one_agent_or_state(store: Store) -> None:
    made = await of_every_kind(store)
    for (agent, status), ids in made.items():
        assert await listed(store, agent=agent, status=status) == ids
        for session in (await store.list_sessions(TENANT, limit=100, status=status)).sessions:
            assert session.status is status
        assert len(await listed(store, status=status)) == 6
        assert len(await listed(store, agent=agent)) == 12
        assert await listed(store, agent=agent, status=status, query="agent2") == (
            ids if agent == "agent2" else []
        )
    for unknown in ("", "agen", "AGENT", "agent%", "agent_"):
        assert await listed(store, agent=unknown) == [], "an agent is named in full"


async def test_pages_of_a_filtered_list_join_to_the_whole_of_it(store: Store) -> None:
    made = await of_every_kind(store)
    for (agent, status), ids in made.items():
        for limit in (1, 2, 3, 4):
            pages, cursor = [], None
            for _ in ids:
                page = await store.list_sessions(
                    TENANT, limit=limit, cursor=cursor, agent=agent, status=status
                )
                pages.append([session.id for session in page.sessions])
                if (cursor := page.next_cursor) is None:
                    break
            assert [id for page_ids in pages for id in page_ids] == ids
            assert all(len(page_ids) == limit for page_ids in pages[:-1])
            assert cursor is None


async def test_M1_5_listing_and_viewing_read_no_message(backend: Backend) -> None:
    """Every table but those of sessions and tasks is taken away, and nobody misses it."""
    session = await builders.session(backend.store, title="here")
    await builders.talk(backend.store, session, 2)
    await builders.start(backend.store, builders.ask(session))
    seen = await builders.again(backend.store, session)
    others = [table for table in await backend.tables() if table not in {"sessions", "tasks"}]
    for table in others:
        await backend.execute(f"ALTER TABLE {table} RENAME TO taken_{table}")
    try:
        assert await builders.again(backend.store, session) == seen
        assert await listed(backend.store) == [session.id]
        assert await listed(backend.store, query="here") == [session.id]
        assert await listed(backend.store, agent="agent", status=SessionStatus.RUNNING) == [session.id]
        assert [each.id for each in await backend.store.walk_sessions(after=0, limit=9)] == [session.id]
        assert await backend.store.count_forks(TENANT, session.id) == 0
    finally:
        for table in others:
            await backend.execute(f"ALTER TABLE taken_{table} RENAME TO {table}")


async def test_all_sessions_are_walked_in_steps_oldest_first(store: Store) -> None:
    made = [await builders.session(store, each) for each in (TENANT, STRANGER, TENANT, STRANGER, TENANT)]
    await store.delete_session(TENANT, made[2].id)
    del made[2]
    for limit in (1, 2, 3, 9):
        walked: list[Session] = []
        while step := await store.walk_sessions(after=walked[-1].number if walked else 0, limit=limit):
            assert len(step) <= limit
            walked += step
        assert walked == made


# --- changed -----------------------------------------------------------------------------------------------

FIELDS: list[tuple[str, Any]] = [
    ("model", "other/model"),
    ("model", None),
    ("starred", True),
    ("metadata", {"k": ["é", 1]}),
    ("agent_key", "other"),
]


@pytest.mark.parametrize(("field", "value"), FIELDS)
async def test_M3_7_a_change_of_one_field_changes_only_this_field(
    backend: Backend, field: str, value: Any
) -> None:
    store = backend.store
    fields: dict[str, Any] = {"title": "t", "model": "a/model", "metadata": {"old": 1}, "conversation": "c"}
    fields |= {"rules": RULES}
    session = await builders.session(store, **fields)
    await builders.commit(store, session)
    other = await builders.session(store)
    before, tables = await builders.again(store, session), await dump(backend)
    assert await store.set_field(TENANT, session.id, field, value)
    assert await builders.again(store, session) == replace(before, **{field: value})
    assert await builders.again(store, other) == other
    after = await dump(backend)
    assert after.pop("sessions") != tables.pop("sessions")
    assert after == tables


@pytest.mark.parametrize(("field", "value"), FIELDS)
async def test_what_a_running_turn_works_with_is_changed_only_while_free(
    store: Store, field: str, value: Any
) -> None:
    session = await builders.session(store, model="a/model")
    tried = await builders.start(store, builders.ask(session))
    before = await builders.again(store, session)
    changed = await store.set_field(TENANT, session.id, field, value)
    assert changed == (field not in ("model", "agent_key"))
    assert await builders.again(store, session) == (replace(before, **{field: value}) if changed else before)
    await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, [])
    assert await store.set_field(TENANT, session.id, field, value)


@pytest.mark.parametrize(("field", "value"), FIELDS)
async def test_a_change_of_an_unknown_session_is_refused(store: Store, field: str, value: Any) -> None:
    assert not await store.set_field(TENANT, SessionId("unknown"), field, value)


OTHER_RULES = (RuleLayer(Scope.APPROVE, "tok_c", Permissions(deny=("other",))),)


async def test_rules_are_replaced_only_if_they_are_those_that_were_read(store: Store) -> None:
    """Else a weaker scope's change, decided before an admin's rule came, would remove it."""
    session = await builders.session(store, rules=RULES)
    assert not await store.set_rules_if_unchanged(TENANT, session.id, (), OTHER_RULES)
    assert not await store.set_rules_if_unchanged(TENANT, session.id, RULES[:1], OTHER_RULES)
    assert (await builders.again(store, session)).rules == RULES
    assert await store.set_rules_if_unchanged(TENANT, session.id, RULES, OTHER_RULES)
    assert await builders.again(store, session) == replace(session, rules=OTHER_RULES)
    assert not await store.set_rules_if_unchanged(TENANT, SessionId("unknown"), (), RULES)


async def test_rules_are_replaced_while_a_turn_runs(store: Store) -> None:
    session = await builders.session(store)
    await builders.start(store, builders.ask(session))
    before = await builders.again(store, session)
    assert await store.set_rules_if_unchanged(TENANT, session.id, (), RULES)
    assert await builders.again(store, session) == replace(before, rules=RULES)


async def test_a_fork_has_the_rules_of_its_source_or_there_is_no_fork(store: Store) -> None:
    session = await builders.session(store, rules=RULES)
    for rules in ((), RULES[:1], OTHER_RULES):
        assert await store.fork_session(session, None, builders.new_session(rules=rules)) is None
    fork = await store.fork_session(session, None, builders.new_session(rules=RULES))
    assert fork is not None
    assert fork.rules == RULES


@pytest.mark.parametrize("before", TitleBy)
@pytest.mark.parametrize("by", [TitleBy.US, TitleBy.PERSON])
async def test_M3_7_our_title_never_takes_the_place_of_another(
    backend: Backend, before: TitleBy, by: TitleBy
) -> None:
    store = backend.store
    session = await builders.session(store, title="old", title_by=before, metadata={"a": 1}, model="m")
    tables = await dump(backend)
    received = [Event(None, TitleSet("new"))]
    written = await store.set_title(TENANT, session.id, "new", by, received)
    assert written == (by is TitleBy.PERSON or before is TitleBy.NOBODY)
    if written:
        expected = replace(session, title="new", title_by=by, last_event_seq=1)
        assert await builders.again(store, session) == expected
        (event,) = await store.read_events(TENANT, session.id, after=0)
        assert (event.seq, event.data) == (1, TitleSet("new"))
    else:
        assert await dump(backend) == tables


async def test_M3_7_a_title_does_not_disturb_a_running_turn(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    assert await store.set_title(TENANT, session.id, "new", TitleBy.US)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES
    assert (await builders.again(store, session)).title == "new"


async def test_a_title_of_an_unknown_session_is_refused(store: Store) -> None:
    assert not await store.set_title(
        TENANT, SessionId("unknown"), "new", TitleBy.PERSON, builders.events("x")
    )


# --- deleted -----------------------------------------------------------------------------------------------


async def everything_of(store: Store) -> Session:
    """A session with something in every table: turns, a failed try, a running one with steps and events."""
    session = await builders.session(store, title="t")
    await builders.talk(store, session, 2)
    failed = await builders.start(store, builders.ask(session, key="failed"), builders.events("x"))
    await store.finish_if_held(failed.hold, AttemptStatus.FAILED, ("code", "why"), builders.events("y"))
    return session


def without_usage(tables: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Usage is in sums that name no session, and outlives them."""
    return {table: rows for table, rows in tables.items() if table != "usage"}


def is_empty(tables: dict[str, list[Any]]) -> bool:
    return not any(rows for table, rows in without_usage(tables).items() if table != "lastgood_schema")


async def test_I15_nothing_of_a_deleted_session_is_left_or_comes_back(backend: Backend) -> None:
    store = backend.store
    session = await everything_of(store)
    tried = await builders.start(store, builders.ask(session), builders.events("z"))
    hold = tried.hold
    await store.journal_if_held(hold, [builders.answer("a")], builders.events("a"))
    assert await store.delete_session(TENANT, session.id)
    assert is_empty(await dump(backend))

    assert not await store.journal_if_held(hold, [builders.answer("late")], builders.events("late"))
    assert await store.append_events_if_held(hold, builders.events("late")) is None
    assert (await store.commit_if_head(hold, tried.plan(), builders.events("late"))).outcome is Committed.LOST
    assert not await store.wait_if_held(hold, {"q": 1}, 60, builders.events("late"))
    assert await store.resume_if_waiting(hold, "node", 60) is None
    assert not await store.set_orphaned(hold, True)
    assert not await store.ask_cancel(hold)
    assert await store.renew_leases([hold], 60) == {}
    assert not await store.finish_if_held(hold, AttemptStatus.FAILED, None, builders.events("late"))
    assert not await store.set_title(TENANT, session.id, "late", TitleBy.PERSON, builders.events("late"))
    for field, value in FIELDS:
        assert not await store.set_field(TENANT, session.id, field, value)
    assert not await store.set_rules_if_unchanged(TENANT, session.id, (), RULES)
    standing = await store.begin_if_free(builders.begin(builders.ask(session)), builders.events("late"))
    assert standing == BeginConflict(None)
    again = builders.begin(builders.ask(session), turn=tried.begin.turn, again=True)
    assert await store.begin_if_free(again, []) == BeginConflict(None)
    assert await store.fork_session(session, None, builders.new_session()) is None
    assert not await store.delete_session(TENANT, session.id)
    assert is_empty(await dump(backend))


async def test_I15_a_deleted_session_is_not_found_by_any_read(store: Store) -> None:
    session = await everything_of(store)
    tried = await builders.start(store, builders.ask(session, durable=True), lease_seconds=-1)
    head = (await builders.again(store, session)).head
    assert head is not None
    await store.delete_session(TENANT, session.id)
    assert await store.get_session(TENANT, session.id) is None
    assert await listed(store) == []
    assert await store.read_turns(TENANT, head.turn) == ()
    assert await store.find_turn(TENANT, head.turn) is None
    assert await store.list_attempts(TENANT, session.id) == ()
    assert await store.get_attempt(TENANT, tried.hold.attempt) is None
    assert await store.read_request(TENANT, tried.begin.turn) is None
    assert await store.read_steps(TENANT, tried.hold.attempt) == ()
    assert await store.read_events(TENANT, session.id, after=0) == ()
    assert await store.expired_attempts(10) == ()
    assert await store.running_attempts(10) == ()
    assert await store.interrupted_asks(10, deaths_below=3) == ()


async def test_I15_a_delete_leaves_every_other_session_alone(backend: Backend) -> None:
    store = backend.store
    kept = await everything_of(store)
    await builders.start(store, builders.ask(kept))
    before = await dump(backend)
    gone = await builders.session(store)
    await builders.talk(store, gone, 2)
    await builders.start(store, builders.ask(gone), builders.events("x"))
    assert await store.delete_session(TENANT, gone.id)
    assert without_usage(await dump(backend)) == without_usage(before)


async def test_a_key_of_a_deleted_session_can_be_used_again(store: Store) -> None:
    session = await builders.session(store)
    await builders.commit(store, session, key="key")
    await store.delete_session(TENANT, session.id)
    await builders.start(store, builders.ask(await builders.session(store), key="key"))


async def test_only_unused_sessions_are_deleted_for_their_age(store: Store) -> None:
    """Decided where it is deleted: whoever began a turn meanwhile keeps the session."""
    unused, busy, starred = [await builders.session(store) for _ in range(3)]
    await builders.start(store, builders.ask(busy))
    assert await store.set_field(TENANT, starred.id, "starred", True)
    later = unused.updated_at + 1000
    assert not await store.delete_session(TENANT, unused.id, unused_since=unused.updated_at)
    assert not await store.delete_session(TENANT, busy.id, unused_since=later)
    assert not await store.delete_session(TENANT, starred.id, unused_since=later)
    assert await store.delete_session(TENANT, unused.id, unused_since=later)
    assert await store.get_session(TENANT, unused.id) is None


async def test_sessions_that_exist_are_told_from_deleted_ones_of_any_tenant(store: Store) -> None:
    one, other, deleted = (
        await builders.session(store),
        await builders.session(store, STRANGER),
        await builders.session(store),
    )
    await store.delete_session(TENANT, deleted.id)
    ids = (one.id, other.id, deleted.id, SessionId("never"))
    assert await store.existing_sessions(ids) == {one.id, other.id}
    assert await store.existing_sessions(()) == frozenset()
