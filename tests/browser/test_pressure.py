"""The console under pressure: fast streams, huge results, two tabs at one question, clocks that disagree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import shoot
from tests.browser.test_console import open_session, shell, turns
from tests.e2e.api import Api, said
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow


def test_the_count_of_waiting_questions_is_live_on_every_page(
    page: Page, server: LiveServer, api: Api
) -> None:
    page.goto(f"{server.url}/reference")  # a page that is not live by itself
    count = page.locator("#count [data-count]")
    before = int(count.text_content() or "")
    session = api.session("shelly")
    api.begun(session, shell("true"))
    expect(count).to_have_text(str(before + 1))
    expect(page.get_by_role("link", name=f"Approvals {before + 1} waiting")).to_be_visible()
    expect(page).to_have_title(f"({before + 1}) API reference · Lastgood")
    api.post(f"/api/sessions/{session}/cancel")
    expect(count).to_have_text(str(before))
    if before == 0:
        expect(page.locator("#count")).to_be_hidden()
        expect(page).to_have_title("API reference · Lastgood")


def test_two_tabs_answer_one_question_and_one_answer_counts(
    context: BrowserContext, server: LiveServer, api: Api, tmp_path: Path
) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    api.begun(session, shell(f"echo once >> {out}"))
    tabs = [context.new_page() for _ in range(2)]
    for tab in tabs:
        tab.goto(f"{server.url}/sessions/{session}/approval")
        expect(tab.get_by_role("button", name="Approve", exact=True)).to_be_enabled()
    one, other = tabs
    one.get_by_role("button", name="Approve", exact=True).click()
    one.wait_for_url(f"**/sessions/{session}")
    expect(turns(one)).to_contain_text("done")
    other.get_by_role("button", name="Reject").click()
    expect(other.locator("#notice")).to_contain_text("not pending any more, so nothing was decided")
    assert out.read_text() == "once\n"
    other.reload()
    expect(other.locator(".decided li")).to_have_count(1)
    expect(other.locator(".decided li")).to_contain_text("approve")


def test_a_page_that_is_opened_late_shows_a_long_answer_at_once(
    page: Page, server: LiveServer, api: Api
) -> None:
    """However many events there are, the page is not laid out for each of them."""
    session = api.session("shelly")
    lines = "\n".join(f'!tool think {{"thought": "step {number}"}}' for number in range(40))
    api.begun(session, f"{lines}\n!slow 0.2\n!say {'word ' * 300}")
    calls = 40
    page.add_init_script(
        "window.seen = 0; const source = EventSource.prototype; const of = Object.getOwnPropertyDescriptor("
        "source, 'onmessage'); Object.defineProperty(source, 'onmessage', { set(take) { of.set.call(this, "
        "(event) => { window.seen += 1; take.call(this, event); }); } });"
    )
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")
    with api.stream("GET", f"/api/sessions/{session}/events?since=0") as stream:
        stream.until("agent_choice")
    page.goto(f"{server.url}/sessions/{session}")
    expect(page.locator("#live details.tool")).to_have_count(calls)
    expect(page.locator("#live .text")).to_contain_text("word")
    measured = devtools.send("Performance.getMetrics")["metrics"]
    layouts = next(one["value"] for one in measured if one["name"] == "LayoutCount")
    seen = page.evaluate("window.seen")
    assert seen > 2 * calls
    assert layouts < seen / 4
    assert page.locator("#live .text").count() == 1
    api.post(f"/api/sessions/{session}/cancel")


def test_a_result_of_megabytes_is_cut_on_the_page_and_whole_in_the_api(
    page: Page, server: LiveServer, api: Api
) -> None:
    session, big = api.session(title="a large result"), "<b>line</b> of a log\n" * 240_000
    call = {"id": "c1", "type": "function", "function": {"name": "read_log", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Read the log"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": big},
    ]
    assert api.post(f"/api/sessions/{session}/messages", {"messages": messages}).status == 201
    answer = {"role": "assistant", "content": big[:4_000_000]}
    assert api.post(f"/api/sessions/{session}/messages", {"messages": [answer]}).status == 201
    api.good(session, "and now?")
    given = page.goto(f"{server.url}/sessions/{session}")
    assert given is not None
    assert len(given.body()) < 200_000
    page.locator("details.tool summary").click()
    expect(page.locator("details.tool")).to_contain_text("<b>line</b> of a log")
    expect(page.get_by_text("more characters; the API has all of them").first).to_be_visible()
    newest = api.get(f"/api/sessions/{session}/turns")[-1]["id"]
    prompt = page.goto(f"{server.url}/sessions/{session}/turns/{newest}/prompt")
    assert prompt is not None
    assert len(prompt.body()) < 200_000


def test_times_do_not_depend_on_the_clock_of_the_browser(page: Page, server: LiveServer, api: Api) -> None:
    """Neither does what a page does: it reloads, streams and sends with a clock that is a day off."""
    session = api.session(title="seen from tomorrow")
    api.good(session, "hello")
    page.clock.set_fixed_time("2030-01-01T00:00:00Z")
    open_session(page, server, session)
    expect(page.locator(".turn-foot time")).to_have_text(re.compile(r"^(now|\d+ s ago)$"))
    page.get_by_role("textbox", name="Message").fill("again")
    page.get_by_role("textbox", name="Message").press("Enter")
    expect(turns(page)).to_have_count(2)
    api.post(f"/api/sessions/{session}/messages", {"messages": said("from elsewhere")})
    expect(page.locator(".turn.append")).to_contain_text("from elsewhere")


def test_a_server_that_hangs_is_reported_and_found_again(page: Page, server: LiveServer) -> None:
    """It accepts the request and never answers: the page must not say for ever that it is live."""
    page.clock.install()
    page.goto(f"{server.url}/sessions")
    expect(page.locator(".live-state")).to_have_text("Live")
    page.route("**/sessions", lambda route: None)
    with page.expect_request("**/sessions"):
        page.clock.fast_forward(5_000)
    expect(page.locator(".live-state")).to_have_text("Live")
    page.clock.fast_forward(21_000)
    expect(page.locator(".live-state")).to_have_text("Server not reachable, trying again")
    page.unroute("**/sessions")
    page.clock.fast_forward(5_000)
    expect(page.locator(".live-state")).to_have_text("Live")


def test_a_browser_that_was_offline_reads_the_session_again_at_once(
    page: Page, server: LiveServer, api: Api
) -> None:
    session = api.session()
    api.good(session, "before")
    open_session(page, server, session)
    page.context.set_offline(True)
    expect(page.locator(".live-state")).to_have_text("Offline")
    api.good(session, "meanwhile")
    page.context.set_offline(False)
    expect(page.locator(".live-state")).to_have_text("Live")
    expect(turns(page)).to_have_count(2)


#: On how many lines the text of an element is.
_LINES = """(one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return new Set([...range.getClientRects()].map((box) => box.top)).size;
}"""


def test_numbers_are_on_one_line_at_every_width(page: Page, server: LiveServer, api: Api) -> None:
    """`2,00` above `0` is read as another number."""
    session = api.session(title="many tokens")
    api.good(session, "!say " + "word " * 30_000)
    page.goto(f"{server.url}/sessions?q=many+tokens")
    for width in (1280, 1100, 1000, 375):
        page.set_viewport_size({"width": width, "height": 800})
        for cell in page.locator(".rows tbody .num").all():
            if cell.is_visible():
                lines = cell.evaluate(_LINES)
                assert lines <= 1, (width, cell.inner_text())


# -- texts that are longer than anybody thought ------------------------------------------------

LONG = "x" * 180
#: Elements that reach beyond the screen, unless they can be scrolled or are cut.
_BEYOND = """() => [...document.querySelectorAll('main *')].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width > 0 && box.right > innerWidth + 1 && one.checkVisibility({contentVisibilityAuto: true})
        && !one.closest('pre, svg, summary, .figures, .lane-label, .visually-hidden, details:not([open])');
}).map((one) => `${one.tagName}.${one.className}`)"""


def long_texts(api: Api, key: str) -> dict[str, str]:
    """The pages of a session and a task in which every text is long and has no space to break at."""
    session = api.session(key, title=LONG)
    turn, user = f"/api/sessions/{session}/turns", "u" * 100

    def say(text: str) -> None:
        api.ask("POST", turn, {"messages": said(text), "wait": True, "user": user})

    say(f"{LONG}\n!say # {LONG}\n- {LONG}\n`{LONG}`")
    say(f"!fail before {LONG}")
    say(f'!tool think {{"thought": "{LONG}"}}\n!say done')
    failed = next(one for one in api.get(f"/api/sessions/{session}/attempts") if one["status"] == "failed")
    newest = api.get(turn)[-1]["id"]
    api.begun(session, shell(f"echo {LONG}"), user=user)
    api.post(f"/api/sessions/{session}/followup", {"messages": [{"content": LONG}]})
    runtime = {"name": "r" * 100, "provider": "claude", "cli_version": "9" * 60}
    body = {"worker_id": "w" * 60, "instance": "one", "version": "1", "runtimes": [runtime]}
    made = api.post("/api/worker/register", body).json["runtimes"][0]["id"]
    scope = {"kind": "issue", "id": "i" * 120}
    task = api.post("/api/tasks", {"agent": key, "scope": scope, "prompt": LONG, "runtime": made}).json
    path = f"/sessions/{session}"
    return {
        "home": "/",
        "sessions": "/sessions",
        "session": path,
        "timeline": f"{path}/turns/{failed['turn']}",
        "prompt": f"{path}/turns/{newest}/prompt",
        "attempt": f"{path}/attempts/{failed['id']}",
        "approvals": "/approvals",
        "approval": f"{path}/approval",
        "work": "/work",
        "task": f"/work/tasks/{task['id']}",
        "pointers": f"/sessions/{task['session_id']}/pointers",
        "agents": "/agents",
        "usage": "/usage",
        "error": f"/sessions/{LONG}",
    }


def test_long_texts_fit_screens_of_every_width(context: BrowserContext, tmp_path: Path) -> None:
    key = "agent-" + "k" * 120
    agent = {
        "model": "builtin/scripted",
        "description": LONG,
        "toolsets": [{"type": "shell"}, {"type": "think"}],
    }
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / f"{key}.yaml").write_text(yaml.safe_dump({"agents": {"root": agent}}))
    (tmp_path / "agents" / f"broken-{key}.yaml").write_text(f"agents: {{root: {{model: {LONG}}}}}")
    folder = str(tmp_path / "agents")
    with LiveServer(tmp_path, folder, options=("--safety", "balanced")) as server:
        paths = long_texts(Api(server), key)
        page = context.new_page()
        for width in (1280, 800, 360):
            page.set_viewport_size({"width": width, "height": 900})
            for name, path in paths.items():
                page.goto(server.url + path)
                assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, width)
                assert page.evaluate(_BEYOND) == [], (name, width)
                shoot(page, f"long-{name}-{width}")
            page.goto(server.url + paths["session"])
            for menu in page.locator(".menu summary").all():
                menu.click()
                box = page.locator(".menu[open] .menu-body").bounding_box()
                assert box is not None
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= width
                page.keyboard.press("Escape")
