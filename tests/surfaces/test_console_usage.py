"""The usage page: what its plots count, and which of it a filter leaves."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from lastgood.surfaces.console.text_format import compact
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside
from tests.surfaces.test_console import XSS, Visitor, said, seen, shelly

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    async with open_inside(tmp_path, AGENT, shelly(tmp_path)) as opened:
        yield opened


@pytest.fixture
async def visitor(inside: InProcessServer) -> Visitor:
    made = Visitor(inside)
    await made.get("/")
    return made


async def used(inside: InProcessServer, user: str, *texts: str, agent: str = AGENT) -> None:
    session = await inside.session(agent=agent)
    for text in texts:
        await inside.ask("POST", f"/api/sessions/{session}/turns", {**said(text), "wait": True, "user": user})


def totals(page: dict[str, Any]) -> dict[str, str]:
    return {plot["title"]: plot["total"] for plot in page["plots"]}


async def test_plots_and_tables_follow_a_filter_and_links_set_and_clear_it(
    inside: InProcessServer, visitor: Visitor
) -> None:
    await used(inside, "ann", "one", "two", "!fail before")
    await used(inside, "bob", "three", agent="shelly")
    everything = (await visitor.get("/usage.json")).json
    assert (totals(everything)["Turns"], totals(everything)["Failed"]) == ("3", "1")
    page = (await visitor.get("/usage?range=day")).body.decode()
    assert 'href="/usage?range=day&amp;user=ann"' in page
    assert 'href="/usage?range=day&amp;runtime="' in page  # this server has no name

    ann = (await visitor.get("/usage.json?user=ann")).json
    assert (totals(ann)["Turns"], totals(ann)["Failed"], ann["total"]["failed_percent"]) == ("2", "1", 33.3)
    assert [row["name"] for row in ann["tables"]["agent"]] == [AGENT]
    assert "user" not in ann["tables"]
    both = (await visitor.get("/usage.json?user=ann&agent=shelly")).json
    assert both["total"]["attempts"] == 0
    assert (await visitor.get("/usage.json?runtime=")).json["total"]["turns"] == 3
    assert (await visitor.get("/usage.json?runtime=rt_other")).json["total"]["turns"] == 0

    page = (await visitor.get("/usage?range=day&user=ann&agent=shelly")).body.decode()
    assert 'href="/usage?range=day&amp;agent=shelly" aria-label="Remove the filter user ann"' in page
    assert 'href="/usage?range=week&amp;user=ann&amp;agent=shelly"' in page  # another range keeps the filter
    assert "/api/usage?user=ann&amp;agent=shelly" in page
    assert "Nothing was used" in page


@pytest.mark.parametrize("text", XSS)
async def test_a_filter_is_text_on_the_page(visitor: Visitor, text: str) -> None:
    page = await visitor.get(f"/usage?{urlencode({'user': text})}")
    assert page.status == 200
    assert text in seen(page)
    assert "<script>alert" not in page.body.decode()


async def test_each_plot_names_its_highest_step(inside: InProcessServer, visitor: Visitor) -> None:
    await used(inside, "ann", "one", "two")
    plots = {plot["title"]: plot for plot in (await visitor.get("/usage.json")).json["plots"]}
    assert list(plots) == ["Turns", "Failed", "Mean time", "Tokens", "Cost"]
    assert (plots["Turns"]["peak"], plots["Failed"]["peak"]) == ("2", "")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (999_960, "1.0M"),
        (8_106_200, "8.1M"),
        (2_500_000_000, "2.5G"),
    ],
)
def test_large_numbers_fit_a_small_card(number: int, text: str) -> None:
    assert compact(number) == text
