"""The console, in process: every page, what it escapes, who may see and do what, and which forms count."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from lastgood.surfaces.http.app import Route
from tests.surfaces.asgi import HOST, Client, Given
from tests.surfaces.in_process_server import AGENT, InProcessServer, NewTokens, open_inside
from tests.surfaces.worker_calls import registered

pytestmark = pytest.mark.anyio

TOKENS: NewTokens = {
    "all": ("a", ("session", "approve"), "ann"),
    "same tenant": ("a", ("session", "approve"), "cat"),
    "read": ("a", ("read",)),
    "chat": ("a", ("chat",)),
    "theirs": ("b", ("session", "approve"), "bob"),
    "admin": ("a", ("admin",)),
}
OWN = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}

#: Each breaks out of one place where text could become markup: elements, attributes, URLs, templates.
XSS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title><svg onload=alert(1)>",
    "</textarea><script>alert(1)</script>",
    "javascript:alert(1)",
    "{{ 7*7 }}{% raw %}",
    "<!--<img src=--><img src=x onerror=alert(1)//>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "\u202eevil\u2066 <b>bold</b>",
]


@dataclass
class Visitor:
    """A browser: it keeps cookies, and sends what browsers send."""

    inside: InProcessServer
    cookies: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> Given:
        return await self.send("GET", path, {"sec-fetch-site": "none", **_dashed(headers)}, b"")

    async def post(self, path: str, fields: Mapping[str, str] | None = None, **headers: str) -> Given:
        """With the secret of the cookie, as a form of our own pages has it."""
        mine = {"form_token": self.secret, **(fields or {})}
        return await self.raw(path, urlencode(mine), **headers)

    async def raw(self, path: str, body: str, **headers: str) -> Given:
        sent = {"content-type": "application/x-www-form-urlencoded", **OWN, **_dashed(headers)}
        sent = {name: value for name, value in sent.items() if value}
        return await self.send("POST", path, sent | {"transfer-encoding": "chunked"}, body.encode())

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Given:
        kept = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        named = {**headers, **({"cookie": kept} if kept else {})}
        client = Client(self.inside.server.app, method, path, named, [body])
        try:
            given = await client.end()
        finally:
            client.leave()
        if "set-cookie" in given.headers:
            name, _, value = given.headers["set-cookie"].partition(";")[0].partition("=")
            self.cookies[name] = value
            if "Max-Age=0" in given.headers["set-cookie"]:
                del self.cookies[name]
        return given

    @property
    def secret(self) -> str:
        return self.cookies["lastgood_form_8080"]

    async def login(self, token: str) -> "Visitor":
        await self.get("/login")
        given = await self.post("/login", {"token": self.inside.tokens[token], "next": "/"})
        assert (given.status, given.headers["location"]) == (303, "/"), given.body
        return self


def _dashed(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    """Anybody may do everything, as on a laptop."""
    async with open_inside(tmp_path, AGENT, shelly(tmp_path), safety="balanced") as opened:
        yield opened


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    async with open_inside(tmp_path, AGENT, shelly(tmp_path), tokens=TOKENS, safety="balanced") as opened:
        yield opened


def shelly(folder: Path, description: str = "Runs commands") -> str:
    agent = {"model": AGENT, "description": description, "toolsets": [{"type": "shell"}, {"type": "think"}]}
    (folder / "shelly.yaml").write_text(yaml.safe_dump({"agents": {"root": agent}}))
    return str(folder / "shelly.yaml")


@pytest.fixture
async def visitor(inside: InProcessServer) -> Visitor:
    made = Visitor(inside)
    await made.get("/")
    return made


async def asked(inside: InProcessServer, command: str, token: str | None = None) -> str:
    """A session whose turn waits for an approval of this command."""
    session = await inside.session(token, agent="shelly")
    call = json.dumps({"cmd": command})
    await inside.begun(session, f"!tool shell {call}\n!say done", token)
    await until(inside, session, "waiting", token)
    return session


async def until(inside: InProcessServer, session: str, status: str, token: str | None = None) -> None:
    async with asyncio.timeout(30):
        while (await inside.good("GET", f"/api/sessions/{session}/status", token=token))["status"] != status:
            await asyncio.sleep(0.01)


async def pages_of(inside: InProcessServer, token: str | None = None) -> dict[str, str]:
    """A path for every page, with everything on it that a page can have."""
    session = await asked(inside, "echo hello", token)
    other = await inside.session(token)
    turn = await inside.turn(other, "hello", token)
    attempt = await inside.failed(other, token)
    await inside.parked(other, token)
    return {
        "/": "/",
        "/sessions": "/sessions",
        "/sessions/{session}": f"/sessions/{session}",
        "/sessions/{session}/attempts/{attempt}": f"/sessions/{other}/attempts/{attempt}",
        "/sessions/{session}/turns/{turn}": f"/sessions/{other}/turns/{turn['id']}",
        "/sessions/{session}/turns/{turn}/prompt": f"/sessions/{other}/turns/{turn['id']}/prompt",
        "/sessions/{session}/pointers": f"/sessions/{other}/pointers",
        "/approvals": "/approvals",
        "/sessions/{session}/approval": f"/sessions/{session}/approval",
        "/work": "/work",
        "/agents": "/agents",
        "/usage": "/usage",
        "/reference": "/reference",
    }


def page_routes(inside: InProcessServer, method: str) -> list[Route]:
    return [route for route in inside.all_routes if route.is_page and route.method == method]


# -- pages ---------------------------------------------------------------------------------


async def test_every_page_is_html_with_a_strict_policy_and_also_json(
    inside: InProcessServer, visitor: Visitor
) -> None:
    pages = await pages_of(inside)
    known = {*pages, "/login", "/static/{file}", "/work/tasks/{task}"}
    routed = {route.path for route in page_routes(inside, "GET") if not route.path.endswith(".json")}
    assert routed == known, "pages_of has to learn this page"
    for path in pages.values():
        page = await visitor.get(path)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["cache-control"] == "no-store"
        assert inline(page) == [], path
        data = await visitor.get("/home.json" if path == "/" else f"{path}.json")
        assert (data.status, data.headers["content-type"]) == (200, "application/json"), path
        assert data.headers["cache-control"] == "no-store"
        assert isinstance(data.json, dict)


def inline(page: Given) -> list[str]:
    """What the policy would refuse, and whatever comes from elsewhere."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            named = dict(attributes)
            if (tag == "script" and "src" not in named) or tag in ("style", "iframe", "object", "base"):
                found.append(tag)
            for name, value in attributes:
                leads = name in ("href", "src", "action", "formaction", "content")
                if (
                    name == "style"
                    or name.startswith("on")
                    or (leads and "javascript:" in (value or "").lower())
                ):
                    found.append(f"{tag} {name}={value}")
            if tag in ("script", "img", "link") and not (named.get("src") or named["href"] or "").startswith(
                "/"
            ):
                found.append(f"{tag} {attributes}")

    Reader().feed(page.body.decode())
    return found


async def test_the_root_is_a_page_and_not_a_404(visitor: Visitor) -> None:
    page = (await visitor.get("/")).body.decode()
    for said in (AGENT, "Talk to an agent", "/openapi.json", f"http://{HOST}/v1", "X-Conversation-Id"):
        assert said in page


async def test_only_serves_the_surfaces_that_it_names(tmp_path: Path) -> None:
    async with open_inside(tmp_path, only=("api",)) as inside:
        assert (await Visitor(inside).get("/")).status == 404
    async with open_inside(tmp_path, only=("console",)) as inside:
        visitor = Visitor(inside)
        assert (await visitor.get("/")).status == 200
        assert (await visitor.get("/api/sessions")).status == 404
        given = await visitor.post("/chat", {"agent": AGENT, "text": "hello"})
        page = await visitor.get(given.headers["location"])
        assert 'data-streams=""' in page.body.decode()  # it reads itself again instead


async def test_files_are_kept_by_browsers_only_under_their_own_digest(visitor: Visitor) -> None:
    address = re.search(r"/static/console\.css\?v=\w+", (await visitor.get("/")).body.decode())
    assert address is not None
    assert "immutable" in (await visitor.get(address[0])).headers["cache-control"]
    assert (await visitor.get("/static/console.css?v=old")).headers["cache-control"] == "no-cache"
    for name in ("pages.py", "..%2fpages.py", "..%2ftemplates%2fbase.html"):
        assert (await visitor.get(f"/static/{name}")).status == 404


async def test_errors_are_pages_for_people_and_json_for_scripts(visitor: Visitor) -> None:
    page = await visitor.get("/sessions/ses_nothing")
    assert (page.status, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "session_not_found" in page.body.decode()
    for path, accept in (
        ("/sessions/ses_nothing.json", "*/*"),
        ("/sessions/ses_nothing", "application/json"),
    ):
        given = await visitor.get(path, accept=accept)
        assert (given.status, given.code) == (404, "session_not_found")


# -- escaping ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", XSS)
async def test_text_is_shown_and_never_becomes_markup(tmp_path: Path, text: str) -> None:
    """In titles, messages, tools, errors, metadata of sessions, agents, queues and searches."""
    agents = (AGENT, shelly(tmp_path, text))
    async with open_inside(tmp_path, *agents, safety="balanced") as inside:
        visitor = Visitor(inside)
        session = await asked(inside, text)
        other = await inside.session(title=f"{text} title")
        body = {
            "messages": [{"content": f"{text}\n!say-json {json.dumps(text)}"}],
            "wait": True,
            "user": text,
        }
        turn = await inside.good("POST", f"/api/sessions/{other}/turns", body)
        thinks = {
            "messages": [{"content": f"!tool think {json.dumps({'thought': text})}\n!think {text}\n!say x"}]
        }
        await inside.good("POST", f"/api/sessions/{other}/turns", thinks | {"agent": "shelly", "wait": True})
        wrong = {"messages": [{"content": f"!fail {text}"}], "wait": True}
        assert (await inside.ask("POST", f"/api/sessions/{other}/turns", wrong)).status == 500
        tried = (await inside.good("GET", f"/api/sessions/{other}/attempts"))[-1]
        attempt, failed = tried["id"], tried["turn"]
        await inside.good("POST", f"/api/sessions/{other}/followup", {**said(text), "agent": text})
        query = urlencode({"q": text})
        paths = {
            "/": True,
            f"/sessions?{query}": True,
            f"/sessions/{session}": True,
            f"/sessions/{session}/approval": True,
            "/approvals": True,
            f"/sessions/{other}": True,
            f"/sessions/{other}/turns/{turn['id']}/prompt": True,
            f"/sessions/{other}/attempts/{attempt}": True,
            f"/sessions/{other}/turns/{failed}": False,
            "/usage": True,
            f"/sessions?{urlencode({'status': text})}": False,
            "/agents": True,
        }
        for path, is_there in paths.items():
            page = await visitor.get(path)
            assert inline(page) == [], path
            assert injected(page) == [], path
            if is_there:
                assert shown(text)[:40] in shown(seen(page)), path


async def test_home_lists_the_agents_that_are_served_with_what_answers(tmp_path: Path) -> None:
    mini = {"provider": "openai", "model": "gpt-5.4-mini", "base_url": "http://127.0.0.1:9/v1"}
    files = {
        "named": {"agents": {"root": {"model": "mini", "description": "Answers"}}, "models": {"mini": mini}},
        "remote": {"agents": {"root": {"model": "auto", "harness": {"type": "command"}}}},
    }
    for key, file in files.items():
        (tmp_path / f"{key}.yaml").write_text(yaml.safe_dump(file))
    paths = [str(tmp_path / f"{key}.yaml") for key in files]
    async with open_inside(tmp_path, AGENT, *paths) as inside:
        visitor = Visitor(inside)
        agents = {one["key"]: one for one in (await visitor.get("/home.json")).json["agents"]}
        assert agents["named"]["answers"] == "openai/gpt-5.4-mini"
        assert agents["remote"]["answers"] == "a runtime of command"
        assert agents[AGENT]["answers"] == "builtin/scripted"
        page = await visitor.get("/")
        assert 'href="/agents?q=named"' in page.body.decode()
        for said in ("Served agents", "openai/gpt-5.4-mini", "a runtime of command", "Answers"):
            assert said in seen(page), said


async def test_an_error_page_is_named_for_what_happened(guarded: InProcessServer) -> None:
    reader = await Visitor(guarded).login("read")
    missing = await reader.get("/sessions/ses_nothing")
    assert (missing.status, "<h1>Not found</h1>" in missing.body.decode()) == (404, True)
    wrong = await reader.get("/usage?range=century")
    assert (wrong.status, "<h1>Not possible</h1>" in wrong.body.decode()) == (400, True)
    session = await guarded.session("all")
    refused = await reader.post(f"/sessions/{session}/star", {"starred": "1"})
    assert (refused.status, "<h1>Not allowed</h1>" in refused.body.decode()) == (403, True)


async def test_usage_is_shown_however_many_users_there_are(
    inside: InProcessServer, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of users are too many rows for one report; the plots and the other tables are still there."""
    monkeypatch.setattr("lastgood.flows.usage.MOST_ROWS", 2)
    session = await inside.session()
    for user in ("ann", "bob", "cat"):
        body = {**said("hello"), "wait": True}
        given = await inside.ask("POST", f"/api/sessions/{session}/turns", body, x_user_id=user)
        assert given.status == 200
    page = await visitor.get("/usage")
    assert page.status == 200
    assert "Too many to list" in seen(page)
    tables = json.loads((await visitor.get("/usage.json")).body)["tables"]
    assert (tables["user"], tables["agent"][0]["turns"]) == (None, 3)


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"content": text}]}


def injected(page: Given) -> list[str]:
    """Elements that no template of ours has. Our own pictures have a class."""
    tags = re.findall(r"<([a-z]+)", page.body.decode().lower().replace('<svg class="plot"', ""))
    return sorted({*tags} & {"svg", "iframe", "object", "embed", "math", "marquee", "style"})


def seen(page: Given) -> str:
    """What a reader sees: text, and the values of fields."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            found.append(data)

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            found.extend(value for name, value in attributes if name == "value" and value)

    Reader().feed(page.body.decode())
    return " ".join(found)


def shown(text: str) -> str:
    return re.sub(r"\s+|\u202e|\u2066|\\u202e|\\u2066", "", text)


async def test_invisible_characters_of_a_command_are_made_visible(
    inside: InProcessServer, visitor: Visitor
) -> None:
    """They could make a command look like another one to the person who approves it."""
    session = await asked(inside, "rm a\u202eb\u200bc\x1bd")
    page = (await visitor.get(f"/sessions/{session}/approval")).body.decode()
    assert "rm a\\u202eb\\u200bc\\x1bd" in page


# -- login -----------------------------------------------------------------------------------


async def test_a_login_is_a_cookie_that_scripts_and_other_sites_cannot_use(guarded: InProcessServer) -> None:
    visitor = Visitor(guarded)
    page = await visitor.get("/sessions?q=x")
    assert (page.status, page.headers["location"]) == (303, "/login?next=%2Fsessions%3Fq%3Dx")
    await visitor.get("/login")
    wrong = await visitor.post("/login", {"token": "not a token at all", "next": "/sessions"})
    assert (wrong.status, "lastgood_login_8080" in visitor.cookies) == (401, False)
    given = await visitor.post("/login", {"token": guarded.tokens["all"], "next": "/sessions?q=x"})
    assert (given.status, given.headers["location"]) == (303, "/sessions?q=x")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(given.headers["set-cookie"].split("; "))
    assert guarded.tokens["all"] not in given.headers["set-cookie"]
    assert (await visitor.get("/sessions")).status == 200
    assert (await visitor.get("/api/sessions", sec_fetch_site="same-origin")).status == 200
    for site in ("cross-site", "same-site"):
        refused = await visitor.get("/api/sessions", sec_fetch_site=site, sec_fetch_mode="cors")
        assert refused.status in (401, 403), site
    elsewhere = await visitor.get("/api/sessions", sec_fetch_site="", origin=f"http://{HOST}0")
    assert elsewhere.status == 403
    assert (await visitor.post("/logout")).status == 303
    assert (await visitor.get("/sessions")).status == 303


async def test_a_link_from_elsewhere_is_followed_once_more_from_our_own_page(
    guarded: InProcessServer,
) -> None:
    """Browsers keep the cookie back from it, so the first answer cannot tell who asks."""
    visitor = await Visitor(guarded).login("all")
    session = await asked(guarded, "true", "all")
    path = f"/sessions/{session}/approval"
    cookies, visitor.cookies = visitor.cookies, {}
    first = await visitor.get(path, sec_fetch_site="cross-site", sec_fetch_mode="navigate")
    assert f'content="0; url={path}"' in first.body.decode()
    visitor.cookies = cookies
    again = await visitor.get(path, sec_fetch_site="same-origin", sec_fetch_mode="navigate")
    assert "May <b>shell</b> run?" in again.body.decode()


async def test_an_approval_says_where_the_call_works(guarded: InProcessServer) -> None:
    visitor = await Visitor(guarded).login("all")
    session = await asked(guarded, "true", "all")
    page = (await visitor.get(f"/sessions/{session}/approval")).body.decode().replace("<wbr>", "")
    assert f"work/{session} in the server&#39;s data directory" in page


async def test_a_program_logs_in_with_its_token_alone(guarded: InProcessServer) -> None:
    program = Visitor(guarded)

    async def post(path: str, fields: dict[str, str]) -> Given:
        return await program.raw(path, urlencode(fields), sec_fetch_site="", origin="")

    assert (await post("/login", {"token": "wrong"})).status == 401
    assert (await post("/login", {"token": guarded.tokens["all"]})).status == 303
    assert (await program.get("/sessions")).status == 200
    assert (await post("/logout", {})).status == 303
    assert (await program.get("/sessions")).headers["location"].startswith("/login")


@pytest.mark.parametrize("where", ["//evil.test", "https://evil.test", "/\\evil.test", "evil", "/a\r\nx: y"])
async def test_a_login_leads_to_pages_of_this_server_only(guarded: InProcessServer, where: str) -> None:
    visitor = Visitor(guarded)
    await visitor.get("/login")
    given = await visitor.post("/login", {"token": guarded.tokens["all"], "next": where})
    assert (given.status, given.headers["location"]) == (303, "/")


async def test_a_revoked_token_ends_its_login(guarded: InProcessServer) -> None:
    visitor = await Visitor(guarded).login("all")
    listed = await guarded.good("GET", "/api/tokens", token="admin")
    id = next(one["id"] for one in listed if one["name"] == "all")
    await guarded.good("DELETE", f"/api/tokens/{id}", token="admin")
    assert (await visitor.get("/sessions")).headers["location"].startswith("/login")


async def test_without_tokens_on_loopback_no_login_is_needed(visitor: Visitor) -> None:
    assert (await visitor.get("/login")).headers["location"] == "/"


async def test_a_cookie_over_https_is_never_sent_in_the_clear(tmp_path: Path) -> None:
    async with open_inside(tmp_path, tokens=TOKENS, public_url="https://agents.example.com") as inside:
        given = await Visitor(inside).get("/login")
        assert "Secure" in given.headers["set-cookie"]


# -- forms -----------------------------------------------------------------------------------


async def test_only_forms_of_our_own_pages_change_anything(inside: InProcessServer, visitor: Visitor) -> None:
    session = await asked(inside, "true")
    fill = {"session": session, "attempt": "att_0", "entry": "1", "task": "task_0"}
    before = inside.dump()
    for route in page_routes(inside, "POST"):
        path = re.sub(r"{(\w+)}", lambda hole: fill[hole[1]], route.path)
        body = urlencode(
            {"form_token": visitor.secret, "text": "x", "agent": AGENT, "title": "x", "sure": "1"}
        )
        forged = {
            "other site": await visitor.raw(path, body, sec_fetch_site="cross-site"),
            "other port": await visitor.raw(
                path, body, sec_fetch_site="same-site", origin="http://127.0.0.1:1"
            ),
            "other origin": await visitor.raw(path, body, sec_fetch_site="", origin="http://evil.test"),
            "null origin": await visitor.raw(path, body, sec_fetch_site="", origin="null"),
            "no origin": await visitor.raw(path, body, sec_fetch_site="", origin=""),
            "no token": await visitor.raw(path, "text=x"),
            "wrong token": await visitor.raw(path, "form_token=guess&text=x"),
        }
        if path in ("/login", "/logout"):  # programs have no page, and their form holds the token
            assert forged.pop("no origin").status == 303
        assert {why: given.status for why, given in forged.items()} == dict.fromkeys(forged, 403), path
        for kind in ("text/plain", "multipart/form-data; boundary=x", "application/json"):
            assert (await visitor.raw(path, body, content_type=kind)).status == 415, path
        assert (await visitor.get(path)).status in (200, 303, 405)  # a link that is opened decides nothing
    after = inside.dump()
    assert {name: after[name] for name in before} == before


async def test_a_form_sent_twice_runs_once(inside: InProcessServer, visitor: Visitor) -> None:
    session = await inside.session()
    fields = {"text": "only once", "key": "the-same-key"}
    for _ in range(3):
        assert (await visitor.post(f"/sessions/{session}/send", fields)).status == 303
        await until(inside, session, "idle")
    turns = await inside.good("GET", f"/api/sessions/{session}/turns")
    assert [turn["messages"][0]["content"] for turn in turns] == ["only once"]


async def test_a_busy_session_queues_what_is_sent(inside: InProcessServer, visitor: Visitor) -> None:
    session = await inside.session()
    await inside.begun(session)
    await visitor.post(f"/sessions/{session}/send", {"text": "next, please", "key": "another-key"})
    queue = await inside.good("GET", f"/api/sessions/{session}/queue")
    assert [item["messages"][0]["content"] for item in queue["items"]] == ["next, please"]
    page = (await visitor.get(f"/sessions/{session}")).body.decode()
    assert "next, please" in page
    assert "Send next" in page
    assert (await visitor.post(f"/sessions/{session}/cancel")).status == 303
    await until(inside, session, "idle")


async def test_retry_fork_reset_star_rename_and_delete(inside: InProcessServer, visitor: Visitor) -> None:
    session = await inside.session()
    turn = await inside.turn(session)
    await inside.ask(
        "POST", f"/api/sessions/{session}/turns", {**said("!fail before 1\n!say now"), "wait": True}
    )
    attempt = (await inside.good("GET", f"/api/sessions/{session}/attempts"))[-1]["id"]
    one = f"/sessions/{session}"
    assert (await visitor.post(f"{one}/attempts/{attempt}/retry")).headers["location"] == one
    await until(inside, session, "idle")
    forked = (await visitor.post(f"{one}/fork", {"turn": turn["id"]})).headers["location"]
    assert (await inside.good("GET", f"/api{forked}"))["turns"] == 1
    await visitor.post(f"{one}/reset")
    await visitor.post(f"{one}/star", {"starred": "1"})
    await visitor.post(f"{one}/rename", {"title": "  a  name "})
    now = await inside.good("GET", f"/api{one}")
    assert (now["turns"], now["starred"], now["title"]) == (3, True, "a name")
    assert (await visitor.post(f"{one}/delete")).status == 400
    assert (await visitor.post(f"{one}/delete", {"sure": "1"})).headers["location"] == "/sessions"
    assert (await visitor.get(one)).status == 404


# -- approvals -------------------------------------------------------------------------------


def answer_of(page: Given) -> dict[str, str]:
    names = ("question", "same")
    found = {name: re.search(rf'name="{name}" value="([^"]+)"', page.body.decode()) for name in names}
    return {name: unescape(match[1]) for name, match in found.items() if match is not None}


async def test_an_approval_counts_for_exactly_the_question_that_was_shown(
    inside: InProcessServer, visitor: Visitor, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    session = await asked(inside, f"echo x >> {out}")
    path = f"/sessions/{session}/approval"
    page = await visitor.get(path)
    assert f"echo x &gt;&gt; {out}" in page.body.decode().replace("<wbr>", "")
    stale = answer_of(page) | {"answer": "approve"}
    changed = await visitor.post(path, {**stale, "same": "0" * 64})
    assert (changed.status, "nothing was decided" in changed.body.decode()) == (409, True)
    assert (await visitor.post(path, {**stale, "answer": "yes"})).status == 400
    assert not out.exists()
    assert (await visitor.post(path, stale)).status == 303
    await until(inside, session, "idle")
    assert out.read_text() == "x\n"
    assert (await visitor.post(path, stale)).status == 409
    assert "Nothing is pending" in (await visitor.get(path)).body.decode()


async def test_always_allows_the_tool_for_this_session(inside: InProcessServer, visitor: Visitor) -> None:
    session = await asked(inside, "true")
    path = f"/sessions/{session}/approval"
    await visitor.post(path, answer_of(await visitor.get(path)) | {"answer": "approve-tool"})
    await until(inside, session, "idle")
    await inside.turn(session, '!tool shell {"cmd": "true"}\n!say not asked again')


# -- scopes and tenants ----------------------------------------------------------------------


async def test_a_scope_is_needed_for_each_page_and_form(guarded: InProcessServer) -> None:
    session = await asked(guarded, "true", "all")
    reader, chatter = await Visitor(guarded).login("read"), await Visitor(guarded).login("chat")
    for path in ("/", "/sessions", f"/sessions/{session}", "/work", "/agents"):
        assert (await reader.get(path)).status == 200, path
        assert (await chatter.get(path)).status == 403, path
    page = (await reader.get(f"/sessions/{session}")).body.decode()
    assert "composer" not in page
    assert "lacks the scope <code>approve</code>" in page
    for form in ("send", "cancel", "fork", "reset", "approval", "delete"):
        given = await reader.post(f"/sessions/{session}/{form}", {"text": "x", "sure": "1"})
        assert given.status == 403, form


async def test_another_tenant_sees_and_changes_nothing(guarded: InProcessServer) -> None:
    pages = await pages_of(guarded, "all")
    theirs = await Visitor(guarded).login("theirs")
    for path in pages.values():
        for asked_for in (path, "/home.json" if path == "/" else f"{path}.json"):
            given = await theirs.get(asked_for)
            if "ses_" in path:
                assert given.status == 404, asked_for
            else:
                assert re.search(r"(ses|att|turn)_[0-9a-f]{8}", given.body.decode()) is None, asked_for
    session = pages["/sessions/{session}"]
    for form in ("send", "cancel", "fork", "reset", "star", "rename", "delete", "approval"):
        fields = {"text": "x", "title": "x", "sure": "1", "answer": "approve"}
        assert (await theirs.post(f"{session}/{form}", fields)).status == 404, form


# -- work ------------------------------------------------------------------------------------


async def test_work_shows_runtimes_tasks_and_why_they_wait(guarded: InProcessServer) -> None:
    worker = await registered(guarded, "all")
    scope = {"kind": "issue", "id": "<b>42</b>"}
    new = {"agent": AGENT, "scope": scope, "prompt": "fix it", "runtime": worker.runtime}
    first, second = [await guarded.good("POST", "/api/tasks", new, "all") for _ in range(2)]
    claim = await worker.claim()
    await worker.report(claim, "start")
    await worker.report(claim, "ask", question={"id": "q1", "tool": "Bash", "input": {"command": "make"}})
    visitor, stranger = await Visitor(guarded).login("all"), await Visitor(guarded).login("same tenant")
    page = (await visitor.get("/work")).body.decode()
    for said in ("laptop", "online", "&lt;b&gt;42&lt;/b&gt;", "waits for a person&#39;s answer"):
        assert said in page, said
    assert f'waits for task <a href="/work/tasks/{first["id"]}">{first["id"][:13]}</a>, which' in page
    session, path = first["session_id"], f"/sessions/{first['session_id']}/approval"
    asks = await visitor.get(path)
    assert "laptop (laptop)" in asks.body.decode()
    assert len((await visitor.get("/home.json")).json["attention"]["questions"]) == 1
    assert (await visitor.post(path, answer_of(asks) | {"answer": "approve"})).status == 303
    await worker.report(claim, "complete", output="done", native_session="native-1", work_dir="/w")
    task = (await visitor.get(f"/work/tasks/{first['id']}")).body.decode()
    assert "Started a new native session" in task
    pointers = (await visitor.get(f"/sessions/{session}/pointers.json")).json
    assert [one["native_session"] for one in pointers["pointers"]] == ["native-1"]
    assert pointers["decisions"][0]["words"].startswith("Would resume native session native-1: ")
    assert (await visitor.post(f"/work/tasks/{second['id']}/cancel")).status == 303
    assert (await visitor.get(f"/work/tasks/{second['id']}.json")).json["task"]["status"] == "cancelled"
    # A private runtime, its tasks and its sessions are its owner's.
    assert first["id"] not in (await stranger.get("/work.json")).body.decode()
    attempt = f"/sessions/{session}/attempts/{claim['task']['attempt']}"
    for shown in (f"/work/tasks/{first['id']}", f"/sessions/{session}", attempt, path):
        assert (await visitor.get(shown)).status == 200, shown
        for hidden in (shown, f"{shown}.json"):
            assert (await stranger.get(hidden)).status == 404, hidden
    for form in ("send", "fork", "reset", "star", "rename", "delete", "approval"):
        fields = {"text": "x", "title": "x", "sure": "1", "answer": "approve"}
        assert (await stranger.post(f"/sessions/{session}/{form}", fields)).status == 404, form
    assert session not in (await stranger.get("/sessions.json")).body.decode()


# -- the rest --------------------------------------------------------------------------------


async def test_home_says_what_needs_attention(inside: InProcessServer, visitor: Visitor) -> None:
    quiet = (await visitor.get("/home.json")).json["attention"]
    assert [name for name, found in quiet.items() if found] == []
    await pages_of(inside)
    loud = (await visitor.get("/home.json")).json["attention"]
    assert (len(loud["questions"]), len(loud["parked"])) == (1, 1)
    assert {one["code"]: one["count"] for one in loud["failures"]} == {"model_error": 1}
    page = (await visitor.get("/")).body.decode()
    assert "Needs attention" in page
    assert "1 failed: model_error" in page


async def test_a_long_session_is_read_in_windows(inside: InProcessServer, visitor: Visitor) -> None:
    session = await inside.session()
    for number in range(70):
        await inside.good("POST", f"/api/sessions/{session}/messages", said(f"note {number}"))
    newest = (await visitor.get(f"/sessions/{session}.json")).json
    assert [turn["seq"] for turn in newest["turns"]] == [*range(41, 71)]
    older = (await visitor.get(f"/sessions/{session}.json?to={newest['older']}")).json
    assert [turn["seq"] for turn in older["turns"]] == [*range(11, 41)]
    first = (await visitor.get(f"/sessions/{session}.json?to={older['older']}")).json
    assert ([turn["seq"] for turn in first["turns"]], first["older"]) == ([*range(1, 11)], None)


async def test_a_session_is_found_by_its_id_and_its_conversation(
    inside: InProcessServer, visitor: Visitor
) -> None:
    body = {"model": AGENT, "messages": [{"role": "user", "content": "hi"}]}
    await inside.ask("POST", "/v1/chat/completions", body, x_conversation_id="the-conversation")
    session = await inside.session()
    for query, found in {session: session, "the-conversation": None}.items():
        listed = (await visitor.get(f"/sessions.json?q={query}")).json["sessions"]
        assert len(listed) == 1
        assert found in (None, listed[0]["id"])
    assert (await visitor.get("/sessions?status=asleep")).status == 400
