"""Workers of other releases: what they sent is kept as data, and this server understands all of it.

Each recording is replayed as it is, with the required fields alone, and as the next release might send it.
"""

import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from lastgood.core.work_protocol import WORK_PROTOCOL
from lastgood.surfaces.work import schemas
from tests.surfaces.in_process_server import AGENT, InProcessServer, open_inside

pytestmark = pytest.mark.anyio

RELEASES = sorted((Path(__file__).parents[1] / "worker" / "releases").glob("*.json"))
IDS = re.compile(r"(rt|task|lgc|att|ses|turn)_\S+")
BODIES: dict[str, type[BaseModel]] = {
    "register": schemas.RegisterBody,
    "heartbeat": schemas.HeartbeatBody,
    "claim": schemas.ClaimBody,
    "deregister": schemas.DeregisterBody,
    "start": schemas.ReportBody,
    "session": schemas.PinBody,
    "messages": schemas.MessagesBody,
    "snapshot": schemas.SnapshotBody,
    "complete": schemas.CompleteBody,
    "fail": schemas.FailBody,
    "cancel-ack": schemas.ReportBody,
}


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[InProcessServer]:
    async with open_inside(tmp_path, safety="autonomous") as opened:
        yield opened


def as_recorded(name: str, body: Any) -> Any:
    return body


def required_alone(name: str, body: Any) -> Any:
    return _stripped(BODIES[name], body)


def _stripped(model: type[BaseModel], body: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for field, about in model.model_fields.items():
        if about.is_required():
            inner = [one for one in get_args(about.annotation) if isinstance(one, type)]
            models = [one for one in inner if issubclass(one, BaseModel)]
            found = body[field]
            kept[field] = [_stripped(models[0], one) for one in found] if models else found
    return kept


def of_next_release(name: str, body: Any) -> Any:
    body = _with_more(body)
    if name == "register":
        body["protocol"] = WORK_PROTOCOL + 1
        for runtime in body["runtimes"]:
            runtime["enforces"] = "reads"
    if name == "messages" and body["messages"]:
        last = body["messages"][-1]["seq"]
        body["messages"].append({"seq": last + 1, "type": "vision", "content": "a cat", "pixels": [1, 2]})
    return body


def _with_more(value: Any) -> Any:
    match value:
        case dict():
            more = {"of_the_next_release": {"list": [1, None], "text": "x"}}
            return {name: _with_more(one) for name, one in value.items()} | more
        case list():
            return [_with_more(one) for one in value]
        case _:
            return value


def calls_of(release: Path) -> list[dict[str, Any]]:
    return list(json.loads(release.read_text()))


class Replay:
    """Ids of the recording are replaced by those that this server gave."""

    def __init__(self, inside: InProcessServer, change: Callable[[str, Any], Any]) -> None:
        self.inside, self.change = inside, change
        self.ids: dict[str, str] = {}
        self.epoch = 0
        self.session = ""
        self.tasks: list[str] = []

    async def play(self, calls: list[dict[str, Any]]) -> None:
        for call in calls:
            name = call["path"].split("/")[-1]
            if name == "claim":
                await self.queue(call["answer"]["tasks"][0]["prompt"])
            if call["status"] == 409:
                await self.inside.good("POST", f"/api/tasks/{self.tasks[-1]}/cancel")
            body = self.live(self.change(name, call["body"]))
            if "epoch" in body:
                body["epoch"] = self.epoch
            given = await self.inside.ask("POST", self.live(call["path"]), body)
            assert given.status == call["status"], (name, given.body)
            self.learn(call["answer"], given.json)
            if name == "register":
                self.epoch = given.json["worker"]["epoch"]
                runtime = given.json["runtimes"][0]["id"]
                agent = AGENT.replace("/", "%2F")
                await self.inside.good("PUT", f"/api/agents/{agent}/runtime", {"runtime_id": runtime})
                self.session = await self.inside.session()

    async def queue(self, prompt: str) -> None:
        body = {"messages": [{"content": prompt}]}
        given = await self.inside.good("POST", f"/api/sessions/{self.session}/turns", body)
        self.tasks.append(given["task"])

    def live(self, value: Any) -> Any:
        match value:
            case str():
                return "/".join(self.ids.get(part, part) for part in value.split("/"))
            case dict():
                return {name: self.live(one) for name, one in value.items()}
            case list():
                return [self.live(one) for one in value]
            case _:
                return value

    def learn(self, recorded: Any, given: Any) -> None:
        match recorded, given:
            case dict(), dict():
                for name in recorded.keys() & given.keys():
                    self.learn(recorded[name], given[name])
            case list(), list():
                for one, other in zip(recorded, given, strict=False):
                    self.learn(one, other)
            case str(), str() if IDS.fullmatch(recorded):
                self.ids[recorded] = given
            case _:
                pass


@pytest.mark.parametrize("change", [as_recorded, required_alone, of_next_release])
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
async def test_I30_a_worker_of_another_release_does_its_work(
    inside: InProcessServer, release: Path, change: Callable[[str, Any], Any]
) -> None:
    replay = Replay(inside, change)
    await replay.play(calls_of(release))
    tasks = [await inside.good("GET", f"/api/tasks/{task}") for task in replay.tasks]
    assert [task["status"] for task in tasks] == ["completed", "completed", "failed", "cancelled"]
    shown = await inside.good("GET", f"/api/sessions/{replay.session}")
    said = [one["content"] for one in shown["messages"] if one["role"] == "assistant"]
    assert said == ["hello", "again"]


def test_every_call_of_a_worker_is_recorded() -> None:
    assert RELEASES
    for release in RELEASES:
        names = {call["path"].split("/")[-1] for call in calls_of(release)}
        assert names == set(BODIES)


async def test_a_newer_worker_waits_for_an_upgrade_of_the_server(
    inside: InProcessServer,
) -> None:
    body = {"worker_id": "w", "runtimes": [{"name": "n", "provider": "p"}], "protocol": WORK_PROTOCOL + 2}
    given = await inside.ask("POST", "/api/worker/register", body)
    assert (given.status, given.code) == (400, "invalid_request")
    assert "Upgrade the server" in given.json["message"]
