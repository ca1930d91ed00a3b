"""The session pages of the console: permalinks, searches, and forms that are sent again."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside
from tests.surfaces.test_console import Visitor, said

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    async with open_inside(tmp_path) as opened:
        yield opened


@pytest.fixture
async def visitor(inside: InProcessServer) -> Visitor:
    made = Visitor(inside)
    await made.get("/")
    return made


async def noted(inside: InProcessServer, session: str, turns: int) -> list[str]:
    """Appends so many turns. Returns their ids."""
    for number in range(turns):
        await inside.good("POST", f"/api/sessions/{session}/messages", said(f"note {number}"))
    listed = await inside.good("GET", f"/api/sessions/{session}/turns?limit=200")
    return [str(turn["id"]) for turn in listed]


# -- permalinks ------------------------------------------------------------------------------


async def test_a_link_to_a_turn_shows_it_however_many_turns_follow(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await inside.session()
    turns = await noted(inside, session, 80)
    for place in (0, 1, 40, 49, 50, 79):
        link = f"/sessions/{session}?turn={turns[place]}"
        page = await visitor.get(link)
        assert f'id="{turns[place]}"' in page.body.decode(), place
        assert f'href="{link}#{turns[place]}"' in page.body.decode(), place
        shown = (await visitor.get(link.replace("?", ".json?"))).json
        assert len(shown["turns"]) <= 30
        assert shown["is_newest"] == (place >= 50), place
    assert (await visitor.get(f"/sessions/{session}?turn=turn_nothing")).status == 404
    other = await inside.session()
    assert (await visitor.get(f"/sessions/{other}?turn={turns[0]}")).status == 404


async def test_links_from_the_pages_below_a_session_lead_to_their_turn(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await inside.session()
    first = (await inside.turn(session))["id"]
    await noted(inside, session, 32)
    link = f"/sessions/{session}?turn={first}#{first}"
    fork = await inside.good("POST", f"/api/sessions/{session}/fork", {"turn": first})
    attempt = (await inside.good("GET", f"/api/sessions/{session}/attempts"))[0]["id"]
    for path in (
        f"/sessions/{session}/turns/{first}",
        f"/sessions/{session}/turns/{first}/prompt",
        f"/sessions/{session}/attempts/{attempt}",
        f"/sessions/{fork['id']}",
    ):
        page = (await visitor.get(path)).body.decode()
        assert f'href="{link}"' in page, path
    # A fork shows the turns that it has inherited.
    assert f'id="{first}"' in (await visitor.get(f"/sessions/{fork['id']}?turn={first}")).body.decode()


async def test_a_link_to_a_turn_that_failed_shows_it_beside_the_turn_before_it(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await inside.session()
    failed = []
    for turns_after in (33, 33):
        attempt = await inside.failed(session)
        failed.append((await inside.good("GET", f"/api/sessions/{session}/attempts/{attempt}"))["turn"])
        await noted(inside, session, turns_after)
    for turn in failed:
        page = await visitor.get(f"/sessions/{session}?turn={turn}")
        assert f'id="{turn}"' in page.body.decode()
