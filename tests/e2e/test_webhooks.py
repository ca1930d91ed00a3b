"""Webhooks on a real server, with a receiver that answers, fails, hangs and lies; across kill -9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.e2e.api import Api
from tests.e2e.command import Command, until
from tests.e2e.server import LiveServer
from tests.e2e.test_approvals import asked, resume, shell, write_agent
from tests.e2e.webhook_receiver import WebhookReceiver, answers, floods, hangs, redirects

pytestmark = pytest.mark.slow


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    with WebhookReceiver() as started:
        yield started


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path, write_agent(tmp_path), options=("--safety", "balanced")) as started:
        yield started


@pytest.fixture
def api(server: LiveServer) -> Api:
    return Api(server)


def add(api: Api, url: str, *kinds: str) -> dict[str, Any]:
    given = api.post("/api/webhooks", {"url": url, **({"kinds": list(kinds)} if kinds else {})})
    assert given.status == 201, given.body
    return dict(given.json)


def deliveries(api: Api, webhook: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    return list(api.get(f"/api/webhooks/{webhook['id']}/deliveries{query}"))


def commit(api: Api, session: str, text: str = "hello") -> None:
    assert api.turn(session, text).status in (200, 201)


def make_due(server: LiveServer) -> None:
    """As if the time until the next try, or that of a dead process's lease, had passed. Its next error shows
    that the next try is over."""
    connection = apsw.Connection(str(server.data_dir / "lastgood.db"))
    connection.set_busy_timeout(5000)
    connection.execute("UPDATE webhook_outbox SET due_at = 1, last_error = NULL WHERE due_at IS NOT NULL")
    connection.close()


def test_a_waiting_approval_and_the_commit_are_sent_signed(api: Api, receiver: WebhookReceiver) -> None:
    webhook = add(api, f"{receiver.url}/in?key=1")
    session = api.session("shelly")
    asked(api, session, shell("echo canary-argument"))
    until(lambda: len(receiver.got) == 1)
    assert resume(api, session, "approve") == 200
    until(lambda: len(receiver.got) == 2)
    waiting, committed = receiver.got
    assert (waiting.kind, committed.kind) == ("approval.waiting", "turn.committed")
    assert waiting.json["data"]["tool"] == "shell"
    assert waiting.json["data"]["session_id"] == session
    assert b"canary-argument" not in waiting.body + committed.body
    for got in receiver.got:
        assert got.path == "/in?key=1"
        assert got.is_signed_with(webhook["secret"])
        assert not got.is_signed_with("whsec_" + "A" * 44)
    assert committed.json["data"]["turn_id"] == api.get(f"/api/sessions/{session}")["head"]
    until(lambda: {one["state"] for one in deliveries(api, webhook)} == {"delivered"})
    assert len(receiver.got) == 2


def test_a_failed_turn_is_sent_with_its_error(api: Api, receiver: WebhookReceiver) -> None:
    add(api, receiver.url, "turn.failed")
    session = api.session("shelly")
    commit(api, session)
    api.turn(session, "!fail before")
    until(lambda: len(receiver.got) == 1)
    (got,) = receiver.got
    assert got.kind == "turn.failed"
    assert set(got.json["data"]["error"]) == {"code", "message"}


def test_a_message_is_tried_again_under_the_same_id(api: Api, receiver: WebhookReceiver) -> None:
    webhook = add(api, receiver.url)
    receiver.behave = answers(500)
    commit(api, api.session("shelly"))
    until(lambda: len(receiver.got) == 1)
    until(lambda: deliveries(api, webhook)[0]["last_error"] == "the receiver returned 500")
    receiver.behave = answers(200)
    until(lambda: deliveries(api, webhook)[0]["state"] == "delivered")
    first, second = receiver.got
    assert (first.id, first.body) == (second.id, second.body)
    assert second.is_signed_with(webhook["secret"])
    assert deliveries(api, webhook)[0]["tries"] == 2


def test_after_the_last_try_it_is_a_dead_letter(
    api: Api, receiver: WebhookReceiver, server: LiveServer
) -> None:
    webhook = add(api, receiver.url)
    receiver.behave = answers(503)
    commit(api, api.session("shelly"))
    for tries in range(1, 9):
        until(lambda tries=tries: deliveries(api, webhook)[0]["tries"] == tries)  # type: ignore[misc]
        until(lambda tries=tries: len(receiver.got) == tries)  # type: ignore[misc]
        until(lambda: deliveries(api, webhook)[0]["last_error"] is not None)
        make_due(server)
    until(lambda: bool(deliveries(api, webhook, "?state=dead")))
    (dead,) = deliveries(api, webhook, "?state=dead")
    assert (dead["tries"], dead["last_error"]) == (8, "the receiver returned 503")
    assert len({got.id for got in receiver.got}) == 1


def test_410_disables_a_webhook(api: Api, receiver: WebhookReceiver) -> None:
    webhook = add(api, receiver.url)
    receiver.behave = answers(410)
    session = api.session("shelly")
    commit(api, session)
    until(lambda: bool(deliveries(api, webhook, "?state=dead")))
    commit(api, session)
    assert api.get("/api/webhooks")[0]["disabled_at"] is not None
    assert len(deliveries(api, webhook)) == 1


def test_I39_a_redirect_is_not_followed(api: Api, receiver: WebhookReceiver) -> None:
    webhook = add(api, receiver.url)
    receiver.behave = redirects
    commit(api, api.session("shelly"))
    until(lambda: deliveries(api, webhook)[0]["last_error"] is not None)
    assert "redirects are not followed" in deliveries(api, webhook)[0]["last_error"]
    assert {got.path for got in receiver.got} == {"/"}


def test_I40_a_body_without_end_is_not_read(api: Api, receiver: WebhookReceiver) -> None:
    webhook = add(api, receiver.url)
    receiver.behave = floods
    commit(api, api.session("shelly"))
    until(lambda: deliveries(api, webhook)[0]["state"] == "delivered")
    assert receiver.cut.wait(10), "the connection stayed open"


def test_a_hanging_receiver_delays_no_other(api: Api, receiver: WebhookReceiver) -> None:
    with WebhookReceiver(hangs) as hanging:
        slow, quick = add(api, hanging.url), add(api, receiver.url)
        session = api.session("shelly")
        for number in range(6):
            commit(api, session, f"hello {number}")
        until(lambda: len(receiver.got) == 6)
        until(lambda: len(hanging.got) == 4)
        assert {one["state"] for one in deliveries(api, slow)} == {"pending"}
        until(lambda: {one["state"] for one in deliveries(api, quick)} == {"delivered"})
        until(lambda: any(one["last_error"] for one in deliveries(api, slow)))
        errors = {one["last_error"] for one in deliveries(api, slow)} - {None}
        assert errors == {f"{hanging.url} timed out after 10 s"}


def test_a_message_survives_kill_9_between_commit_and_delivery(
    server: LiveServer, api: Api, receiver: WebhookReceiver
) -> None:
    webhook = add(api, receiver.url)
    receiver.behave = hangs
    commit(api, api.session("shelly"))
    server.kill()
    receiver.closing.set()
    receiver.behave = answers(200)
    make_due(server)
    server.start()
    until(lambda: deliveries(api, webhook)[0]["state"] == "delivered")
    assert len({got.id for got in receiver.got}) == 1, "duplicates carry the same id"
    assert deliveries(api, webhook)[0]["id"] == receiver.got[-1].id


def test_I41_a_secret_is_shown_once(api: Api, receiver: WebhookReceiver, server: LiveServer) -> None:
    webhook = add(api, receiver.url)
    secret = webhook.pop("secret")
    assert secret.startswith("whsec_")
    assert api.get("/api/webhooks") == [webhook]
    commit(api, api.session("shelly"))
    until(lambda: len(receiver.got) == 1)
    removed = api.ask("DELETE", f"/api/webhooks/{webhook['id']}")
    assert (removed.status, removed.json) == (200, webhook)
    assert api.get("/api/webhooks") == []
    records = api.get("/api/audit")
    assert [record["kind"] for record in records] == ["webhook_added", "webhook_removed"]
    assert secret not in str(records) + server.stderr.read_text()


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://10.0.0.1/",
        "ftp://localhost/",
        "https://169.254.169.254/",
        "https://[::ffff:10.0.0.1]/",
        "x",
    ],
)
def test_I39_a_url_that_may_not_be_requested_is_refused(api: Api, url: str) -> None:
    given = api.post("/api/webhooks", {"url": url})
    assert given.refusal == (400, "invalid_request")
    assert "`url` is not allowed" in given.json["message"]


def test_I39_a_host_that_leads_inward_is_not_requested(api: Api) -> None:
    """Some resolvers read a number as an address; the address is judged when it is known."""
    webhook = add(api, "https://0x0a000001/")
    assert api.post(f"/api/webhooks/{webhook['id']}/test", None).status == 202
    until(lambda: deliveries(api, webhook)[0]["last_error"] is not None)
    error = deliveries(api, webhook)[0]["last_error"]
    assert "is blocked" in error or "unknown host" in error


def test_unknown_kinds_states_and_webhooks_are_refused(api: Api) -> None:
    given = api.post("/api/webhooks", {"url": "https://example.com", "kinds": ["turn.begun"]})
    assert given.refusal == (400, "invalid_request")
    assert "turn.committed" in given.json["message"]
    assert api.post("/api/webhooks", {"url": "https://example.com", "kinds": []}).status == 400
    assert api.post("/api/webhooks", {"url": "https://example.com", "kind": ["x"]}).status == 400
    for method, path in (("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries")):
        assert api.ask(method, f"/api/webhooks/wh_unknown{path}").status == 404
    webhook = add(api, "https://example.com")
    assert api.ask("GET", f"/api/webhooks/{webhook['id']}/deliveries?state=lost").status == 400


def test_the_commands_work_beside_a_running_server(
    server: LiveServer, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    command = Command(tmp_path)
    added = command("webhooks", "add", receiver.url, "--kind", "task.ended")
    assert added.code == 0, added.err
    secret = added.out.strip()
    assert secret.startswith("whsec_")
    (listed,) = command("webhooks", "list", "--json").json
    assert (listed["url"], listed["kinds"]) == (receiver.url, ["task.ended"])
    tested = command("webhooks", "test", listed["id"])
    assert (tested.code, tested.out[:9]) == (0, "delivered"), tested
    (got,) = receiver.got
    assert got.kind == "webhook.test"
    assert got.is_signed_with(secret)
    receiver.behave = answers(500)
    failed = command("webhooks", "test", listed["id"])
    assert (failed.code, failed.out) == (1, "failed: the receiver returned 500\n")
    lines = command("webhooks", "deliveries", listed["id"]).out.splitlines()
    assert [line.split()[3] for line in lines] == ["pending", "delivered"]
    assert command("webhooks", "add", "http://example.com").code == 2
    assert command("webhooks", "remove", listed["id"]).code == 0
    assert command("webhooks", "remove", listed["id"]).code == 1
    assert command("webhooks", "list").out == "no webhooks\n"
    assert secret not in server.stderr.read_text()
