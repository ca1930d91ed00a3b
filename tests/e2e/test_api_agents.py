"""M1 over HTTP: which agent a session means, with agents that come from URLs, before and after restarts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, quote_plus, urlsplit

import pytest

from tests.e2e.api import Api, run_path, said, text_of
from tests.e2e.command import AGENT
from tests.e2e.server import LiveServer

TEAM = """
agents:
  root:
    model: builtin/scripted
    description: {tag}
    sub_agents: [clerk]
    toolsets: [{{type: memory}}]
  clerk:
    model: builtin/scripted
    description: Files things
"""
SPELLINGS = ONCE, TWICE = "once escaped", "twice escaped"


class Site:
    """Serves one team under every tag; its description is the tag."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self.asked))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def url(self, query: str = "", path: str = "/team.yaml") -> str:
        return f"http://127.0.0.1:{self._server.server_port}{path}{query}"


def _handler(asked: list[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            tag = parse_qs(urlsplit(self.path).query).get("tag", ["plain"])[0]
            body = TEAM.format(tag=tag).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def key_of(url: str) -> str:
    """As docker-agent has it: the whole of it, query-escaped."""
    return quote_plus(url, safe="")


def segment(url: str, escaped: str) -> str:
    """The agent as it stands in a path: the URL escaped once, or its key escaped for a path."""
    return quote(url, safe="") if escaped == ONCE else quote(key_of(url), safe="")


def named(url: str, escaped: str) -> str:
    """The same in a body, where nothing is decoded."""
    return url if escaped == ONCE else key_of(url)


def path_of(session: str, url: str, escaped: str, name: str = "") -> str:
    return f"/api/sessions/{session}/agent/{segment(url, escaped)}{name}"


def served(folder: Path, *agents: str) -> LiveServer:
    return LiveServer(folder, *agents)


def relaunch(server: LiveServer, *agents: str) -> None:
    server.kill()
    server.agents = agents
    server.start()


def test_M1_2_a_session_continues_after_a_relaunch_with_another_query(
    site: Site, tmp_path: Path, word: str
) -> None:
    light, dev = site.url("?tag=v9-light"), site.url("?tag=v9-dev")
    with served(tmp_path, light, AGENT) as server:
        api = Api(server)
        sessions = {escaped: api.session(named(light, escaped)) for escaped in SPELLINGS}
        for escaped, session in sessions.items():
            assert api.brief(session)["agent_key"] == key_of(light)
            first = api.post(path_of(session, light, escaped), {"messages": said(f"{word} one")})
            assert text_of(first.frames) == f"You said: {word} one"
            exact = api.read(session, "/turns")[0]
            assert (exact["agent_key"], exact["decision"]["agent"]) == (key_of(light), "exact")
        relaunch(server, AGENT, dev)
        for escaped, session in sessions.items():
            # By the address its client knows, by none at all, and by the new one.
            api.post(path_of(session, light, escaped), {"messages": said(f"{word} two")})
            api.good(session, f"{word} three")
            api.post(path_of(session, dev, escaped), {"messages": said(f"{word} four")})
            one, two, three, four = api.read(session, "/turns")
            for turn in (two, three):
                assert turn["agent_key"] == key_of(dev)
                decision = turn["decision"]
                assert (decision["agent"], decision["key"]) == ("stable", key_of(dev))
                assert decision["recorded"] == key_of(light)
                assert "differs only in its query" in decision["reason"]
            assert four["decision"]["agent"] == "exact"
            assert one["agent_digest"] != two["agent_digest"] == three["agent_digest"]
            tries = [attempt["decision"] for attempt in api.read(session, "/attempts")]
            assert tries == [turn["decision"] for turn in (one, two, three, four)]
            assert len(server.seen(word)[-1]) == 7, "the history came along"
            assert api.brief(session)["agent_key"] == key_of(light), (
                "what it recorded is a person's to change"
            )


def test_M1_2_an_agent_remembers_after_a_relaunch_with_another_query(site: Site, tmp_path: Path) -> None:
    light, dev, other = site.url("?tag=light"), site.url("?tag=dev"), site.url(path="/other.yaml")
    server = LiveServer(tmp_path, light, options=("--safety", "autonomous"))
    with server:
        Api(server).good(Api(server).session(light), '!tool add_memory {"memory": "Likes tea"}\n!say ok')
        relaunch(server, dev, other)
        for url, remembers in ((dev, True), (other, False)):
            turn = Api(server).good(Api(server).session(url), "!tool get_memories {}\n!say ok")
            [listed] = [one["content"] for one in turn["messages"] if one["role"] == "tool"]
            assert ("Likes tea" in listed) is remembers


def test_M1_3_two_alike_are_refused_by_name_before_and_after_a_restart(site: Site, tmp_path: Path) -> None:
    """Also M1.4: a runtime in memory does not hide it, nor does a restart change the answer."""
    light, dev, plain = site.url("?tag=light"), site.url("?tag=dev"), site.url()
    with served(tmp_path, light) as server:
        api = Api(server)
        session = api.session(light)
        api.good(session, "one")
        relaunch(server, dev, plain)
        for url in (dev, plain):
            assert api.good(api.session(url), "warm it")["decision"]["agent"] == "exact"

        def refusals() -> list[Any]:
            given = [
                *(api.post(path_of(session, light, one), {"messages": said("two")}) for one in SPELLINGS),
                api.turn(session, "two"),
            ]
            assert [one.refusal for one in given] == [(404, "agent_not_found")] * 3
            return [(one.json["message"], one.json["error"]["detail"]) for one in given]

        before = refusals()
        server.restart()
        assert refusals() == before
        for message, detail in before:
            assert detail["agent"] == "ambiguous"
            assert detail["candidates"] == sorted(map(key_of, (dev, plain)))
            assert all(key_of(url) in message for url in (dev, plain))
        assert len(api.read(session, "/attempts")) == 1, "a refusal was stored"
        for escaped in SPELLINGS:  # the one that is named in full is meant
            assert api.post(path_of(session, dev, escaped), {"messages": said("two")}).status == 200


def test_M1_5_listing_and_viewing_never_depend_on_the_agent(site: Site, tmp_path: Path) -> None:
    light = site.url("?tag=light")
    with served(tmp_path, light) as server:
        api = Api(server)
        session = api.session(light, title="t")
        turn = api.good(session, "one")
        whole, turns = api.read(session), api.read(session, "/turns")
        relaunch(server, AGENT)
        asked = len(site.asked)
        assert api.turn(session, "two").refusal == (404, "agent_not_found")
        assert api.turn(session, "two").json["error"]["detail"]["agent"] == "missing"
        assert [one["id"] for one in api.get("/api/sessions")] == [session]
        assert api.get(f"/api/sessions?agent={quote(key_of(light), safe='')}")[0]["id"] == session
        assert (api.read(session), api.read(session, "/turns")) == (whole, turns)
        for more in (
            "/attempts",
            "/events?since=0",
            "/export",
            "/recovery",
            "/queue",
            "/status",
            "/snapshot",
        ):
            if "events" in more:
                with api.stream("GET", f"/api/sessions/{session}{more}") as stream:
                    assert next(iter(stream)).type == "stream_started"
            else:
                assert api.read(session, more)
        assert api.read(session, f"/turns/{turn['id']}/prompt")["messages"]
        for change in (
            api.patch(f"/api/sessions/{session}/title", {"title": "new"}),
            api.post(f"/api/sessions/{session}/fork"),
            api.post(f"/api/sessions/{session}/messages", {"message": {"content": "noted"}}),
            api.post(f"/api/sessions/{session}/reset"),
        ):
            assert change.status in (200, 201)
        assert len(site.asked) == asked, "nobody needs to be asked for that"


def test_a_rebound_session_runs_on_its_new_agent_from_then_on(site: Site, tmp_path: Path) -> None:
    light, other = site.url("?tag=light"), site.url("?tag=light", "/other.yaml")
    with served(tmp_path, light, AGENT) as server:
        api = Api(server)
        sessions = {escaped: api.session(light) for escaped in SPELLINGS}
        for session in sessions.values():
            api.good(session, "one")
        relaunch(server, AGENT, other)
        for escaped, session in sessions.items():
            assert api.turn(session, "two").refusal == (404, "agent_not_found")
            path = f"/api/sessions/{session}/rebind"
            assert api.post(path, {"agent": "nobody"}).refusal == (404, "agent_not_found")
            assert api.brief(session)["agent_key"] == key_of(light)
            rebound = api.post(path, {"agent": named(other, escaped)})
            assert (rebound.status, rebound.json["agent_key"]) == (200, key_of(other))
            turn = api.good(session, "two")
            assert (turn["seq"], turn["agent_key"], turn["decision"]["agent"]) == (2, key_of(other), "exact")
        server.restart()
        for session in sessions.values():
            assert api.good(session, "three")["agent_key"] == key_of(other)


def test_a_member_of_a_team_behind_a_url_is_meant_before_and_after_a_relaunch(
    site: Site, tmp_path: Path
) -> None:
    """Its name must not be taken for the end of the query: then the whole team would answer."""
    light, dev = site.url("?tag=light"), site.url("?tag=dev")
    with served(tmp_path, light) as server:
        api = Api(server)
        sessions = {escaped: api.session(light) for escaped in SPELLINGS}
        body = {"messages": said("hello")}
        for escaped, session in sessions.items():
            assert api.post(path_of(session, light, escaped, "/clerk"), body).status == 200
        relaunch(server, dev)
        for escaped, session in sessions.items():
            assert api.post(path_of(session, light, escaped, "/clerk"), body).status == 200
            api.good(session, "hello", agent=f"{key_of(light)}/clerk")
            decisions = [turn["decision"] for turn in api.read(session, "/turns")]
            assert [one["agent"] for one in decisions] == ["exact", "stable", "stable"]
            assert [one["name"] for one in decisions] == ["clerk"] * 3
            missing = api.post(path_of(session, light, escaped, "/nobody"), body)
            assert missing.refusal == (404, "agent_not_found")


def test_keys_that_are_no_addresses_work_escaped_once_or_twice(tmp_path: Path) -> None:
    """Also with a percent sign of their own: what is served under the very name comes first."""
    solo = "agents:\n  root:\n    model: builtin/scripted\n"
    keys = "my agent+x", "a+b", "a%2Bb"
    for key in keys:
        (tmp_path / f"{key}.yaml").write_text(solo)
    (tmp_path / "my team.yaml").write_text(TEAM.format(tag="t"))
    files = [str(tmp_path / f"{key}.yaml") for key in (*keys, "my team")]
    spellings = {
        "builtin%2Fscripted": AGENT,
        "builtin%252Fscripted": AGENT,
        "my%20agent%2Bx": "my agent+x",
        "my%2520agent%252Bx": "my agent+x",
        "my%2Bagent%252Bx": "my agent+x",  # as in a query
        "a%2Bb": "a+b",
        "a%252Bb": "a%2Bb",
        "a%25252Bb": "a%2Bb",
        "my%20team/clerk": "my team",
        "my%2520team/clerk": "my team",
        "my%2520team%252Fclerk": "my team",
    }
    with served(tmp_path / "server", AGENT, *files) as server:
        api = Api(server)
        session = api.session(AGENT)
        for spelt, key in spellings.items():
            ran = api.post(f"/api/sessions/{session}/agent/{spelt}", {"messages": said("hello")})
            assert ran.status == 200, spelt
            turn = api.read(session, "/turns")[-1]
            assert (turn["agent_key"], turn["decision"].get("name")) == (
                key,
                "clerk" if "clerk" in spelt else None,
            )
            if "clerk" not in spelt:
                assert api.get(f"/api/agents/{spelt}")["name"] == key
        for spelt in ("builtin%25252Fscripted", "my%252520agent", "nobody%2520here", "a%25"):
            assert api.ask("GET", f"/api/agents/{spelt}").refusal == (404, "agent_not_found")


def test_agents_are_listed_and_read_by_either_spelling(site: Site, tmp_path: Path) -> None:
    light = site.url("?tag=light")
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "broken.yaml").write_text("agents: [broken")
    (folder / "solo.yaml").write_text(
        "agents:\n  root:\n    model: builtin/scripted\n    instruction: a secret plan\n"
    )
    with served(tmp_path / "server", light, AGENT, str(folder)) as server:
        api = Api(server)
        agents: dict[str, Any] = {one["name"]: one for one in api.get("/api/agents")}
        assert list(agents) == sorted([key_of(light), AGENT, "broken", "solo"])
        team = agents[key_of(light)]
        assert (team["description"], team["multi"], team["model"]) == ("light", True, "builtin/scripted")
        assert (agents["solo"]["multi"], "error" in agents["solo"]) == (False, False)
        assert agents["broken"]["error"] == "agent_invalid", "one that cannot be loaded is not hidden"
        for escaped in SPELLINGS:
            read = api.get(f"/api/agents/{segment(light, escaped)}")
            assert [one["name"] for one in read["agents"]] == ["root", "clerk"]
            assert read["digest"].startswith("sha256:")
        assert "a secret plan" not in str(api.get("/api/agents/solo"))
        assert api.ask("GET", "/api/agents/nobody").refusal == (404, "agent_not_found")
        assert api.ask("GET", "/api/agents/broken").refusal == (500, "agent_unavailable")
        session = api.session("solo")
        broken = api.post(run_path(session, "broken"), {"messages": said("hello")})
        assert broken.refusal == (500, "agent_unavailable"), "the caller's request is fine"
        assert str(tmp_path) not in broken.body.decode()
        assert "broken is not served: " in server.stderr.read_text()
        listed = {model["id"] for model in api.get("/v1/models")["data"]}
        assert "broken" not in listed
        assert "solo" in listed
        assert api.read(session, "/attempts") == []
