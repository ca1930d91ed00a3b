"""Text of workers, runtimes, users and links on the console: it is shown, and never becomes markup."""

import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.surfaces.asgi import Given
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside
from tests.surfaces.test_console import XSS, Visitor, answer_of, asked, injected, inline, seen, shelly, shown
from tests.surfaces.worker_calls import WorkerCalls, registered

pytestmark = pytest.mark.anyio


def assert_text(page: Given, *texts: str) -> None:
    assert page.status < 500, page.body
    assert (inline(page), injected(page)) == ([], [])
    for text in texts:
        assert shown(text) in shown(seen(page)), text


@pytest.fixture(params=XSS)
def text(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def ran(inside: InProcessServer, worker: WorkerCalls, text: str) -> Any:
    """A task on a runtime, of which every text that a worker may choose is this one; it asks a question."""
    scope = {"kind": "issue", "id": f"{text} scope"}
    new = {"agent": AGENT, "scope": scope, "prompt": f"{text} prompt", "runtime": worker.runtime}
    task = await inside.good("POST", "/api/tasks", new, "all")
    claim = await worker.claim()
    await worker.report(claim, "start")
    await worker.report(claim, "session", native_session=f"{text} native", work_dir=f"/{text} folder")
    said = [
        {"seq": 1, "type": "text", "content": f"{text} said"},
        {"seq": 2, "type": "tool", "tool": f"{text} tool", "call": text, "input": {text: text}},
        {"seq": 3, "type": "tool_result", "call": text, "output": f"{text} output"},
    ]
    await worker.report(claim, "messages", messages=said)
    summary = {"changes": [{"path": f"{text} changed", "change": "added"}], text: text}
    body = base64.b64encode(b"a snapshot").decode()
    await worker.report(claim, "snapshot", kind="git", summary=summary, body=body)
    question = {"id": text, "tool": f"{text} asks", "input": {"a": text, "b": 1}, "title": f"{text} title"}
    await worker.report(claim, "ask", question=question)
    return task, claim


async def test_text_of_a_worker_is_shown_on_every_page_of_work(tmp_path: Path, text: str) -> None:
    tokens = {"all": ("a", ("session", "approve"), f"{text} owner")}
    async with open_inside(tmp_path, tokens=tokens) as inside:
        fields = {"cli_version": f"{text} version", "account": f"{text} account", "name": f"{text} runtime"}
        worker = await registered(inside, "all", "laptop", **fields)  # ids of workers are words
        task, claim = await ran(inside, worker, text)
        visitor = await Visitor(inside).login("all")
        session = f"/sessions/{task['session_id']}"
        work = await visitor.get("/work")
        assert_text(work, f"{text} runtime", f"{text} version", f"{text} owner")
        assert_text(work, f"{text} scope")
        page = await visitor.get(f"/work/tasks/{task['id']}")
        assert_text(page, f"{text} scope")
        for part in ("said", "tool", "output", "changed"):
            assert_text(page, f"{text} {part}")
        assert_text(await visitor.get(f"{session}/pointers"), f"{text} native", f"/{text} folder")
        for path in (session, f"{session}/approval"):
            asks = await visitor.get(path)
            assert_text(asks, f"{text} asks", f"{text} title", f"{text} runtime (laptop)")
            assert_text(asks, f"/{text} folder", f"{text} owner")
        assert_text(await visitor.get("/approvals"), f"{text} asks", f"{text} title")
        assert_text(await visitor.get("/"), f"{text} asks")
        fields = {**answer_of(asks), "answer": "reject", "reason": f"{text} reason"}
        assert (await visitor.post(f"{session}/approval", fields)).status == 303
        decided = await visitor.get(f"{session}/approval")
        assert_text(decided, f"{text} asks", f"{text} reason", f"{text} owner")
        failed = {"code": "agent_error", "error": f"{text} error", "native_session": f"{text} native"}
        await worker.report(claim, "fail", **failed, retired_session=f"{text} native")
        for path in ("/work", f"/work/tasks/{task['id']}", session, f"{session}/pointers", "/"):
            assert_text(await visitor.get(path))
        (attempt,) = await inside.good("GET", f"/api{session}/attempts", token="all")
        assert_text(await visitor.get(f"{session}/attempts/{attempt['id']}"))
        assert_text(await visitor.get(f"{session}/turns/{attempt['turn']}"))
        assert_text(await visitor.get(f"/work?{urlencode({'status': text})}"))
        assert_text(await visitor.get(f"/usage?{urlencode({'range': text})}"))


async def test_text_of_an_approval_that_was_decided_is_shown(tmp_path: Path, text: str) -> None:
    async with open_inside(tmp_path, AGENT, shelly(tmp_path), safety="balanced") as inside:
        visitor = Visitor(inside)
        session = await asked(inside, text)
        path = f"/sessions/{session}/approval"
        fields = {**answer_of(await visitor.get(path)), "answer": "reject", "reason": f"{text} reason"}
        assert (await visitor.post(path, fields)).status == 303
        assert_text(await visitor.get(path), text, f"{text} reason")


async def test_titles_of_forks_are_shown(tmp_path: Path, text: str) -> None:
    async with open_inside(tmp_path) as inside:
        visitor = Visitor(inside)
        session = await inside.session(title=f"{text} title")
        turn = await inside.turn(session)
        await visitor.get("/")
        given = await visitor.post(f"/sessions/{session}/fork", {"turn": turn["id"]})
        fork = given.headers["location"]
        assert (await visitor.post(f"{fork}/rename", {"title": f"{text} fork"})).status == 303
        assert_text(await visitor.get(f"/sessions/{session}"), f"{text} title", f"{text} fork")
        assert_text(await visitor.get(fork), f"{text} fork")


async def test_a_link_to_the_login_becomes_no_markup(tmp_path: Path, text: str) -> None:
    tokens = {"all": ("a", ("session",), f"{text} user")}
    async with open_inside(tmp_path, tokens=tokens) as inside:
        visitor = Visitor(inside)
        for where in (text, f"/{text}", f"/sessions?q={text}"):
            page = await visitor.get(f"/login?{urlencode({'next': where})}")
            assert_text(page)
            given = await visitor.post("/login", {"token": text, "next": where})
            assert given.status == 401
            assert_text(given)
        for path in (f"/nothing/{urlencode({'': text})[1:]}", f"/sessions/{urlencode({'': text})[1:]}"):
            assert_text(await visitor.get(path))
        user = await Visitor(inside).login("all")
        assert_text(await user.get("/"), f"{text} user")
