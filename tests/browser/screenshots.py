"""Makes the screenshots of the documentation: `python -m tests.browser.screenshots` writes docs/images/*.png.

A real server with real sessions. Their model is a small HTTP server in this process, which answers what a
model would: the pictures show a conversation, and no directives of the scripted model.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import yaml
from playwright.sync_api import ViewportSize, sync_playwright

from tests.browser.conftest import FLAGS
from tests.browser.install import chromium
from tests.e2e.api import Api, said
from tests.e2e.server import LiveServer

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
#: A model that answers at once has no bar on the timeline.
THINKS_SECONDS = 0.4
PRICES = {"input": 0.25, "output": 2.0}


@dataclass(frozen=True)
class Says:
    """One response: words, tool calls, or an HTTP error."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()
    status: int = 200


_DATES = "tests/data/dates.json"
_FIX = f"sed -i 's/03.11.2026/2026-11-03/' {_DATES}"
#: What the model says to a message, one response after the other.
SCRIPT: dict[str, list[Says]] = {
    "Why did the nightly build fail?": [
        Says(calls=[("shell", {"cmd": "grep -n ERROR logs/nightly.log"})]),
        Says(
            "The build failed in `test_parser.py`: a fixture still expects the old date format.\n\n"
            "Commit 4f2c1e changed the parser to ISO 8601 last night, and the fixture was not updated."
        ),
    ],
    "Fix the fixture, please.": [
        Says(calls=[("shell", {"cmd": f"{_FIX}; grep -c 2026 {_DATES}"})]),
        *[Says(status=503)] * 3,  # the model is tried three times
        Says("Done: `tests/data/dates.json` has ISO dates now. The 41 tests of the parser pass."),
    ],
    "Deploy build 1184 to staging.": [
        Says(calls=[("shell", {"cmd": "rsync -a --delete build/ deploy@staging.example.com:/srv/app/"})]),
        Says("Staging runs build 1184."),
    ],
    "Run the whole suite again.": [
        Says(calls=[("shell", {"cmd": "grep -c passed logs/suite.log"})]),
        *[Says(status=503)] * 20,
    ],
    "What is our refund policy for annual plans?": [
        Says("Annual plans can be cancelled within 30 days for a full refund, and pro rata afterwards."),
    ],
    "Draft the release notes for 2.4": [
        Says("## 2.4\n\n- Sessions open four times faster\n- Exports include attachments\n- Fixed: dates"),
    ],
    "Summarise yesterday's incidents": [Says(status=503)] * 20,
    "Translate the landing page to German": [Says("Fertig: 14 Absätze, 2 Fragen zu Produktnamen.")],
}


@dataclass
class _Model:
    """Counts, for each message, how often it was answered."""

    answered: dict[str, int] = field(default_factory=dict)

    def next(self, body: dict[str, Any]) -> Says:
        asked = next(one["content"] for one in reversed(body["messages"]) if one["role"] == "user")
        place = self.answered.get(asked, 0)
        self.answered[asked] = place + 1
        script = SCRIPT.get(asked, [Says("Yes.")])
        return script[min(place, len(script) - 1)]


@contextmanager
def model_server() -> Iterator[str]:
    model = _Model()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            says = model.next(body)
            time.sleep(THINKS_SECONDS)  # real time: the picture shows how long it took
            self.send_response(says.status)
            kind = "text/event-stream" if says.status == 200 else "application/json"
            self.send_header("content-type", kind)
            self.end_headers()
            if says.status != 200:
                self.wfile.write(b'{"error": {"message": "The model is overloaded"}}')
                return
            for chunk in chunks(says, len(json.dumps(body)) // 4):
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()


def chunks(says: Says, prompt_tokens: int) -> Iterator[dict[str, Any]]:
    calls = [
        {
            "index": place,
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for place, (name, arguments) in enumerate(says.calls)
    ]
    delta = {"role": "assistant", **({"tool_calls": calls} if calls else {"content": says.text})}
    end = "tool_calls" if calls else "stop"
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-5.4-mini"}
    yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    used = {"prompt_tokens": prompt_tokens, "completion_tokens": 20 + len(says.text) // 4}
    yield head | {"choices": [{"index": 0, "delta": {}, "finish_reason": end}], "usage": used}


def write_agents(folder: Path, address: str) -> list[str]:
    model = {
        "provider": "openai",
        "model": "gpt-5.4-mini",
        "base_url": address,
        "cost": PRICES,
        "provider_opts": {"context_size": 8192},
    }
    described = {
        "builder": ("Finds out why builds fail, and repairs them", ["shell"]),
        "support": ("Answers customers from our handbook", []),
        "writer": ("Writes release notes and translations", ["memory"]),
    }
    for key, (description, toolsets) in described.items():
        agent = {
            "model": "mini",
            "description": description,
            "toolsets": [{"type": one} for one in toolsets],
        }
        rules = {"allow": ["shell:cmd=grep*", "shell:cmd=sed*"]}
        file = {"agents": {"root": agent}, "models": {"mini": model}, "permissions": rules}
        (folder / f"{key}.yaml").write_text(yaml.safe_dump(file))
    return [str(folder / f"{key}.yaml") for key in described]


def fill(api: Api, folder: str) -> tuple[str, str]:
    """Sessions as a team has them. Returns one with failed turns, and one that waits for a person."""
    for agent, text, user in (
        ("writer", "Draft the release notes for 2.4", "dana"),
        ("support", "What is our refund policy for annual plans?", "web"),
        ("writer", "Translate the landing page to German", "dana"),
        ("support", "Summarise yesterday's incidents", "omar"),
    ):
        turn(api, api.session(agent, title=text), text, user)
    received = api.session("builder", title="Nightly build fails", working_dir=folder)
    turn(api, received, "Why did the nightly build fail?", "mira")
    turn(api, received, "Fix the fixture, please.", "mira")
    failed = api.get(f"/api/sessions/{received}/attempts")[-1]
    assert failed["status"] == "failed", failed
    api.post(f"/api/sessions/{received}/attempts/{failed['id']}/continue")
    api.until_idle(received)
    turn(api, received, "Run the whole suite again.", "mira")
    waiting = api.session("builder", title="Deploy build 1184", working_dir=folder)
    api.begun(waiting, "Deploy build 1184 to staging.", user="mira")
    laptop = {"name": "laptop-1", "provider": "claude", "cli_version": "2.1.4"}
    body = {"worker_id": "miras-laptop", "instance": "one", "version": "1", "runtimes": [laptop]}
    made = api.post("/api/worker/register", body).json
    task = {"agent": "support", "scope": {"kind": "issue", "id": "web-142"}, "prompt": "Fix the header"}
    api.post("/api/tasks", {**task, "runtime": made["runtimes"][0]["id"]})
    return received, waiting


def turn(api: Api, session: str, text: str, user: str) -> None:
    body = {"messages": said(text), "wait": True, "user": user}
    api.ask("POST", f"/api/sessions/{session}/turns", body)


def main(images: Path = IMAGES) -> None:
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lastgood-") as made, model_server() as address:
        folder = Path(made)
        work = folder / "website"
        logs = work / "logs"
        logs.mkdir(parents=True)
        (logs / "nightly.log").write_text("ERROR test_parser.py::test_dates - '03.11.2026'\n")
        (logs / "suite.log").write_text("test_parser.py::test_dates passed\n" * 41)
        dates = work / "tests" / "data" / "dates.json"
        dates.parent.mkdir(parents=True)
        dates.write_text('["03.11.2026"]\n')
        options = ("--safety", "balanced")
        with LiveServer(folder, *write_agents(folder, address), options=options) as server:
            api = Api(server)
            session, waiting = fill(api, str(work))
            retried = api.get(f"/api/sessions/{session}/turns")[-1]["id"]
            take(server.url, session, retried, waiting, images)


def take(url: str, session: str, turn: str, waiting: str, images: Path) -> None:
    short = ViewportSize(width=1280, height=560)
    desk, phone = ViewportSize(width=1280, height=860), ViewportSize(width=390, height=780)
    pictures: list[tuple[str, str, ViewportSize, Literal["light", "dark"]]] = [
        ("home", "/", desk, "light"),
        ("session", f"/sessions/{session}", desk, "light"),
        ("timeline", f"/sessions/{session}/turns/{turn}", short, "light"),
        ("approval-phone", f"/sessions/{waiting}/approval", phone, "dark"),
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        for name, path, size, scheme in pictures:
            context = browser.new_context(viewport=size, color_scheme=scheme)
            page = context.new_page()
            page.goto(url + path)
            page.evaluate("scrollTo(0, 0)")
            page.locator(".question button:disabled").first.wait_for(state="detached")
            page.screenshot(path=images / f"{name}.png")
            context.close()
        browser.close()


if __name__ == "__main__":
    main()
