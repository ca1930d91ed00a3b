"""The session pages of the console: permalinks, searches, and forms that are sent again."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from lastgood.model.ids import SessionId, TenantId
from lastgood.model.sessions import Session
from lastgood.surfaces.console.session_page import MOST_FAILED
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside
from tests.surfaces.test_console import TOKENS, Visitor, said, seen, shelly

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


# -- forms that are sent again ---------------------------------------------------------------


async def test_a_first_message_sent_twice_makes_one_session_and_one_turn(
    inside: InProcessServer, visitor: Visitor
) -> None:
    fields = {"agent": AGENT, "text": "only once", "key": "the-same-key"}
    sent = [await visitor.post("/chat", fields) for _ in range(2)]
    sent += await asyncio.gather(*(visitor.post("/chat", fields) for _ in range(3)))
    assert {one.status for one in sent} == {303}
    (location,) = {one.headers["location"] for one in sent}
    assert len(await inside.good("GET", "/api/sessions")) == 1
    page = await settled(visitor, location)
    assert len(page["turns"]) == 1
    other = await visitor.post("/chat", fields | {"key": "another-key"})
    assert other.headers["location"] != location


async def settled(visitor: Visitor, location: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            page: dict[str, Any] = (await visitor.get(f"{location}.json")).json
            if page["turns"] and page["running"] is None:
                return page
            await asyncio.sleep(0.01)


async def test_a_first_message_that_is_refused_leaves_no_session(tmp_path: Path) -> None:
    async with open_inside(tmp_path, token_rate=1, max_request_size=2000) as inside:
        visitor = Visitor(inside)
        await visitor.get("/")
        long = {"agent": AGENT, "text": "x" * 3000, "key": "key-of-too-much"}
        assert (await visitor.post("/chat", long)).status == 413
        assert await inside.good("GET", "/api/sessions") == []
        first = await visitor.post("/chat", {"agent": AGENT, "text": "hello", "key": "the-first-one"})
        assert first.status == 303
        assert (
            await visitor.post("/chat", {"agent": AGENT, "text": "two", "key": "the-second"})
        ).status == 429
        assert len(await inside.good("GET", "/api/sessions")) == 1
        # The first one again begins nothing, so no limit counts it.
        again = await visitor.post("/chat", {"agent": AGENT, "text": "hello", "key": "the-first-one"})
        assert again.headers["location"] == first.headers["location"]


async def test_a_key_of_somebody_else_finds_no_session(tmp_path: Path) -> None:
    tokens = {"ann": ("a", ("session",), "ann"), "bob": ("a", ("session",), "bob")}
    async with open_inside(tmp_path, tokens=tokens) as inside:
        fields = {"agent": AGENT, "text": "hello", "key": "the-same-key"}
        made = [await (await Visitor(inside).login(name)).post("/chat", fields) for name in tokens]
        # Keys are a tenant's: the second one is refused, and gets nothing of the first.
        assert [one.status for one in made] == [303, 422]
        assert len(await inside.good("GET", "/api/sessions", token="ann")) == 1


# -- lists -----------------------------------------------------------------------------------


async def test_filters_also_hold_for_sessions_that_are_found_by_their_id(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await inside.session()
    for more, found in {
        "": 1,
        "&status=idle": 1,
        "&status=running": 0,
        f"&agent={AGENT}": 1,
        "&agent=another": 0,
    }.items():
        listed = (await visitor.get(f"/sessions.json?q={session}{more}")).json["sessions"]
        assert len(listed) == found, more


async def test_agents_show_their_last_change_and_their_path_only_to_an_admin(tmp_path: Path) -> None:
    file = shelly(tmp_path)
    changed = changed_at(file)
    async with open_inside(tmp_path, file, AGENT, tokens=TOKENS) as inside:
        for token, where in {"read": None, "admin": file}.items():
            visitor = await Visitor(inside).login(token)
            listed = (await visitor.get("/agents.json")).json["agents"]
            agents = {one["key"]: one for one in listed}
            assert (agents["shelly"]["source"], agents["shelly"]["where"]) == ("file", where)
            assert (agents[AGENT]["source"], agents[AGENT]["changed"]) == ("built-in", None)
            at = datetime.fromisoformat(agents["shelly"]["changed"]["at"]).timestamp()
            assert abs(at - changed) < 1
            page = (await visitor.get("/agents")).body.decode()
            assert ("/<wbr>shelly.yaml" in page) == (where is not None)
            assert "Last change" in page


def changed_at(file: str) -> float:
    return Path(file).stat().st_mtime


async def test_a_session_whose_last_attempt_failed_is_not_listed_as_idle(
    inside: InProcessServer, visitor: Visitor
) -> None:
    good, bad = await inside.session(), await inside.session()
    await inside.turn(good)
    await inside.failed(bad)
    for path in ("/home.json", "/sessions.json"):
        listed = {one["id"]: one for one in (await visitor.get(path)).json["sessions"]}
        assert (listed[good]["last_failed"], listed[bad]["last_failed"]) == (None, "failed"), path
    assert "last failed" in (await visitor.get("/")).body.decode()
    await inside.turn(bad)
    assert "last failed" not in (await visitor.get("/")).body.decode()


async def test_the_page_of_a_session_says_that_its_last_attempt_failed(
    inside: InProcessServer, visitor: Visitor
) -> None:
    """An idle session whose last message was not answered looks like one that was answered, otherwise."""
    session = await inside.session()
    await inside.turn(session)
    first = await inside.failed(session)
    last = await inside.failed(session)
    # The older one is tried again, so it is the one that failed last.
    again = await inside.good("POST", f"/api/sessions/{session}/attempts/{first}/continue")
    await settled(visitor, f"/sessions/{session}")
    page = (await visitor.get(f"/sessions/{session}")).body.decode()
    assert (
        f'<a class="status failed" href="/sessions/{session}?turn={again["turn"]}#{again["turn"]}">' in page
    )
    assert "last attempt failed</a>" in page
    assert '<span class="status idle">' not in page
    shown = (await visitor.get(f"/sessions/{session}.json")).json["session"]
    assert (shown["last_failed"], shown["last_failed_turn"]) == ("failed", again["turn"])
    assert last not in (first, again["id"])
    await inside.turn(session)
    page = (await visitor.get(f"/sessions/{session}")).body.decode()
    assert "last attempt failed" not in page
    assert '<span class="status idle">' in page


async def test_home_lists_what_reads_the_same_once(inside: InProcessServer, visitor: Visitor) -> None:
    session = await inside.session()
    for _ in range(2):
        await inside.parked(session)
    page = (await visitor.get("/")).body.decode()
    assert page.count("2 parked follow-ups") == 1
    assert "Parked follow-up<" not in page
    assert len((await visitor.get("/home.json")).json["attention"]["parked"]) == 2


async def test_home_reads_all_sessions_of_its_failures_at_once(
    inside: InProcessServer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        await inside.failed(await inside.session())
    read: list[object] = []
    store = inside.server.lastgood.deps.store
    one_by_one = store.get_session

    async def counted(tenant: TenantId, session: SessionId) -> Session | None:
        read.append(session)
        return await one_by_one(tenant, session)

    monkeypatch.setattr(type(store), "get_session", lambda _, tenant, session: counted(tenant, session))
    (found,) = (await visitor.get("/home.json")).json["attention"]["failures"]
    assert (found["count"], found["sessions"], read) == (5, 5, [])


# -- a turn ----------------------------------------------------------------------------------


async def test_a_failed_attempt_is_shown_below_the_message_that_it_did_not_answer(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await inside.session()
    body = {**said("the message\n!fail before 1\n!say the answer"), "wait": True}
    await inside.ask("POST", f"/api/sessions/{session}/turns", body)
    attempt = (await inside.good("GET", f"/api/sessions/{session}/attempts"))[0]["id"]
    await visitor.post(f"/sessions/{session}/attempts/{attempt}/retry")
    await settled(visitor, f"/sessions/{session}")
    page = seen(await visitor.get(f"/sessions/{session}"))
    assert page.index("the message") < page.index("attempt 1") < page.rindex("the answer")
    assert re.search(r"[\d,]+ tokens in, [\d,]+ out", page)


async def test_tokens_of_steps_that_a_retry_adopts_are_counted_once(tmp_path: Path) -> None:
    async with open_inside(tmp_path, shelly(tmp_path)) as inside:
        visitor = Visitor(inside)
        await visitor.get("/")
        session = await inside.session(agent="shelly")
        body = said('!tool think {"thought": "once"}\n!fail during 1\n!say done') | {"wait": True}
        await inside.ask("POST", f"/api/sessions/{session}/turns", body)
        attempt = (await inside.good("GET", f"/api/sessions/{session}/attempts"))[0]["id"]
        await visitor.post(f"/sessions/{session}/attempts/{attempt}/retry")
        page = await settled(visitor, f"/sessions/{session}")
        turn = (await visitor.get(f"/sessions/{session}/turns/{page['turns'][0]['id']}.json")).json["turn"]
        assert turn["input_tokens"] == page["turns"][0]["input_tokens"] > 0
        used = (await inside.good("GET", "/api/usage"))["total"]
        assert (turn["input_tokens"], turn["output_tokens"]) == (used["input_tokens"], used["output_tokens"])


async def test_forks_and_replaced_turns_are_branches_of_their_turn(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await inside.session()
    first = (await inside.turn(session))["id"]
    await inside.turn(session, "second")
    await inside.good("POST", f"/api/sessions/{session}/fork", {"turn": first})
    page = (await visitor.get(f"/sessions/{session}")).body.decode()
    assert page.count('class="branch"') == 1
    assert 'aria-label="Branches after turn 1"' in page


async def test_a_turn_shows_its_share_of_the_context_where_the_size_is_known(tmp_path: Path) -> None:
    model = {"provider": "builtin", "model": "scripted", "provider_opts": {"context_size": 100}}
    file = {"agents": {"root": {"model": "m"}}, "models": {"m": model}}
    (tmp_path / "sized.yaml").write_text(yaml.safe_dump(file))
    async with open_inside(tmp_path, str(tmp_path / "sized.yaml"), AGENT) as inside:
        visitor = Visitor(inside)
        for agent in ("sized", AGENT):
            session = await inside.session(agent=agent)
            path = f"/sessions/{session}"
            body = {"messages": [{"content": "!say " + "word " * 80}]}
            run = f"/api{path}/agent/{agent.replace('/', '%2F')}"
            events = (await inside.ask("POST", run, body)).body.decode()
            (shown,) = (await visitor.get(f"{path}.json")).json["turns"]
            pages = [
                (await visitor.get(one)).body.decode() for one in (path, f"{path}/turns/{shown['id']}/prompt")
            ]
            if agent == AGENT:
                assert shown["context"] is None
                assert not any("of the context" in page for page in pages)
                assert "context_limit" not in events
                continue
            assert '"context_limit":100' in events
            tokens = shown["input_tokens"] + shown["output_tokens"]
            assert shown["context"] == {"tokens": tokens, "size": 100, "percent": tokens, "level": "full"}
            assert all(f"{tokens} % of the context" in page for page in pages)
            assert "context" not in str(shown["decisions"])  # not said twice


async def test_hundreds_of_failed_turns_after_one_turn_are_not_all_shown(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await inside.session()
    await inside.turn(session)
    for _ in range(MOST_FAILED + 2):
        newest = await inside.failed(session)
    data = (await visitor.get(f"/sessions/{session}.json")).json
    assert (len(data["failed"]), data["failed_hidden"]) == (MOST_FAILED, 2)
    assert data["failed"][-1]["newest"]["id"] == newest
    page = (await visitor.get(f"/sessions/{session}")).body.decode()
    assert "2 earlier turns that failed are not shown" in page


async def test_a_tool_call_shows_how_its_result_begins(tmp_path: Path) -> None:
    """Whether a call worked is seen without opening it."""
    async with open_inside(tmp_path, AGENT) as inside:
        session, visitor = await inside.session(), Visitor(inside)
        call = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": '{"cmd": "make"}'}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "build it"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "\n  <b>exit status 2</b>\nmake: *** all"},
        ]
        await inside.good("POST", f"/api/sessions/{session}/messages", {"messages": messages})
        page = (await visitor.get(f"/sessions/{session}")).body.decode()
        (summary,) = re.findall(r"<summary><span class=\"tool-name\">.*</summary>", page)
        assert "&lt;b&gt;exit status 2&lt;/b&gt;</span>" in summary
        assert "make: ***" not in summary


async def test_the_steps_of_an_attempt_name_their_model_and_their_tool(tmp_path: Path) -> None:
    async with open_inside(tmp_path, shelly(tmp_path), safety="autonomous") as inside:
        session, visitor = await inside.session(agent="shelly"), Visitor(inside)
        text = '!tool shell {"cmd": "exit 3"}\n!fail during'
        body = {**said(text), "wait": True}
        assert (await inside.ask("POST", f"/api/sessions/{session}/turns", body)).status == 424
        attempt = (await inside.good("GET", f"/api/sessions/{session}/attempts"))[0]["id"]
        path = f"/sessions/{session}/attempts/{attempt}"
        asks, call = (await visitor.get(f"{path}.json")).json["steps"]
        assert (asks["name"], call["name"]) == ("builtin/scripted", "shell")
        page = (await visitor.get(path)).body.decode()
        heads = re.findall(r'<div class="step-head">(.*?)</div>', page)
        assert ["not repeatable" in one for one in heads] == [False, True]


async def test_a_cancelled_turn_does_not_look_like_a_failure(
    inside: InProcessServer, visitor: Visitor
) -> None:
    session = await inside.session()
    await inside.begun(session)
    await inside.good("POST", f"/api/sessions/{session}/cancel")
    page = (await visitor.get(f"/sessions/{session}")).body.decode()
    assert '<li class="turn ghost cancelled"' in page
    assert '<span class="status idle">' in page


async def test_older_turns_open_where_the_reader_was(inside: InProcessServer, visitor: Visitor) -> None:
    """Who reads upwards goes on at the end of the older window, not at its beginning."""
    session = await inside.session()
    await noted(inside, session, 40)
    page = (await visitor.get(f"/sessions/{session}")).body.decode()
    assert '<a href="?to=10#newer">Older turns</a>' in page
    assert 'id="newer"' in (await visitor.get(f"/sessions/{session}?to=10")).body.decode()


async def test_a_retry_lists_the_calls_that_run_again_and_those_that_may_have_taken_effect(
    tmp_path: Path,
) -> None:
    """Who clicks Retry knows before what it repeats."""
    begun = tmp_path / "begun"
    async with open_inside(tmp_path, shelly(tmp_path), safety="autonomous") as inside:
        session, visitor = await inside.session(agent="shelly"), Visitor(inside)
        command = f"touch {begun}; echo '<b>'; sleep 600"
        calls = f"!tool shell {json.dumps({'cmd': command})}\n!also think {json.dumps({'thought': 'later'})}"
        await inside.begun(session, f"{calls}\n!say done")
        async with asyncio.timeout(30):
            while not begun.exists():
                await asyncio.sleep(0.01)
        await inside.good("POST", f"/api/sessions/{session}/cancel")
        page = await visitor.get(f"/sessions/{session}")
        preview = (await visitor.get(f"/sessions/{session}.json")).json["failed"][0]["preview"]
        assert preview["unknown"] == [{"tool": "shell", "command": command}]
        assert preview["repeats"] == [{"tool": "think", "command": "later"}]
        for said_above in (
            "These calls had not finished, and run again",
            "These calls may have taken effect",
        ):
            assert said_above in seen(page)
        assert "echo &#39;&lt;b&gt;&#39;; sleep 600" in page.body.decode()
