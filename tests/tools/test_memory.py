"""The memory tools over a real store: calls that are made again, limits, damage."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from lastgood.core.memories import MOST_MEMORIES
from lastgood.engine.tools.memory import LISTED_CHARACTERS
from lastgood.flows.notes import AgentNotes, at_once
from lastgood.model.ids import DEFAULT_TENANT, AttemptId
from lastgood.store.sqlite import open_sqlite
from tests.tools.toolkit import Kit

pytestmark = pytest.mark.anyio


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    store = open_sqlite(tmp_path / "x.db")
    kit = Kit("memory", None)
    kit.notes = AgentNotes(store, DEFAULT_TENANT, "agent", at_once)
    yield kit
    await store.close()


async def test_I33_a_call_whose_outcome_was_lost_stores_its_memory_once(kit: Kit) -> None:
    """The next attempt makes the same call under the same key."""
    add = kit.tools["add_memory"]
    use = kit.use({"memory": "once"})
    first = await add.run(use)
    again = await add.run(replace(use, attempt=AttemptId("att_2"), attempt_number=use.attempt_number + 1))
    assert first == again
    # Another call, or a model that says it in other words this time.
    await add.run(replace(use, key="turn:2:call"))
    await add.run(replace(use, arguments={"memory": "twice"}))
    found = [one["memory"] for one in json.loads(await kit("get_memories"))]
    assert found == ["once", "once", "twice"]


async def test_I40_the_limit_is_said(kit: Kit) -> None:
    assert kit.notes is not None
    for number in range(MOST_MEMORIES):
        await kit.notes.add("memory:", str(number), "{}", MOST_MEMORIES)
    assert f"there are {MOST_MEMORIES:,} memories, which is the limit" in await kit.fails(
        "add_memory", memory="x"
    )


@pytest.mark.parametrize("memory", ["", " ", "a\x00b", "x" * 8193])
async def test_I40_what_cannot_be_stored_is_refused(kit: Kit, memory: str) -> None:
    await kit.fails("add_memory", memory=memory)
    assert await kit("get_memories") == "[]"


async def test_I18_a_damaged_memory_is_said_and_can_be_deleted(kit: Kit, tmp_path: Path) -> None:
    id = (await kit("add_memory", memory="x")).split()[-1].rstrip(".")
    apsw.Connection(str(tmp_path / "x.db")).execute("UPDATE notes SET body = '{'")
    assert "This memory is damaged" in await kit("get_memories")
    await kit("delete_memory", id=id)
    assert await kit("get_memories") == "[]"


async def test_a_run_without_notes_says_so() -> None:
    assert "cannot keep memories" in await Kit("memory", None).fails("get_memories")


async def test_I40_a_listing_has_the_newest_memories_that_fit_and_a_search_a_limit(kit: Kit) -> None:
    assert kit.notes is not None
    for number in range(40):
        body = json.dumps({"memory": f"{number} " + "x" * 4000, "category": ""})
        await kit.notes.add("memory:", f"mem_{number:016x}", body, MOST_MEMORIES)
    for tool in ("get_memories", "search_memories"):
        listing, _, note = (await kit(tool)).partition("\n")
        found = json.loads(listing)
        assert [one["memory"].split()[0] for one in found] == [str(at) for at in range(40 - len(found), 40)]
        assert note == f"[{40 - len(found)} older memories are not listed; search for more specific words]"
        assert len(listing) < LISTED_CHARACTERS
    assert len(json.loads(await kit("search_memories", query="7"))) == 4
    assert "`query` has 2,000 characters" in await kit.fails("search_memories", query="x " * 1000)
