"""Plans over a real store: somebody else is faster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lastgood.core.plans import MOST_PLANS
from lastgood.flows.notes import AgentNotes, at_once
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.notes import Note
from lastgood.store.sqlite import open_sqlite
from tests.tools.toolkit import Kit

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True)
class Crowded(AgentNotes):
    """After each of the next reads, another node changes the plan, or adds it."""

    changes: list[str] = field(default_factory=list)

    async def find(self, space: str, id: str) -> Note | None:
        note = await AgentNotes.find(self, space, id)
        if self.changes:
            body = self.changes.pop()
            if await AgentNotes.replace(self, space, id, body) is None:
                await AgentNotes.add(self, space, id, body, 10)
        return note


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    store = open_sqlite(tmp_path / "x.db")
    kit = Kit("plan", tmp_path)
    kit.notes = Crowded(store, DEFAULT_TENANT, "agent", at_once)
    yield kit
    await store.close()


async def test_a_change_of_somebody_else_in_between_is_kept(kit: Kit) -> None:
    await kit("write_plan", name="a", content="one")
    assert isinstance(kit.notes, Crowded)
    kit.notes.changes.append('{"content": "theirs"}')
    await kit("write_plan", name="a", content="mine", status="x")
    kit.notes.changes.append('{"content": "theirs"}')
    await kit("write_plan", name="a", content="mine", title="T")
    # The status of before is gone with their change, and is not brought back from an older reading.
    found = json.loads(await kit("read_plan", name="a"))
    assert (found["content"], found["title"], found.get("status")) == ("mine", "T", None)
    kit.notes.changes.append('{"content": "theirs"}')
    assert "its revision is 6 now" in await kit.fails("delete_plan", name="a", last_known_revision=5)


async def test_a_plan_that_somebody_else_adds_at_once_is_changed_and_not_lost(kit: Kit) -> None:
    assert isinstance(kit.notes, Crowded)
    kit.notes.changes.append('{"content": "theirs", "title": "T"}')
    assert json.loads(await kit("write_plan", name="a", content="mine"))["revision"] == 2
    assert json.loads(await kit("read_plan", name="a"))["title"] == "T"


async def test_a_plan_that_changes_all_the_time_is_said(kit: Kit) -> None:
    await kit("write_plan", name="a", content="one")
    assert isinstance(kit.notes, Crowded)
    kit.notes.changes.extend(["{}"] * 50)
    assert "is changed all the time" in await kit.fails("write_plan", name="a", content="two")


async def test_I40_there_are_so_many_plans(kit: Kit) -> None:
    assert kit.notes is not None
    for number in range(MOST_PLANS):
        await kit.notes.add("plans", f"p{number}", "{}", MOST_PLANS)
    assert f"there are {MOST_PLANS} plans" in await kit.fails("write_plan", name="more", content="x")


async def test_a_damaged_plan_is_said(kit: Kit) -> None:
    assert kit.notes is not None
    await kit.notes.add("plans", "a", "{", 10)
    assert "This plan is damaged" in await kit("read_plan", name="a")


async def test_a_run_without_notes_says_so(tmp_path: Path) -> None:
    assert "cannot keep plans" in await Kit("plan", tmp_path).fails("list_plans")


@pytest.mark.parametrize("revision", [0, -1, 2, 2**63, -(10**30)])
async def test_I40_a_revision_that_no_plan_can_have_is_a_conflict(kit: Kit, revision: int) -> None:
    await kit("write_plan", name="a", content="one")
    assert "its revision is 1 now" in await kit.fails("delete_plan", name="a", last_known_revision=revision)
    assert "its revision is 1 now" in await kit.fails(
        "write_plan", name="a", content="two", last_known_revision=revision
    )


async def test_a_status_brings_no_deleted_plan_back(kit: Kit) -> None:
    await kit("write_plan", name="a", content="one")

    class Deleted(AgentNotes):
        async def replace(self, space: str, id: str, body: str, revision: int | None = None) -> int | None:
            await AgentNotes.delete(self, space, id)
            return await AgentNotes.replace(self, space, id, body, revision)

    assert isinstance(kit.notes, AgentNotes)
    kit.notes = Deleted(kit.notes.store, DEFAULT_TENANT, "agent", at_once)
    assert "there is no plan 'a'" in await kit.fails("set_plan_status", name="a", status="done")
    assert json.loads(await kit("list_plans")) == {"plans": []}
