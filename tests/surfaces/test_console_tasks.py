"""Tasks on the console: what a run reported, and what it changed."""

import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.model.ids import AttemptId, SessionId, TurnId
from lastgood.model.tasks import SnapshotSummary, TaskMessage
from lastgood.surfaces.console.task_views import activity_views, diff_view, patch_lines
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside
from tests.surfaces.test_console import Visitor, injected, inline, seen
from tests.surfaces.worker_calls import registered

pytestmark = pytest.mark.anyio

PATCH = """--- a/site.css
+++ b/site.css
@@ -1,3 +1,3 @@
 body {
--- a comment of Lua
+  color: <b>black</b>;
 }
--- a/gone.txt
+++ /dev/null
@@ -1 +0,0 @@
-gone
"""
SUMMARY = {
    "files": 1,
    "changes": [{"path": "site.css", "change": "modified"}, {"path": "gone.txt", "change": "deleted"}],
    "changes_total": 2,
    "left_out": [{"path": ".env", "reason": "may contain secrets"}],
    "left_out_total": 1,
    "patch": PATCH,
    "patch_cut": False,
}


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    async with open_inside(tmp_path) as opened:
        yield opened


async def ran(
    inside: InProcessServer, messages: list[dict[str, Any]], summary: Any = None, native_session: str = "n"
) -> str:
    """The path of a task whose run has reported these messages and left these changes."""
    worker = await registered(inside, None)
    new = {"agent": AGENT, "scope": {"kind": "issue", "id": "42"}, "prompt": "x", "runtime": worker.runtime}
    task = await inside.good("POST", "/api/tasks", new)
    claim = await worker.claim()
    await worker.report(claim, "start")
    await worker.report(claim, "messages", messages=messages)
    body = base64.b64encode(b"x").decode()
    await worker.report(claim, "snapshot", kind="tar", summary=summary or SUMMARY, body=body)
    await worker.report(claim, "complete", output="done", native_session=native_session, work_dir="/w")
    return f"/work/tasks/{task['id']}"


async def test_a_task_shows_its_files_and_its_patch_line_by_line(inside: InProcessServer) -> None:
    path = await ran(inside, [{"seq": 1, "type": "text", "content": "hello"}])
    visitor = Visitor(inside)
    page = await visitor.get(path)
    html, read = page.body.decode(), seen(page)
    assert '<span class="removed">--- a comment of Lua\n</span>' in html
    assert '<span class="added">+  color: &lt;b&gt;black&lt;/b&gt;;\n</span>' in html
    for said in ("site.css", "gone.txt", "deleted", "1 file not uploaded", ".env", "may contain secrets"):
        assert said in read, said
    assert '"patch_cut"' not in read
    diff = (await visitor.get(f"{path}.json")).json["diff"]
    assert (diff["patch"], diff["is_cut"], len(diff["changes"])) == (PATCH, False, 2)


async def test_a_task_shows_its_messages_by_type_and_a_call_with_its_result(inside: InProcessServer) -> None:
    messages = [
        {"seq": 1, "type": "thinking", "content": "think <b>first</b>"},
        {"seq": 2, "type": "text", "content": "I **will** <script>run</script> it"},
        {"seq": 3, "type": "tool_use", "tool": "Bash", "call": "c1", "input": {"command": "make <b>x</b>"}},
        {"seq": 4, "type": "tool_result", "tool": "Bash", "call": "c1", "output": "ok </pre><svg>"},
        {"seq": 5, "type": "error", "content": "the model was <i>slow</i>"},
        {"seq": 6, "type": "unheard", "content": "of"},
    ]
    path = await ran(inside, messages)
    visitor = Visitor(inside)
    page = await visitor.get(path)
    assert (inline(page), injected(page)) == ([], [])
    html = page.body.decode()
    assert "<b>will</b>" in html
    assert "make &lt;b&gt;x&lt;/b&gt;" in html
    assert "ok &lt;/pre&gt;&lt;svg&gt;" in html
    assert '"type": "tool_use"' not in seen(page)
    shown = (await visitor.get(f"{path}.json")).json["messages"]
    assert [(one["seq"], one["kind"]) for one in shown] == [
        (1, "thinking"),
        (2, "text"),
        (3, "tool"),
        (5, "error"),
        (6, "other"),
    ]
    assert shown[2]["call"]["result"] == "ok </pre><svg>"


async def test_a_task_with_many_messages_is_read_page_by_page(inside: InProcessServer) -> None:
    messages = [{"seq": number, "type": "text", "content": f"note {number}"} for number in range(1, 206)]
    path = await ran(inside, messages[:200])
    first = (await Visitor(inside).get(f"{path}.json")).json
    assert (len(first["messages"]), first["next_after"]) == (200, 200)
    assert (await Visitor(inside).get(f"{path}.json?after=199")).json["messages"][0]["text"] == "note 200"


@pytest.mark.parametrize(
    "summary",
    [
        {"changes": "all of them", "left_out": 3, "patch": None},
        {"changes": [None, 1, {"path": 5}, {"change": []}], "patch": ["x"], "changes_total": "many"},
        {"patch": "@@ -1,99999999999999999999 +1 @@\n+x"},
        {},
    ],
)
def test_a_snapshot_of_any_shape_is_shown(summary: dict[str, Any]) -> None:
    made = SnapshotSummary(
        AttemptId("att_1"), SessionId("ses_1"), TurnId("turn_1"), "tar", summary, size=0, created_at=0.0
    )
    shown = diff_view(made)
    assert all(isinstance(one["path"], str) for one in shown["changes"])
    assert "".join(line for _, line in patch_lines(shown["patch"])) == shown["patch"].replace("\n", "")


def test_a_message_of_any_shape_is_shown() -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"type": 5},
        {"type": "text", "content": None},
        {"type": "tool_use", "call": ["x"], "tool": {}},
        {"type": "tool_result"},
        {"type": "tool_use", "input": "not { json"},
    ]
    shown = activity_views([TaskMessage(number, body) for number, body in enumerate(bodies)])
    assert [one["kind"] for one in shown] == ["other", "other", "text", "tool", "tool", "tool"]


async def test_the_timeline_of_a_turn_on_a_runtime_has_a_bar_for_each_tool_call(
    inside: InProcessServer,
) -> None:
    calls = [
        {"seq": 1, "type": "text", "content": "I look"},
        {"seq": 2, "type": "tool_use", "tool": "Read", "call": "c1", "input": {"path": "a.css"}},
        {"seq": 3, "type": "tool_use", "tool": "Bash", "call": "c2", "input": {"command": "make"}},
        {"seq": 4, "type": "tool_result", "tool": "Read", "call": "c1", "output": "x"},
        {"seq": 5, "type": "tool_result", "tool": "Bash", "call": "c2", "output": "y"},
        {"seq": 6, "type": "tool_use", "tool": "Wait", "call": "c3"},
    ]
    path = await ran(inside, calls)
    visitor = Visitor(inside)
    session = (await visitor.get(f"{path}.json")).json["task"]["session"]
    (turn,) = (await visitor.get(f"/sessions/{session}.json")).json["turns"]
    page = f"/sessions/{session}/turns/{turn['id']}"
    lanes = (await visitor.get(f"{page}.json")).json["timeline"]["lanes"]
    shown = [(one["kind"], one["detail"], one["is_open"]) for one in lanes]
    assert shown[-6:-1] == [
        ("model", "calls Read", False),
        ("tool", "a.css", False),
        ("tool", "make", False),
        ("model", "calls Wait", False),
        ("tool", "", True),  # its result was never reported
    ]
    assert (await visitor.get(page)).status == 200


# -- what a reader wants to know first ---------------------------------------------------------


async def test_a_task_shows_its_prompt_its_runtime_and_how_long_it_took(inside: InProcessServer) -> None:
    path = await ran(inside, [{"seq": 1, "type": "text", "content": "hello"}])
    visitor = Visitor(inside)
    page, task = seen(await visitor.get(path)), (await visitor.get(f"{path}.json")).json["task"]
    assert (task["prompt"], task["runtime_name"], task["is_open"]) == ("x", "laptop", False)
    assert task["span"] is not None
    for said in ("Prompt", "Runtime", "laptop", "took", "Timeline"):
        assert said in page, said


async def test_an_ended_task_is_run_again_once_however_often_the_form_is_sent(
    inside: InProcessServer,
) -> None:
    path = await ran(inside, [])
    visitor = Visitor(inside)
    page = (await visitor.get(path)).body.decode()
    assert f'action="{path}/rerun"' in page
    sent = [await visitor.post(f"{path}/rerun", {"key": "the-same-key"}) for _ in range(2)]
    assert [one.status for one in sent] == [303, 303]
    assert sent[0].headers["location"] == sent[1].headers["location"] != path
    again = (await visitor.get(f"{sent[0].headers['location']}.json")).json["task"]
    assert (again["status"], again["prompt"]) == ("queued", "x")
    assert (
        f'action="{sent[0].headers["location"]}/rerun"'
        not in (await visitor.get(sent[0].headers["location"])).body.decode()
    )
    assert len(await inside.good("GET", "/api/tasks")) == 2


async def test_the_resume_explanation_names_runtimes_and_shortens_native_sessions(
    inside: InProcessServer,
) -> None:
    """`it belongs to runtime rt_…` tells nobody which machine that is."""
    native = "d14fcc7fad664bbe821e35b1af53c52e"
    await registered(inside, None, worker="w2", name="build-box")
    path = await ran(inside, [], native_session=native)
    visitor = Visitor(inside)
    session = (await visitor.get(f"{path}.json")).json["task"]["session"]
    page = re.sub("<[^>]+>", "", (await visitor.get(f"/sessions/{session}/pointers")).body.decode())
    assert "Would resume native session d14fcc7f: same runtime; last turn committed." in page
    assert page.count("it belongs to runtime laptop") == 1
    assert "rt_" not in page
    words = (await visitor.get(f"/sessions/{session}/pointers.json")).json["decisions"][0]["words"]
    assert native in words


async def test_a_chat_in_the_list_of_tasks_does_not_repeat_the_id_of_its_session(
    inside: InProcessServer,
) -> None:
    worker = await registered(inside, None)
    session = await inside.session()
    await inside.good("PATCH", f"/api/sessions/{session}/runtime", {"runtime_id": worker.runtime})
    body = {"messages": [{"content": "hello"}], "wait": False}
    await inside.good("POST", f"/api/sessions/{session}/turns", body)
    page = await Visitor(inside).get("/work")
    assert session not in seen(page)
    assert f'href="/sessions/{session}"' in page.body.decode()


async def test_a_turn_of_a_runtime_leads_to_its_task(inside: InProcessServer) -> None:
    """There is the activity of the run, and what it changed."""
    path = await ran(inside, [])
    visitor = Visitor(inside)
    session = (await visitor.get(f"{path}.json")).json["task"]["session"]
    page = (await visitor.get(f"/sessions/{session}")).body.decode()
    assert f'<a href="{path}" aria-label="Task of turn 1">Task</a>' in page
