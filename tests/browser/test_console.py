"""The console as a person uses it: every page, and the life of a turn, in a real browser."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.conftest import TOKEN, serious, shoot
from tests.e2e.api import Api, said
from tests.e2e.server import LiveServer
from tests.surfaces.test_console import XSS

pytestmark = pytest.mark.slow


def open_session(page: Page, server: LiveServer, session: str) -> None:
    page.goto(f"{server.url}/sessions/{session}")
    expect(page.locator(".live-state")).to_have_text("Live")


def say(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("textbox", name="Message").press("Enter")


def turns(page: Page) -> Locator:
    return page.locator(".turn.run")


#: How far down an element is on the screen.
TOP = "(one) => one.getBoundingClientRect().top"


def shell(command: str) -> str:
    return f'!tool shell {{"cmd": "{command}"}}\n!say done'


# -- talking ------------------------------------------------------------------------------


def test_a_message_on_the_home_page_starts_a_session_and_streams(page: Page, server: LiveServer) -> None:
    page.goto(server.url)
    expect(page).to_have_title(re.compile("Home"))
    page.get_by_role("combobox", name="Agent").select_option("builtin/scripted")
    say(page, "!slow 0.15\n!say one two three four five six seven eight nine ten")
    page.wait_for_url("**/sessions/ses_*")
    expect(page.locator("#live .text")).to_contain_text("one two")  # before it is committed
    shoot(page, "session-streaming")
    expect(turns(page).locator(".message.assistant")).to_contain_text("eight nine ten")
    expect(page.locator("#live")).to_be_hidden()
    say(page, "and again")
    expect(turns(page)).to_have_count(2)
    expect(page.get_by_role("textbox", name="Message")).to_have_value("")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()


def test_a_failed_turn_is_a_ghost_and_a_retry_commits_it_once(
    page: Page, server: LiveServer, api: Api
) -> None:
    session = api.session()
    api.good(session, "good morning")
    open_session(page, server, session)
    say(page, "!fail during 1\n!say it works now")
    ghost = page.locator(".turn.ghost")
    expect(ghost.locator("summary .status.failed").first).to_be_visible()
    expect(turns(page)).to_have_count(1)
    expect(ghost.locator("details.ghost-turn")).not_to_have_attribute("open", "")
    shoot(page, "session-failed")
    ghost.locator("details.ghost-turn > summary").click()
    expect(ghost).to_contain_text("stream cut, as directed")
    page.get_by_role("button", name="Retry").click()
    expect(turns(page)).to_have_count(2)
    expect(turns(page).last).to_contain_text("it works now")
    expect(turns(page).last.locator("details.attempt.failed")).to_have_count(1)
    assert [role for role, _ in api.history(session)] == ["user", "assistant", "user", "assistant"]


def test_a_retry_says_what_it_keeps_and_the_timeline_shows_both_attempts(
    page: Page, server: LiveServer, api: Api
) -> None:
    session = api.session("shelly")
    open_session(page, server, session)
    say(page, '!tool think {"thought": "once"}\n!fail during 1\n!say **done** with `it`')
    expect(page.locator(".trouble")).to_contain_text("A retry keeps 1 response and 1 tool result")
    page.get_by_role("button", name="Retry").click()
    expect(turns(page)).to_have_count(1)
    expect(turns(page).locator(".prose b")).to_have_text("done")
    expect(turns(page).locator(".prose code")).to_have_text("it")
    page.get_by_role("link", name="Timeline of turn 1").click()
    lanes = page.locator(".lane")
    expect(lanes.filter(has_text="Attempt 1")).to_contain_text("failed")
    expect(lanes.filter(has_text="Attempt 2")).to_contain_text("committed")
    expect(lanes.filter(has_text="think")).to_have_count(4)  # the response that calls it and the call, twice
    expect(lanes.filter(has_text="adopted")).to_have_count(2)
    expect(page.locator("rect.adopted")).to_have_count(2)
    shoot(page, "timeline")


def test_usage_counts_what_was_just_said(page: Page, server: LiveServer, api: Api) -> None:
    body = {"messages": said("hello"), "wait": True, "user": "counted-in-the-browser"}
    assert api.ask("POST", f"/api/sessions/{api.session()}/turns", body).status == 200
    page.goto(f"{server.url}/usage?range=day")
    row = page.locator("tr", has_text="counted-in-the-browser")
    expect(row.locator("td").nth(1)).to_have_text("1")
    expect(page.locator(".plot-card")).to_have_count(5)
    page.get_by_role("link", name="counted-in-the-browser").click()
    expect(page.locator(".chip")).to_have_text(re.compile("user counted-in-the-browser"))
    expect(page.locator(".plot-card", has_text="Turns").locator("b")).to_have_text("1")
    page.get_by_role("link", name="Remove the filter user counted-in-the-browser").click()
    expect(page.locator(".chip")).to_have_count(0)
    page.get_by_role("link", name="last month").click()
    expect(page.locator("tr", has_text="counted-in-the-browser")).to_be_visible()
    page.get_by_role("link", name="API reference").click()
    expect(page.get_by_text("/v1/chat/completions")).to_be_visible()


def test_a_page_of_another_origin_reads_a_stream_with_a_ticket(page: Page, guarded: LiveServer) -> None:
    """As its own page here: an EventSource has no way to send a token."""
    api = Api(guarded, TOKEN)
    session = api.session()
    url = api.post(f"/api/sessions/{session}/events/ticket").json["url"]
    page.goto(f"{guarded.url}/login")
    page.evaluate(
        "(url) => { window.seen = []; new EventSource(url + '&since=0').onmessage = (event) => "
        "window.seen.push(JSON.parse(event.data).type); }",
        url,
    )
    api.good(session, "through a ticket")
    page.wait_for_function("window.seen.includes('turn_committed')")


def test_a_running_turn_is_cancelled_and_a_follow_up_waits_its_turn(
    page: Page, server: LiveServer, api: Api
) -> None:
    session = api.session()
    open_session(page, server, session)
    say(page, "!slow 0.5\n!say " + "word " * 200)
    expect(page.locator("#live .text")).to_contain_text("word")
    expect(page.locator(".head .status")).to_have_text("running")
    say(page, "and then this")
    expect(page.locator(".queue li")).to_contain_text("and then this")
    page.get_by_role("button", name="Cancel the turn").click()
    expect(page.locator(".turn.ghost")).to_contain_text("cancelled")
    # A person's cancel holds what is queued behind it until somebody says otherwise.
    expect(page.locator(".queue li.parked")).to_be_visible()
    page.get_by_role("button", name="Try again").click()
    expect(turns(page)).to_have_count(1)
    expect(turns(page)).to_contain_text("and then this")


def test_a_fork_continues_from_its_turn(page: Page, server: LiveServer, api: Api) -> None:
    session = api.session()
    for text in ("first", "second", "third"):
        api.good(session, text)
    open_session(page, server, session)
    page.get_by_text("Change", exact=True).click()
    expect(page.get_by_role("button", name="Delete")).to_be_visible()
    shoot(page, "session-menu")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Delete")).to_be_hidden()
    page.get_by_role("button", name="Fork here at turn 2").click()
    page.wait_for_url(lambda url: session not in url)
    expect(turns(page)).to_have_count(2)
    expect(page.locator(".meta")).to_contain_text("forked from")
    say(page, "!remember")
    expect(turns(page).last).to_contain_text("I remember: first | second")


def test_tool_calls_stream_and_are_kept_with_their_results(page: Page, server: LiveServer, api: Api) -> None:
    session = api.session("shelly")
    open_session(page, server, session)
    say(page, '!tool think {"thought": "is this live?"}\n!slow 0.1\n!say thought about it for a while now')
    expect(page.locator("#live .tool")).to_contain_text("is this live?")
    tool = turns(page).locator("details.tool")
    expect(tool).to_have_count(1)
    tool.locator("summary").click()
    expect(tool).to_contain_text("Result")
    shoot(page, "session-tools")


def test_what_the_model_saw_shows_what_is_new(page: Page, server: LiveServer, api: Api) -> None:
    session = api.session()
    api.good(session, "the first message")
    api.good(session, "the second message")
    open_session(page, server, session)
    page.get_by_role("link", name="What the model saw in turn 2").click()
    expect(page.locator(".prompt-message.new").first).to_contain_text("You said: the first message")
    expect(page.locator(".prompt-message.new").last).to_contain_text("the second message")
    expect(page.locator(".known")).to_contain_text("1 message that the turn before also saw")
    shoot(page, "prompt")


def test_text_streams_and_is_shown_and_never_becomes_markup(page: Page, server: LiveServer, api: Api) -> None:
    """The page fixture fails if the policy had to stop anything."""
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    session = api.session("shelly", title=" ".join(XSS[:3]))
    open_session(page, server, session)
    everything = " ".join(XSS)
    call = json.dumps({"thought": everything})
    say(page, f"!tool think {call}\n!slow 0.05\n!say-json {json.dumps(everything)}")
    expect(page.locator("#live .tool-name")).to_have_text("think")
    expect(page.locator("#live .text").last).to_contain_text("<script>alert(1)</script>")
    expect(turns(page).locator(".message.assistant .text").last).to_contain_text("onerror=alert(1)//>")
    say(page, f"!fail {everything}")
    expect(page.locator(".turn.ghost")).to_have_count(1)
    api.begun(session, shell("echo '</pre><img src=x onerror=alert(1)>'"))
    expect(page.locator(".command")).to_have_text("echo '</pre><img src=x onerror=alert(1)>'")
    for path in ("/", "/sessions", "/approvals", f"/sessions/{session}"):
        page.goto(server.url + path)
        assert page.locator("main img, main script, main svg").count() == 0, path
    api.post(f"/api/sessions/{session}/cancel")


def test_pages_work_without_scripts(browser: Browser, server: LiveServer, api: Api) -> None:
    session = api.session()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    try:
        page.goto(f"{server.url}/sessions/{session}")
        page.get_by_role("textbox", name="Message").fill("without a script")
        page.get_by_role("button", name="Send").click()
        page.wait_for_url(f"**/sessions/{session}")
        api.until_idle(session)
        page.reload()
        expect(turns(page)).to_contain_text("You said: without a script")
    finally:
        context.close()


# -- approvals --------------------------------------------------------------------------


def test_a_tool_call_is_approved_in_the_session(
    page: Page, server: LiveServer, api: Api, tmp_path: Path
) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    open_session(page, server, session)
    say(page, shell(f"echo approved >> {out}"))
    question = page.locator(".question")
    expect(question.locator(".command")).to_have_text(f"echo approved >> {out}")
    assert not out.exists()
    shoot(page, "session-approval")
    question.get_by_role("button", name="Approve", exact=True).click()
    expect(turns(page)).to_contain_text("done")
    expect(question).to_have_count(0)
    assert out.read_text() == "approved\n"


def test_an_approval_fits_a_phone_and_a_rejection_reaches_the_model(
    browser: Browser, server: LiveServer, api: Api, tmp_path: Path
) -> None:
    session, out = api.session("shelly"), tmp_path / "out"
    api.begun(session, shell(f"echo {'long ' * 60} >> {out}"))
    context = browser.new_context(viewport={"width": 375, "height": 740}, color_scheme="dark", has_touch=True)
    page = context.new_page()
    try:
        page.goto(f"{server.url}/approvals")
        page.get_by_role("link", name="Decide").last.wait_for()
        page.goto(f"{server.url}/sessions/{session}/approval")
        expect(page.locator(".command")).to_contain_text(str(out))
        for fact in ("this server", "Directory", "Requested by"):
            expect(page.locator(".question .facts")).to_contain_text(fact)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shoot(page, "phone-approval-dark")
        page.get_by_label("Reason for the model").fill("not on a Friday")
        page.get_by_role("button", name="Reject").click()
        page.wait_for_url(f"**/sessions/{session}")
        expect(turns(page)).to_contain_text("done")
        shoot(page, "phone-session-dark")
    finally:
        context.close()
    assert not out.exists()
    assert "not on a Friday" in str(api.history(session))


# -- live ------------------------------------------------------------------------------


def test_a_page_reconnects_after_a_restart_of_the_server(
    browser: Browser, tmp_path: Path, context: object
) -> None:
    with LiveServer(tmp_path) as server:
        api = Api(server)
        session = api.session()
        api.good(session, "before the restart")
        tab = browser.new_context().new_page()
        try:
            open_session(tab, server, session)
            server.kill()
            expect(tab.locator(".live-bar")).to_have_class(re.compile("lost"))
            server.start()
            expect(tab.locator(".live-state")).to_have_text("Live", timeout=20_000)
            Api(server).good(session, "after the restart")
            expect(turns(tab)).to_have_count(2)
            say(tab, "from the same page")
            expect(turns(tab)).to_have_count(3)
        finally:
            tab.context.close()


def test_lists_refresh_without_moving_the_reader_and_can_be_paused(
    page: Page, server: LiveServer, api: Api
) -> None:
    for number in range(30):
        api.session(title=f"row {number}")
    page.goto(f"{server.url}/sessions")
    page.evaluate("scrollTo(0, 400)")
    read = page.get_by_role("link", name="row 15", exact=True)
    before = read.evaluate(TOP)
    api.session(title="appears by itself")
    expect(page.get_by_role("link", name="appears by itself")).to_be_attached()
    assert abs(read.evaluate(TOP) - before) < 2  # it is a row further down now
    assert page.evaluate("scrollY") > 400
    page.get_by_role("button", name="Pause").click()
    api.session(title="not while paused")
    with page.expect_request("**/sessions/nothing", timeout=5500) as _:
        # Longer than a refresh takes: nothing but this request is sent.
        page.evaluate("setTimeout(() => fetch('/sessions/nothing'), 4600)")
    expect(page.get_by_role("link", name="not while paused")).to_have_count(0)
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("link", name="not while paused")).to_be_attached()


def test_a_turn_that_is_read_stays_where_it_is_while_the_window_moves(
    page: Page, server: LiveServer, api: Api
) -> None:
    session = api.session()
    for number in range(30):
        api.post(f"/api/sessions/{session}/messages", {"messages": said(f"remark-{number:02}\n" * 6)})
    open_session(page, server, session)
    read = page.locator(".turn", has_text="remark-12")
    read.evaluate("(one) => scrollTo(0, one.getBoundingClientRect().top + scrollY - 50)")
    before = read.evaluate(TOP)
    for number in range(3):
        api.good(session, f"later {number}")
    expect(page.locator(".turn", has_text="later 2")).to_be_attached()
    expect(page.locator(".turn", has_text="remark-02")).to_have_count(0)  # it has left the window
    expect(page.locator("#live")).to_be_hidden()
    assert abs(read.evaluate(TOP) - before) < 2


def test_a_draft_outlives_a_login_that_ended(page: Page, guarded: LiveServer) -> None:
    page.goto(f"{guarded.url}/login")
    log_in(page)
    page.wait_for_url(f"{guarded.url}/")
    page.get_by_role("textbox", name="Message").fill("a long thought")
    page.context.clear_cookies(name=re.compile("lastgood_login"))
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_contain_text("Your login has ended")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("a long thought")
    shoot(page, "login-ended")
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Log in again").click()
    log_in(opened.value)
    opened.value.wait_for_url(f"{guarded.url}/")
    expect(page.locator("#notice")).to_have_text("")  # the next refresh has found the login
    page.get_by_role("textbox", name="Message").press("Enter")
    page.wait_for_url("**/sessions/ses_*")
    expect(turns(page)).to_contain_text("a long thought")


def log_in(page: Page) -> None:
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")


def test_a_message_whose_answer_was_lost_runs_once_and_a_changed_one_is_another(
    page: Page, server: LiveServer, api: Api
) -> None:
    session = api.session()
    open_session(page, server, session)

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route("**/send", lose)
    for text in ("as it was", "as it was", "as it is now"):
        say(page, text)
        expect(page.locator("#notice")).to_contain_text("The server did not answer")
        api.until_idle(session)
        page.evaluate("document.getElementById('notice').textContent = ''")
    page.unroute("**/send")
    assert [text for role, text in api.history(session) if role == "user"] == ["as it was", "as it is now"]


def test_sessions_are_found_by_title_status_and_id(page: Page, server: LiveServer, api: Api) -> None:
    session = api.session(title="the needle in the haystack")
    page.goto(f"{server.url}/sessions")
    page.keyboard.press("/")
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    expect(page.locator(".rows tbody tr")).to_have_count(1)
    page.goto(f"{server.url}/sessions?q={session}")
    expect(page.get_by_role("link", name="the needle in the haystack")).to_be_visible()
    page.goto(f"{server.url}/sessions?q=needle&status=running")
    expect(page.get_by_text("No session matches.")).to_be_visible()


def test_a_session_of_2000_turns_opens_like_a_short_one_and_pages(
    page: Page, server: LiveServer, api: Api
) -> None:
    """On a machine that does something else, seconds are not comparable. So the server's own CPU time is
    bounded, and what is sent: a window of turns and of attempts."""
    long = api.session(title="two thousand turns")
    for number in range(1900):
        appended = api.post(f"/api/sessions/{long}/messages", {"messages": said(f"note {number}")})
        assert appended.status == 201, appended.body
    for number in range(100):
        api.good(long, f"question {number}")
    page.goto(server.url)  # the templates are compiled, as they are for everybody but the first
    before, began = server.cpu_seconds, time.monotonic()
    given = page.goto(f"{server.url}/sessions/{long}")
    expect(turns(page)).to_have_count(30)
    print(f"2,000 turns opened in {time.monotonic() - began:.2f} s")
    assert server.cpu_seconds - before < 1.0
    assert given is not None
    assert len(given.body()) < 30 * 4_000 + 50_000
    expect(page.locator(".pager").first).to_contain_text("turns 1,971 to 2,000 of 2,000")
    expect(turns(page).last).to_be_in_viewport()  # it opens at its end
    page.mouse.move(600, 400)
    while page.evaluate("scrollY") > 0:
        before_it = page.evaluate("scrollY")
        page.mouse.wheel(0, -2000)
        page.wait_for_function("(before) => scrollY < before", arg=before_it)
    expect(turns(page).first).to_be_in_viewport()
    page.get_by_role("link", name="Older turns").click()
    expect(page.locator(".pager").first).to_contain_text("turns 1,941 to 1,970 of 2,000")
    middle = api.get(f"/api/sessions/{long}/turns?limit=200")[99]
    page.goto(f"{server.url}/sessions/{long}?turn={middle['id']}#{middle['id']}")
    expect(page.locator(f"#{middle['id']}")).to_be_in_viewport()
    assert server.cpu_seconds - before < 4.0  # three pages, and what the live one has read again


# -- login, keyboard, accessibility, looks -----------------------------------------------


def test_login_with_a_token_and_logout(page: Page, guarded: LiveServer) -> None:
    page.goto(f"{guarded.url}/sessions?q=x")
    expect(page).to_have_url(re.compile(r"/login\?next="))
    page.get_by_label("Token").fill("not a token of this server")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("Unknown, expired or revoked token")
    assert serious(page) == []
    shoot(page, "login")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_url("**/sessions?q=x")
    assert "lastgood_login" not in page.evaluate("document.cookie")
    page.goto(guarded.url)
    say(page, "!slow 0.2\n!say behind a token it streams as well")
    page.wait_for_url("**/sessions/ses_*")
    expect(page.locator("#live .text")).to_contain_text("behind a token")
    expect(turns(page)).to_have_count(1)
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    page.goto(f"{guarded.url}/sessions")
    expect(page).to_have_url(re.compile("/login"))


def test_everything_works_with_the_keyboard_alone(page: Page, server: LiveServer, api: Api) -> None:
    session = api.session("shelly")
    api.good(session, "hello")
    page.goto(server.url)
    page.keyboard.press("Shift+Tab")  # from the message, which has the focus
    tab_to(page, "Sessions")
    page.keyboard.press("Enter")
    page.wait_for_url("**/sessions")
    page.keyboard.press("/")
    page.keyboard.type(session)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/sessions?q={session}*")
    row = page.locator(".rows .main > a").first
    tab_to(page, row.inner_text())
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/sessions/{session}")
    page.keyboard.press("/")
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    page.keyboard.type(shell("true").splitlines()[0])
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("!say done")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Approve", exact=True)).to_be_enabled()
    tab_to(page, "Approve", backwards=True)
    page.keyboard.press("Enter")
    expect(turns(page)).to_have_count(2)


def tab_to(page: Page, name: str, *, backwards: bool = False) -> None:
    for _ in range(80):
        if page.evaluate("document.activeElement.innerText?.trim()") == name:
            return
        page.keyboard.press("Shift+Tab" if backwards else "Tab")
    raise AssertionError(f"the keyboard does not reach {name!r}")


def queue_task(api: Api) -> Any:
    """A task that waits behind another one, on a runtime that was seen just now."""
    runtime = {"name": "laptop-1", "provider": "claude"}
    body = {"worker_id": "laptop", "instance": "one", "version": "1", "runtimes": [runtime]}
    made = api.post("/api/worker/register", body)
    assert made.status == 200, made.body
    new = {
        "agent": "builtin/scripted",
        "scope": {"kind": "issue", "id": "web-142"},
        "prompt": "Fix the header on narrow screens",
        "runtime": made.json["runtimes"][0]["id"],
    }
    api.post("/api/tasks", new)
    return api.post("/api/tasks", new).json


#: Links of the navigation that a narrow screen does not show.
_CUT_OFF = """[...document.querySelectorAll('.side nav a')]
    .filter((one) => one.getBoundingClientRect().right > innerWidth).map((one) => one.textContent)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_accessibility_problem(
    browser: Browser, server: LiveServer, api: Api, tmp_path: Path, scheme: str
) -> None:
    session = api.session("shelly", title="Deploy the website")
    api.good(session, "What changed since Monday?\n!say Three commits: the parser, the docs and a test.")
    api.ask("POST", f"/api/sessions/{session}/turns", {"messages": said("!fail during 9"), "wait": True})
    api.good(session, '!tool think {"thought": "deploy now"}\n!say Ready to deploy when you are.')
    failed = api.get(f"/api/sessions/{session}/attempts")[1]
    turn = api.get(f"/api/sessions/{session}/turns")[0]["id"]
    api.begun(session, shell(f"rsync -a site/ {tmp_path}/www/"))
    task = queue_task(api)
    made = browser.new_context(
        viewport={"width": 1280, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = made.new_page()
    try:
        for name, path in {
            "home": "/",
            "sessions": "/sessions",
            "session": f"/sessions/{session}",
            "attempt": f"/sessions/{session}/attempts/{failed['id']}",
            "prompt": f"/sessions/{session}/turns/{turn}/prompt",
            "turn": f"/sessions/{session}/turns/{failed['turn']}",
            "usage": "/usage",
            "usage-of-this-server": "/usage?runtime=",
            "reference": "/reference",
            "pointers": f"/sessions/{session}/pointers",
            "approvals": "/approvals",
            "approval": f"/sessions/{session}/approval",
            "work": "/work",
            "task": f"/work/tasks/{task['id']}",
            "native-sessions": f"/sessions/{task['session_id']}/pointers",
            "agents": "/agents",
            "error": "/sessions/nothing",
        }.items():
            page.goto(server.url + path)
            assert serious(page) == [], path
            shoot(page, f"{name}-{scheme}")
        for name, path in {
            "home": "/",
            "session": f"/sessions/{session}",
            "sessions": "/sessions",
            "turn": f"/sessions/{session}/turns/{failed['turn']}",
            "usage": "/usage",
            "reference": "/reference",
            "work": "/work",
        }.items():
            page.set_viewport_size({"width": 375, "height": 740})
            page.goto(server.url + path)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert page.evaluate(_CUT_OFF) == [], path
            assert serious(page) == [], f"{path} on a phone"
            shoot(page, f"phone-{name}-{scheme}")
        api.post(f"/api/sessions/{session}/cancel")
    finally:
        made.close()
