"""Questions in a real browser: input for tools, and answers that count for what was on the screen."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import serious, shoot
from tests.browser.test_console import open_session, tab_to, turns
from tests.e2e.api import Api
from tests.e2e.server import LiveServer
from tests.surfaces.test_console import XSS

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "title": "City", "description": "Where the hotel is"},
        "nights": {"type": "integer", "title": "Nights"},
        "breakfast": {"type": "boolean", "title": "With breakfast"},
        "room": {"enum": ["single", "double"], "title": "Room"},
        "extras": {"type": "array", "title": "Extras", "items": {"enum": ["sauna", "garage"]}},
    },
    "required": ["city", "room"],
}


def ask_for_input(api: Api, message: str, schema: Any) -> str:
    session = api.session("asker")
    call = {"message": message, "schema": schema, "title": "Book a hotel"}
    api.begun(session, f"!tool user_prompt {json.dumps(call)}\n!say booked")
    return session


def result(api: Api, session: str) -> Any:
    return json.loads(next(str(text) for role, text in api.history(session) if role == "tool"))


def test_a_question_for_input_is_answered_in_its_form(page: Page, server: LiveServer, api: Api) -> None:
    session = ask_for_input(api, "Which hotel do you want?", SCHEMA)
    open_session(page, server, session)
    question = page.locator(".question")
    expect(question).to_contain_text("Which hotel do you want?")
    assert serious(page) == []
    shoot(page, "session-input")
    question.get_by_label("City").fill("Rome")
    question.get_by_label("Nights").fill("three")
    question.get_by_label("Room").select_option("double")
    question.get_by_label("sauna").check()
    question.get_by_role("button", name="Accept").click()
    expect(page.locator("#notice")).to_contain_text("`Nights` must be a whole number")
    expect(question.get_by_label("City")).to_have_value("Rome")  # nothing has to be typed again
    question.get_by_label("Nights").fill("3")
    question.get_by_label("Nights").press("Enter")  # the first button of the form
    expect(turns(page)).to_contain_text("booked")
    expect(question).to_have_count(0)
    content = {"city": "Rome", "nights": 3, "room": "double", "extras": ["sauna"]}
    assert result(api, session) == {"action": "accept", "content": content}


def test_a_question_for_input_is_declined_without_its_required_fields(
    page: Page, server: LiveServer, api: Api
) -> None:
    session = ask_for_input(api, "Which hotel?", SCHEMA)
    page.goto(f"{server.url}/sessions/{session}/approval")
    page.get_by_role("button", name="Accept").click()  # the browser asks for the required fields
    expect(page.get_by_label("City")).to_be_focused()
    page.get_by_role("button", name="Decline").click()
    page.wait_for_url(f"**/sessions/{session}")
    expect(turns(page)).to_contain_text("booked")
    api.until_idle(session)
    assert '"decline"' in str(api.history(session))


def test_what_was_typed_survives_a_refresh(page: Page, server: LiveServer, api: Api) -> None:
    session = ask_for_input(api, "Which hotel?", SCHEMA)
    open_session(page, server, session)
    page.get_by_label("City").fill("Oslo")
    page.get_by_label("Room").focus()  # nobody types any more, so the region may be replaced
    api.post(f"/api/sessions/{session}/followup", {"messages": [{"content": "and then this"}]})
    expect(page.locator(".queue li")).to_contain_text("and then this")
    expect(page.get_by_label("City")).to_have_value("Oslo")
    expect(page.get_by_label("Room")).to_be_focused()
    api.post(f"/api/sessions/{session}/cancel")


def test_text_of_a_question_for_input_never_becomes_markup(page: Page, server: LiveServer, api: Api) -> None:
    everything = " ".join(XSS)
    about = {"type": "string", "title": everything, "description": everything, "default": "x"}
    schema = {"type": "object", "properties": {everything: about, "b": {"enum": XSS}}}
    session = ask_for_input(api, everything, schema)
    for path in ("/", "/approvals", f"/sessions/{session}", f"/sessions/{session}/approval"):
        page.goto(server.url + path)
        expect(page.get_by_text("onerror=alert(1)").first).to_be_visible()
        assert page.locator("main img, main script, main svg").count() == 0, path
    api.post(f"/api/sessions/{session}/cancel")


# -- two questions --------------------------------------------------------------------------


class Asking:
    """A task on a runtime whose CLI has asked two questions at once."""

    def __init__(self, api: Api, worker: str) -> None:
        self.api = api
        runtime = {"name": worker, "provider": "claude"}
        body = {"worker_id": worker, "instance": "one", "version": "1", "runtimes": [runtime]}
        made = api.post("/api/worker/register", body).json
        self.runtime = made["runtimes"][0]["id"]
        scope = {"kind": "issue", "id": worker}
        new = {"agent": "builtin/scripted", "scope": scope, "prompt": "Fix it", "runtime": self.runtime}
        self.task = api.post("/api/tasks", new).json
        self.session = self.task["session_id"]
        claims = {"worker_id": worker, "epoch": made["worker"]["epoch"], "runtime_ids": [self.runtime]}
        (self.claim,) = api.post("/api/worker/claim", {**claims, "wait_seconds": 20}).json["tasks"]
        self.report("start")
        for place in ("1", "2"):
            call = {"id": f"q{place}", "tool": "Bash", "input": {"command": f"make step-{place}"}}
            self.report("ask", question=call)

    def report(self, name: str, **fields: Any) -> Any:
        path = f"/api/worker/tasks/{self.claim['task']['id']}/{name}"
        given = self.api.post(path, {"claim_token": self.claim["claim_token"], **fields})
        assert given.status == 200, given.body
        return given.json

    @property
    def pending(self) -> list[str]:
        found = self.api.get(f"/api/sessions/{self.session}/pending")
        return [one["arguments"]["command"] for one in found]


def test_a_double_click_answers_one_question_and_never_the_next(
    page: Page, server: LiveServer, api: Api
) -> None:
    asking = Asking(api, "double-click")
    page.set_viewport_size({"width": 1280, "height": 1600})  # nothing scrolls
    open_session(page, server, asking.session)
    approve = page.get_by_role("button", name="Approve", exact=True)
    expect(approve).to_have_count(2)
    expect(approve.first).to_be_enabled()
    place = approve.first.bounding_box()
    assert place is not None
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    page.mouse.click(x, y)
    expect(approve).to_have_count(1)  # the second question is where the first one was
    assert page.evaluate("([x, y]) => document.elementFromPoint(x, y).disabled", [x, y])
    page.mouse.click(x, y)
    assert asking.pending == ["make step-2"]
    expect(page.locator(".question")).to_contain_text("make step-2")
    expect(approve).to_be_enabled()
    approve.click()
    expect(approve).to_have_count(0)
    assert asking.pending == []
    asking.report("complete", output="done")


def test_a_second_enter_answers_nothing(page: Page, server: LiveServer, api: Api) -> None:
    asking = Asking(api, "second-enter")
    open_session(page, server, asking.session)
    approve = page.get_by_role("button", name="Approve", exact=True)
    expect(approve.first).to_be_enabled()
    approve.first.focus()
    page.keyboard.press("Enter")
    expect(approve).to_have_count(1)
    expect(page.locator(".question")).to_be_focused()  # the next question, and none of its buttons
    page.keyboard.press("Enter")
    expect(approve).to_be_enabled()
    page.keyboard.press("Enter")
    assert asking.pending == ["make step-2"]
    tab_to(page, "Approve")
    page.keyboard.press("Enter")
    expect(approve).to_have_count(0)
    assert asking.pending == []
    asking.report("complete", output="done")


def test_an_answer_given_elsewhere_moves_no_button_under_the_pointer(
    page: Page, server: LiveServer, api: Api
) -> None:
    asking = Asking(api, "elsewhere")
    open_session(page, server, asking.session)
    approve = page.get_by_role("button", name="Approve", exact=True)
    reason = page.get_by_label("Reason for the model")
    expect(approve.first).to_be_enabled()
    reason.last.fill("the second")
    approve.first.focus()
    (first, _) = api.get(f"/api/sessions/{asking.session}/pending")
    api.post(f"/api/sessions/{asking.session}/resume", {"confirmation": "approve", "question": first["id"]})
    expect(approve).to_have_count(1)
    expect(approve).to_be_disabled()
    expect(page.locator(".question")).to_be_focused()
    expect(reason).to_have_value("the second")
    expect(approve).to_be_enabled()
    asking.report("complete", output="done")
