"""A session with the keyboard alone, and a page that loses its server in mid-answer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.test_console import open_session, say, tab_to, turns
from tests.e2e.api import Api
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow


def press(page: Page, name: str) -> None:
    """Reaches the control by Tab alone, whatever has the focus now."""
    tab_to(page, name)
    page.keyboard.press("Enter")


def test_a_turn_is_retried_and_cancelled_with_the_keyboard(page: Page, server: LiveServer, api: Api) -> None:
    session = api.session()
    api.good(session, "hello")
    open_session(page, server, session)
    say(page, "!fail during 1\n!say it works now")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    tab_to(page, "Retry", backwards=True)
    page.keyboard.press("Enter")
    expect(turns(page)).to_have_count(2)
    expect(turns(page).last).to_contain_text("it works now")
    page.keyboard.press("/")
    page.keyboard.type("!slow 0.5")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("!say " + "word " * 200)
    page.keyboard.press("Enter")
    expect(page.locator("#live .text")).to_contain_text("word")
    press(page, "Cancel the turn")
    expect(page.locator(".turn.ghost")).to_contain_text("cancelled")


def test_menus_pause_and_forks_work_with_the_keyboard(page: Page, server: LiveServer, api: Api) -> None:
    session = api.session(title="from the keyboard")
    for text in ("first", "second"):
        api.good(session, text)
    open_session(page, server, session)
    press(page, "Pause")
    expect(page.locator(".live-state")).to_have_text("Paused")
    press(page, "Resume")
    expect(page.locator(".live-state")).to_have_text("Live")
    press(page, "Copy as curl")
    expect(page.get_by_role("button", name="Copy curl command")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Copy curl command")).to_be_hidden()
    expect(page.locator("summary", has_text="Copy as curl")).to_be_focused()
    press(page, "Change")
    page.keyboard.press("Tab")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("renamed from the keyboard")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("renamed from the keyboard")
    press(page, "Fork here")  # at the first turn
    page.wait_for_url(lambda url: session not in url)
    expect(turns(page)).to_have_count(1)
    expect(page.locator(".meta")).to_contain_text("forked from")


def test_a_page_catches_up_when_the_server_dies_in_mid_answer(
    context: BrowserContext, tmp_path: Path
) -> None:
    """The turn that was cut is shown, with nothing of its half answer in the history."""
    with LiveServer(tmp_path) as server:
        api = Api(server)
        session = api.session()
        api.good(session, "before")
        tab = context.new_page()
        open_session(tab, server, session)
        say(tab, "!slow 0.5\n!say " + "word " * 200)
        expect(tab.locator("#live .text")).to_contain_text("word word")
        server.kill()
        expect(tab.locator(".live-bar")).to_have_class(re.compile("lost"))
        server.start()
        expect(tab.locator(".live-state")).to_have_text("Live")
        again = Api(server)
        again.post(f"/api/sessions/{session}/cancel")
        again.until_idle(session)
        expect(tab.locator(".turn.ghost")).to_have_count(1)
        expect(turns(tab)).to_have_count(1)
        expect(tab.locator("#live")).to_be_hidden()
        say(tab, "after the restart")
        expect(turns(tab)).to_have_count(2)
