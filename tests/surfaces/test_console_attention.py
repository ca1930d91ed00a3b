"""What the home page and the navigation call for, who sees it, and what reading it costs."""

import asyncio
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from lastgood.flows import attention
from lastgood.flows.attention import STUCK_SECONDS
from lastgood.model.ids import TenantId
from lastgood.model.webhooks import DeliveryState
from lastgood.surfaces.console import agents as console_agents
from lastgood.surfaces.console import approvals
from lastgood.surfaces.console.snippets import curl, sdk
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside
from tests.surfaces.test_console import (
    TOKENS,
    Visitor,
    answer_of,
    asked,
    guarded,
    inside,
    seen,
    shelly,
    visitor,
)
from tests.surfaces.worker_calls import registered

__all__ = ["guarded", "inside", "visitor"]

pytestmark = pytest.mark.anyio


# -- the count in the navigation -----------------------------------------------------------


async def test_every_page_counts_the_questions_that_wait(inside: InProcessServer, visitor: Visitor) -> None:
    assert (await visitor.get("/approvals/count.json")).json == {"waiting": 0, "is_more": False}
    assert ">0</span>" in (await visitor.get("/usage")).body.decode()
    session = await asked(inside, "true")
    await counted(visitor, 1)
    for path in ("/", "/usage", f"/sessions/{session}", "/reference"):
        assert '<span data-count>1</span><span class="visually-hidden"> waiting' in (
            (await visitor.get(path)).body.decode()
        ), path
    path = f"/sessions/{session}/approval"
    fields = {**answer_of(await visitor.get(path)), "answer": "reject"}
    assert (await visitor.post(path, fields)).status == 303
    await counted(visitor, 0)


async def test_a_count_that_is_not_complete_says_so(
    inside: InProcessServer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (attention, approvals):
        monkeypatch.setattr(name, "MOST_WAITING", 2)
    for _ in range(2):
        await asked(inside, "true")
    async with asyncio.timeout(20):
        while (await visitor.get("/approvals/count.json")).json != {"waiting": 2, "is_more": True}:
            await asyncio.sleep(0.05)
    page = (await visitor.get("/approvals")).body.decode()
    assert "<span data-count>2+</span>" in page
    assert "These are the newest 2 sessions. More wait" in page


async def counted(visitor: Visitor, wanted: int) -> None:
    async with asyncio.timeout(20):
        while (await visitor.get("/approvals/count.json")).json != {"waiting": wanted, "is_more": False}:
            await asyncio.sleep(0.05)


async def test_a_count_holds_only_what_its_reader_may_see(guarded: InProcessServer) -> None:
    await asked(guarded, "true", "all")
    worker = await registered(guarded, "all")  # its runtime is private
    scope = {"kind": "issue", "id": "1"}
    new = {"agent": AGENT, "scope": scope, "prompt": "fix it", "runtime": worker.runtime}
    await guarded.good("POST", "/api/tasks", new, "all")
    claim = await worker.claim()
    await worker.report(claim, "start")
    await worker.report(claim, "ask", question={"id": "q1", "tool": "Bash", "input": {"command": "make"}})
    for token, count in {"all": 2, "same tenant": 1, "theirs": 0}.items():
        reader = await Visitor(guarded).login(token)
        assert (await reader.get("/approvals/count.json")).json == {"waiting": count, "is_more": False}, token
        listed = (await reader.get("/approvals.json")).json["waiting"]
        assert sum(len(one["questions"]) for one in listed) == count, token
    assert (await (await Visitor(guarded).login("chat")).get("/approvals/count.json")).status == 403


async def test_a_login_page_offers_no_pages_and_no_count(guarded: InProcessServer) -> None:
    page = (await Visitor(guarded).get("/login")).body.decode()
    assert "<nav" not in page
    assert "data-count" not in page


# -- agents ------------------------------------------------------------------------------------


def many(folder: Path, number: int) -> str:
    folder.mkdir()
    for place in range(number):
        agent = {"agents": {"root": {"model": AGENT, "description": f"number {place}"}}}
        (folder / f"agent-{place:03}.yaml").write_text(yaml.safe_dump(agent))
    return str(folder)


async def test_home_reads_agents_once_however_often_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_inside(tmp_path, many(tmp_path / "agents", 60)) as inside:
        visitor = Visitor(inside)
        catalog, loads = inside.server.lastgood.deps.agents, list[str]()
        load = catalog.load

        async def counting(key: str, name: str | None = None) -> object:
            loads.append(key)
            return await load(key, name)

        monkeypatch.setattr(catalog, "load", counting)
        for _ in range(5):
            assert len((await visitor.get("/home.json")).json["agents"]) == 60
        assert len(loads) == 60
        (tmp_path / "agents" / "agent-060.yaml").write_text("agents: {root: {model: nothing/at-all}}")
        async with asyncio.timeout(20):  # the folder's time is coarse
            while len((await visitor.get("/home.json")).json["agents"]) != 61:
                await asyncio.sleep(0.05)
        (broken,) = (await visitor.get("/home.json")).json["attention"]["agents"]
        assert (broken["key"], "provider" in broken["problem"]) == ("agent-060", True)


async def test_a_changed_agent_is_on_the_home_page_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_agents, "SUMMARY_SECONDS", 0.0)
    async with open_inside(tmp_path, shelly(tmp_path)) as inside:
        visitor = Visitor(inside)
        assert (await visitor.get("/home.json")).json["agents"][0]["description"] == "Runs commands"
        shelly(tmp_path, "Does other things")
        async with asyncio.timeout(20):
            while (await visitor.get("/home.json")).json["agents"][0]["description"] != "Does other things":
                await asyncio.sleep(0.05)


async def test_the_list_of_agents_has_pages_and_a_search(tmp_path: Path) -> None:
    async with open_inside(tmp_path, many(tmp_path / "agents", 60)) as inside:
        visitor = Visitor(inside)
        keys: list[str] = []
        place: int | None = 0
        while place is not None:
            data = (await visitor.get(f"/agents.json?after={place}")).json
            assert len(data["agents"]) <= 25
            keys, place = keys + [one["key"] for one in data["agents"]], data["next"]
        assert keys == [f"agent-{number:03}" for number in range(60)]
        page = (await visitor.get("/agents?q=AGENT-04&after=5")).body.decode()
        assert "agents 6 to 10 of 10" in page
        assert "No agent matches." in (await visitor.get("/agents?q=nothing")).body.decode()


async def test_the_page_of_agents_says_which_model_auto_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-used")
    async with open_inside(tmp_path, "default") as inside:
        page = seen(await Visitor(inside).get("/agents"))
        (one,) = (await Visitor(inside).get("/agents.json")).json["agents"]
    assert (one["model"], one["models"]) == ("auto", ["openai/gpt-5.4-mini"])
    assert "openai/gpt-5.4-mini" in page


async def test_warnings_name_the_folder_only_to_an_admin(tmp_path: Path) -> None:
    model = {"provider": "openai", "model": "x", "provider_opts": {"unknown": 1}}
    file = {"agents": {"root": {"model": AGENT}}, "models": {"m": model}}
    (tmp_path / "later.yaml").write_text(yaml.safe_dump(file))
    async with open_inside(tmp_path, str(tmp_path / "later.yaml"), tokens=TOKENS) as inside:
        for token, named in {"read": "later.yaml:", "admin": f"{tmp_path}/later.yaml:"}.items():
            reader = await Visitor(inside).login(token)
            (one,) = (await reader.get("/agents.json")).json["agents"]
            assert one["warnings"][0].startswith(named), token
            home = (await reader.get("/home.json")).json
            assert [agent["warnings"] for agent in home["attention"]["agents"]] == [1]
            assert str(tmp_path) not in json.dumps(home)


# -- webhooks and tasks ------------------------------------------------------------------------


async def test_dead_letters_and_disabled_webhooks_need_an_admins_attention(tmp_path: Path) -> None:
    async with open_inside(tmp_path, AGENT, tokens=TOKENS) as inside:
        store = inside.server.lastgood.deps.store
        url = "https://example.com/<b>hook?key=secret"
        hook = await inside.good("POST", "/api/webhooks", {"url": url, "kinds": ["task.ended"]}, "admin")
        await inside.good("POST", f"/api/webhooks/{hook['id']}/test", token="admin")
        tenant = TenantId("a")
        async with asyncio.timeout(20):
            while not await store.dead_deliveries(tenant, age_seconds=60, limit=9):
                (sent,) = await store.list_deliveries(tenant, hook["id"], None, limit=9, before=None)
                assert sent.state is not DeliveryState.DELIVERED
                await store.set_failed(sent, "answered <b>500", None)
                await store.set_failed(replace(sent, tries=sent.tries + 1), "answered <b>500", None)
        admin, reader = await Visitor(inside).login("admin"), await Visitor(inside).login("all")
        (one,) = (await admin.get("/home.json")).json["attention"]["webhooks"]
        assert (one["url"], one["dead"], one["error"]) == (
            "https://example.com/<b>hook",
            1,
            "answered <b>500",
        )
        page = await admin.get("/")
        assert "1 undelivered message" in page.body.decode()
        assert "<b>hook" in seen(page)
        await store.disable_webhook(tenant, hook["id"])
        assert "Webhook disabled" in (await admin.get("/")).body.decode()
        assert (await reader.get("/home.json")).json["attention"]["webhooks"] == []
        assert "example.com" not in (await reader.get("/")).body.decode()


async def test_a_task_needs_attention_only_after_it_has_waited(
    inside: InProcessServer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await registered(inside, None)
    scope = {"kind": "issue", "id": "1"}
    new = {"agent": AGENT, "scope": scope, "prompt": "fix it", "runtime": worker.runtime}
    task = await inside.good("POST", "/api/tasks", new)
    assert (await visitor.get("/home.json")).json["attention"]["tasks"] == []
    clock = inside.server.lastgood.deps.clock
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + STUCK_SECONDS + 1)
    (stuck,) = (await visitor.get("/home.json")).json["attention"]["tasks"]
    assert stuck["id"] == task["id"]


# -- snippets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["builder", "it's", "a'; touch /tmp/x; '", "$(id)", '"\n\\', "grün"])
def test_a_snippet_keeps_a_key_one_argument_and_one_string(key: str) -> None:
    words = shlex.split(curl("http://127.0.0.1:8080", key, with_token=True))
    words = [word for word in words if word != "\n"]
    assert words[:2] == ["curl", "http://127.0.0.1:8080/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == key
    assert len(words) == 10
    code = sdk("http://127.0.0.1:8080", key, with_token=True)
    named = next(line for line in code.splitlines() if line.strip().startswith("model="))
    assert json.loads(named.strip().removeprefix("model=").removesuffix(",")) == key
    compile(code, "sdk", "exec")
