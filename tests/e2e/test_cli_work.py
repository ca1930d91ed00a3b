"""Tasks and runtimes on the command line and in the client: on a server, and in its database afterwards."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastgood.client import AsyncClient, Client
from lastgood.client.events import TurnFailedEvent
from lastgood.errors import NotFound, RuntimeNotFound, TaskNotFound
from tests.e2e.command import Command, Done, finish
from tests.e2e.hand_worker import HandWorker
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow

FILE = "agents:\n  root:\n    description: Codes\n    harness: {type: command}\n"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("agents") / "coder.yaml"
    file.write_text(FILE)
    return file


@pytest.fixture
def server(tmp_path: Path, agent: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "server", str(agent)) as server:
        yield server


class Place:
    """The same commands, on the server or, after its end, in its database."""

    def __init__(self, folder: Path, server: LiveServer, agent: Path) -> None:
        self.server = server
        self.agent = agent
        self.is_local = False
        self.command = Command(folder / "here")
        self._local = Command(folder)
        self._local.env["LASTGOOD_DATA_DIR"] = str(server.data_dir)

    def go_local(self) -> None:
        self.server.stop()
        self.is_local = True

    def __call__(self, *args: str) -> Done:
        if self.is_local:
            return self._local(*args)
        return self.command(*args, "--server", self.server.url)

    def good(self, *args: str) -> str:
        done = self(*args)
        assert done.code == 0, done.err
        return done.out

    def json(self, *args: str) -> Any:
        return json.loads(self.good(*args, "--json"))

    def add(self, prompt: str, *options: str) -> dict[str, Any]:
        name = str(self.agent) if self.is_local else "coder"
        made: dict[str, Any] = self.json("tasks", "add", name, prompt, *options)
        return made


@pytest.fixture
def place(tmp_path: Path, server: LiveServer, agent: Path) -> Place:
    return Place(tmp_path, server, agent)


def test_without_runtimes_and_tasks_the_lists_say_so(place: Place) -> None:
    assert place.good("runtimes", "list").startswith("no runtimes")
    assert place.good("tasks", "list") == "no tasks\n"
    place.go_local()
    assert place.good("runtimes", "list").startswith("no runtimes")
    assert place.json("tasks", "list") == []


def test_a_task_is_added_shown_and_explained_with_what_it_resumed(place: Place) -> None:
    worker = HandWorker(place.server.url)
    (runtime,) = worker.runtimes.values()
    first = place.add("one", "--issue", "42")
    assert (first["status"], first["runtime_id"]) == ("queued", runtime)
    assert first["why"] == "waits for runtime laptop-1-command to claim it"
    assert first["why"] in place.good("tasks", "list")
    worker.complete("done one", "native-1")
    place.add("two", "--issue", "42", "--note", "be quick")
    claim = worker.complete("done two", "native-1")
    assert claim["resume"]["native_session"] == "native-1"
    shown = place.good("tasks", "show", claim["task"]["id"])
    assert "agent coder, issue 42" in shown
    assert f"runtime laptop-1-command ({runtime}), worker laptop-1" in shown
    assert "resumed native session native-1: same runtime; last turn committed" in shown
    assert "requested: note: be quick" in shown
    listed = place.json("tasks", "list", "--session", first["session_id"], "--status", "completed")
    assert [one["id"] for one in listed] == [claim["task"]["id"], first["id"]]
    place.go_local()
    assert place.good("tasks", "show", claim["task"]["id"]) == shown
    assert place.json("tasks", "list", "--status", "completed") == listed


def test_explain_says_what_another_runtime_would_do_and_why(place: Place) -> None:
    worker = HandWorker(place.server.url, "laptop-1", "command", "other")
    place.add("one", "--chat", "c1", "--runtime", "laptop-1-command")
    claim = worker.complete("done", "native-1")
    session = claim["task"]["session_id"]
    here = place.good("runtimes", "explain", session)
    assert "would resume native session native-1: same runtime; last turn committed" in here
    there = place.good("runtimes", "explain", session, "--if-moved-to", "laptop-1-other")
    assert "would start a new native session with the transcript of the committed turns" in there
    assert "not resumed: native session native-1 of runtime laptop-1-command" in there
    assert "2 messages in the transcript" in there
    plain = place.json("runtimes", "explain", session, "--if-moved-to", "laptop-1-other")
    assert plain["decision"]["decision"] == "replay"
    place.go_local()
    local = ("runtimes", "explain", session, "--agent-file", str(place.agent))
    assert place.good(*local) == here
    assert place.good(*local, "--if-moved-to", "laptop-1-other") == there


def test_cancel_holds_the_rest_until_it_is_continued(place: Place) -> None:
    worker = HandWorker(place.server.url)
    one, two = (place.add(text, "--chat", "c1") for text in ("one", "two"))
    claim = worker.claim()
    assert claim["task"]["id"] == one["id"]
    assert place.json("tasks", "cancel", one["id"])["status"] == "cancelled"
    held = place.json("tasks", "show", two["id"])["task"]
    assert held["held"]
    assert "continue or drop it" in held["why"]
    assert not place.json("tasks", "continue", two["id"])["held"]
    assert worker.complete("done", "n1")["task"]["id"] == two["id"]
    again = place("tasks", "cancel", two["id"])
    assert "too late: the task is completed" in again.err


def test_rerun_uses_the_exact_task(place: Place) -> None:
    worker = HandWorker(place.server.url)
    first = place.add("one", "--issue", "1")
    worker.complete("done", "n1")
    place.add("two", "--issue", "1", "--fresh")
    worker.complete("done", "n2")
    again = place.json("tasks", "rerun", first["id"])
    assert again["directive"] == {"fresh": False, "rerun_of": first["id"], "note": ""}
    claim = worker.complete("done", "n1")
    assert (claim["prompt"], claim["resume"]["native_session"]) == ("one", "n1")
    fresh = place.json("tasks", "rerun", first["id"], "--fresh", "--key", "k")
    assert place.json("tasks", "rerun", first["id"], "--fresh", "--key", "k")["id"] == fresh["id"]
    assert worker.complete("done", "n3")["resume"]["decision"] == "fresh"


def test_the_commands_that_change_work_in_the_database_of_a_stopped_server(place: Place) -> None:
    worker = HandWorker(place.server.url, "laptop-1", "command", "other")
    place.add("one", "--issue", "1", "--runtime", "laptop-1-command")
    claim = worker.complete("done", "n1")
    place.go_local()
    task = place.add("two", "--issue", "1", "--runtime", "laptop-1-command", "--priority", "3")
    assert task["priority"] == 3
    assert place.json("tasks", "cancel", task["id"])["status"] == "cancelled"
    again = place.json("tasks", "rerun", claim["task"]["id"])
    assert place.json("tasks", "continue", again["id"])["status"] == "queued"
    assert place.json("runtimes", "bind", "coder", "laptop-1-other", "--queued", "move")["moved"] == 1
    session = claim["task"]["session_id"]
    assert place.json("sessions", "runtime", session, "laptop-1-command")["moved"] == 0
    assert "follows its agent" in place.good("sessions", "runtime", session, "--none")
    assert place.json("runtimes", "share", "laptop-1-other", "bob")["shared_with"] == ["bob"]
    assert "removed" in place.good("runtimes", "remove", "laptop-1-other")
    assert "bound to no runtime" in place.good("runtimes", "bind", "coder", "--none")


def test_runtimes_are_bound_shared_and_removed(place: Place) -> None:
    worker = HandWorker(place.server.url, "laptop-1", "command", "other")
    bound = place.json(
        "runtimes",
        "bind",
        "coder",
        "laptop-1-other",
        "--offline",
        "fail",
        "--max-running",
        "2",
        "--on-agent-change",
        "replay",
        "--on-dirty",
        "replay",
    )
    assert (bound["runtime_id"], bound["offline"]) == (worker.runtimes["laptop-1-other"], "fail")
    assert place.add("one", "--issue", "1")["runtime_id"] == worker.runtimes["laptop-1-other"]
    assert "bound to no runtime" in place.good("runtimes", "bind", "coder", "--none")
    assert "shared with alice, bob" in place.good("runtimes", "share", "laptop-1-other", "alice", "bob")
    assert place.json("runtimes", "remove", "laptop-1-other") == {
        "removed": worker.runtimes["laptop-1-other"]
    }
    assert [one["name"] for one in place.json("runtimes", "list")] == ["laptop-1-command"]


def test_diff_shows_what_was_changed_and_what_was_left_out(place: Place) -> None:
    worker = HandWorker(place.server.url)
    task = place.add("one", "--issue", "1")
    assert "uploaded no changes" in place.good("tasks", "diff", task["id"])
    claim = worker.claim()
    summary = {
        "changes": [{"path": "a.py", "change": "modified"}],
        "changes_total": 2,
        "left_out": [{"path": ".env", "reason": "may contain secrets"}],
        "left_out_total": 1,
        "patch": "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-old\n+new\n",
        "patch_cut": False,
    }
    body = base64.b64encode(b"tar").decode()
    worker.report(claim, "snapshot", kind="tar+gzip", summary=summary, body=body)
    worker.report(claim, "complete", output="done")
    shown = place.good("tasks", "diff", task["id"])
    assert shown.splitlines()[0] == "modified  a.py"
    for line in ("+new", "  .env: may contain secrets", "more was changed than is shown here"):
        assert line in shown.splitlines()
    place.go_local()
    assert place.good("tasks", "diff", task["id"]) == shown


def test_activity_of_a_run_is_shown(place: Place) -> None:
    worker = HandWorker(place.server.url)
    task = place.add("one", "--issue", "1")
    claim = worker.claim()
    messages = [
        {"seq": 1, "type": "text", "content": "Looking\nat it"},
        {"seq": 2, "type": "tool_use", "tool": "shell", "input": {"cmd": "ls"}},
    ]
    worker.report(claim, "messages", messages=messages)
    shown = place.good("tasks", "show", task["id"], "--activity")
    assert "   1  text: Looking at it" in shown
    assert "   2  tool_use: shell {'cmd': 'ls'}" in shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("tasks", "add", "coder", "x"), "--issue ID or --chat ID is required"),
        (("tasks", "add", "coder", "x", "--issue", "1", "--chat", "2"), "--issue ID or --chat ID"),
        (("tasks", "list", "--status", "lost"), "--status"),
        (("tasks", "list", "--limit", "0"), "from 1 to 200"),
        (("runtimes", "bind", "coder"), "name a runtime, or use --none"),
        (("runtimes", "list", "--user", "x"), "--user and --server cannot be combined"),
        (("sessions", "runtime", "s", "r", "--none"), "name a runtime, or use --none"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(place: Place, args: tuple[str, ...], words: str) -> None:
    done = place(*args)
    assert (done.code, done.err.count("\n"), words in done.err) == (2, 1, True), done.err


def test_a_missing_path_is_an_error_with_a_reason(place: Place) -> None:
    HandWorker(place.server.url)
    for args, words in (
        (("tasks", "show", "task_x"), "Task not found"),
        (("runtimes", "bind", "coder", "nowhere"), "No runtime 'nowhere'"),
        (("tasks", "list", "--runtime", "nowhere"), "No runtime 'nowhere'"),
    ):
        done = place(*args)
        assert (done.code, words in done.err) == (1, True), done.err


# -- the client ------------------------------------------------------------------------------


def test_the_client_queues_reads_and_ends_tasks(server: LiveServer) -> None:
    worker = HandWorker(server.url)
    with Client(server.url) as client:
        task = client.add_task("coder", "one", scope=("issue", "7"), key="k")
        assert client.add_task("coder", "one", scope=("issue", "7"), key="k").is_known
        assert client.task(task.id).why
        assert not task.is_known
        assert [one.id for one in client.tasks(agent="coder")] == [task.id]
        claim = worker.complete("done", "n1", "/w")
        assert client.task(task.id).is_over
        assert client.task_messages(task.id) == ()
        assert client.task_diff(task.id) is None
        found = client.pointers(("issue", "7"), "coder")
        (pointer,) = found.pointers
        assert (pointer.native_session, pointer.work_dir, pointer.outcome) == ("n1", "/w", "committed")
        assert [one["decision"] for one in found.decisions] == ["native"]
        assert client.retire(("issue", "7"), "coder", "n1", runtime=pointer.runtime) == 1
        explained = client.explain(claim["task"]["session_id"])
        assert explained.decision["decision"] == "replay"
        with pytest.raises(TaskNotFound):
            client.task("task_nothing")


def test_the_client_answers_questions(server: LiveServer) -> None:
    worker = HandWorker(server.url)
    with Client(server.url) as client:
        task = client.add_task("coder", "one", scope=("chat", "c"))
        claim = worker.claim()
        worker.report(claim, "start")
        worker.report(claim, "ask", question={"id": "q1", "tool": "shell", "input": {"cmd": "rm"}})
        (question,) = client.questions(task.id)
        assert (question.id, question.status, question.body["tool"]) == ("q1", "pending", "shell")
        assert client.task(task.id).status == "waiting"
        answered = client.answer_question(task.id, "q1", allowed=False, reason="no")
        assert answered.answer == {"allowed": False, "reason": "no"}
        assert client.questions(task.id) == ()


def test_the_client_binds_agents_and_sessions(server: LiveServer) -> None:
    worker = HandWorker(server.url, "laptop-1", "command", "other")
    with Client(server.url) as client:
        assert client.binding("coder") is None
        bound = client.bind_agent("coder", worker.runtimes["laptop-1-other"], published=True)
        assert client.binding("coder") == bound
        assert bound.is_published
        assert (bound.on_agent_change, bound.on_dirty) == ("disclose", "disclose")
        strict = client.bind_agent("coder", bound.runtime, on_agent_change="fresh", on_dirty="replay")
        assert (strict.on_agent_change, strict.on_dirty, strict.is_published) == ("fresh", "replay", True)
        client.unbind_agent("coder")
        assert client.binding("coder") is None
        session = client.create("coder")
        assert client.set_runtime(session.id, worker.runtimes["laptop-1-other"]) == 0
        assert client.explain(session.id).runtime.name == "laptop-1-other"
        with pytest.raises(RuntimeNotFound):
            client.set_runtime(session.id, "rt_nothing")
        client.remove_runtime(worker.runtimes["laptop-1-other"])
        assert [one.name for one in client.runtimes()] == ["laptop-1-command"]


@pytest.mark.anyio
async def test_the_async_client_makes_tokens_and_one_time_codes(tmp_path: Path, agent: Path) -> None:
    command = Command(tmp_path)
    admin = command("tokens", "create", "--scope", "admin", "--user", "root").out.strip()
    with LiveServer(
        tmp_path / "server", str(agent), env={"LASTGOOD_DATA_DIR": str(command.data_dir)}
    ) as server:
        async with AsyncClient(server.url, admin) as client:
            code = await client.enroll(worker="laptop-9", seconds=60)
            assert code.worker == "laptop-9"
            made = await client.create_token("of alice", ["session", "read"], user="alice", seconds=3600)
            assert made.secret
            assert made.user == "alice"
            listed = await client.tokens()
            assert {one.name for one in listed} >= {"of alice"}
            assert {one.secret for one in listed} == {None}
            revoked = await client.revoke_token(made.id)
            assert revoked.revoked_at is not None
            with pytest.raises(NotFound):
                await client.revoke_token("tok_nothing")
            worker = await client.create_token("w", ["worker"], user="root", worker="laptop-9")
        HandWorker(server.url, "laptop-9", token=worker.secret)
        command.env["LASTGOOD_TOKEN"] = admin
        assert "laptop-9-command" in command("runtimes", "list", "--server", server.url).out


# -- turns of an agent on a runtime ----------------------------------------------------------


def test_run_waits_for_the_worker_and_prints_its_output(place: Place) -> None:
    worker = HandWorker(place.server.url)
    process = place.command.start("run", "coder", "Fix it", "--server", place.server.url)
    claim = worker.claim()
    worker.report(claim, "start")
    worker.report(claim, "complete", output="It is fixed", native_session="n1")
    done = finish(process)
    assert (done.code, done.out) == (0, "It is fixed\n"), done.err


def test_the_client_follows_a_task_through_its_claims_to_the_commit(server: LiveServer) -> None:
    worker = HandWorker(server.url)
    with Client(server.url) as client:
        session = client.create("coder").id
        accepted = client.submit(session, "Fix it")
        assert (accepted.attempt, accepted.task) == (None, client.task_page().tasks[0].id)
        first = worker.claim()
        worker.report(first, "fail", code="not_started", error="it did not start", tool_calls=0)
        second = worker.claim()
        worker.report(second, "complete", output="It is fixed", native_session="n1")
        found = [type(event).__name__ for event in client.follow(accepted)]
    assert found[-2:] == ["TurnCommittedEvent", "StreamStoppedEvent"]


def test_a_task_that_is_cancelled_before_any_claim_ends_the_stream(server: LiveServer) -> None:
    HandWorker(server.url)
    with Client(server.url) as client:
        session = client.create("coder").id
        accepted = client.submit(session, "Fix it")
        assert client.cancel(session) is None
        end = [event for event in client.follow(accepted) if isinstance(event, TurnFailedEvent)]
        assert [one.status for one in end] == ["cancelled"]


def test_enroll_prints_a_code_that_makes_a_worker(place: Place) -> None:
    made = place.json("tokens", "enroll", "--worker", "desk-1", "--expires", "5m")
    assert made["worker_id"] == "desk-1"
    local = Command(place.server.folder)("tokens", "enroll")
    assert (local.code, "--server is missing" in local.err) == (2, True)
    enrolled = place.command(
        "worker",
        "enroll",
        made["code"],
        "--server",
        place.server.url,
        "--root",
        str(place.server.folder / "w"),
    )
    assert (enrolled.code, "enrolled as desk-1" in enrolled.out) == (0, True), enrolled.err
