"""Notes: kept per tenant, agent and space, changed only at the revision that was read (I35)."""

import asyncio

import pytest

from lastgood.model.notes import NoteAdded
from lastgood.ports import Store
from tests.contract.builders import STRANGER, TENANT

pytestmark = pytest.mark.anyio

PLACE = (TENANT, "agent.yaml", "memory:")


async def test_a_note_is_read_as_it_was_written_in_the_order_of_writing(store: Store) -> None:
    for id, body in (("b", '{"text":"süß 🧭"}'), ("a", "{}")):
        assert await store.add_note(*PLACE, id, body, 10) is NoteAdded.ADDED
    first, second = await store.list_notes(*PLACE)
    assert (first.id, first.body, first.revision) == ("b", '{"text":"süß 🧭"}', 1)
    assert second.id == "a"
    assert 1_600_000_000 < first.created_at <= first.updated_at
    assert await store.find_note(*PLACE, "b") == first
    assert await store.find_note(*PLACE, "c") is None


async def test_I33_adding_a_note_again_changes_nothing(store: Store) -> None:
    await store.add_note(*PLACE, "a", "first", 1)
    assert await store.add_note(*PLACE, "a", "second", 1) is NoteAdded.EXISTS
    assert [note.body for note in await store.list_notes(*PLACE)] == ["first"]


async def test_I40_a_space_holds_so_many_and_others_are_not_counted(store: Store) -> None:
    assert await store.add_note(*PLACE, "a", "", 1) is NoteAdded.ADDED
    assert await store.add_note(*PLACE, "b", "", 1) is NoteAdded.FULL
    assert await store.add_note(TENANT, "other.yaml", "memory:", "b", "", 1) is NoteAdded.ADDED
    assert await store.delete_note(*PLACE, "a", None)
    assert await store.add_note(*PLACE, "b", "", 1) is NoteAdded.ADDED


@pytest.mark.parametrize(
    "elsewhere",
    [
        (STRANGER, "agent.yaml", "memory:"),
        (TENANT, "other.yaml", "memory:"),
        (TENANT, "agent.yaml", "memory:other"),
    ],
)
async def test_I35_notes_of_others_are_unknown(store: Store, elsewhere: tuple[str, str, str]) -> None:
    await store.add_note(*PLACE, "a", "mine", 10)
    tenant, agent, space = type(TENANT)(elsewhere[0]), elsewhere[1], elsewhere[2]
    assert await store.list_notes(tenant, agent, space) == ()
    assert await store.find_note(tenant, agent, space, "a") is None
    assert await store.replace_note(tenant, agent, space, "a", "theirs", None) is None
    assert not await store.delete_note(tenant, agent, space, "a", None)
    assert [note.body for note in await store.list_notes(*PLACE)] == ["mine"]


async def test_a_change_names_the_revision_that_it_is_for(store: Store) -> None:
    await store.add_note(*PLACE, "a", "one", 10)
    assert await store.replace_note(*PLACE, "a", "two", 1) == 2
    assert await store.replace_note(*PLACE, "a", "lost", 1) is None
    assert not await store.delete_note(*PLACE, "a", 1)
    assert await store.replace_note(*PLACE, "a", "three", None) == 3
    [note] = await store.list_notes(*PLACE)
    assert (note.body, note.revision) == ("three", 3)
    assert note.updated_at >= note.created_at
    assert await store.delete_note(*PLACE, "a", 3)
    assert not await store.delete_note(*PLACE, "a", None)


async def test_of_changes_for_one_revision_at_once_one_wins(store: Store) -> None:
    await store.add_note(*PLACE, "a", "", 10)
    done = await asyncio.gather(*(store.replace_note(*PLACE, "a", str(n), 1) for n in range(8)))
    assert sorted(one for one in done if one is not None) == [2]
