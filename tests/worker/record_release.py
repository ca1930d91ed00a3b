"""Records what a worker of this release says to a server of this release, and what it is told.

    python -m tests.worker.record_release      writes tests/worker/releases/VERSION.json

Run it once for every release and keep the file: later servers must understand these requests, and later
workers these responses.
"""

from __future__ import annotations

import json
import platform
import re
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from lastgood import __version__
from tests.e2e.command import until
from tests.e2e.task_server import TaskServer
from tests.worker.live_worker import LiveWorker

FOLDER = Path(__file__).with_name("releases")


class Recorder:
    """Passes every call on, and remembers it with its answer."""

    def __init__(self, url: str) -> None:
        self.calls: list[dict[str, Any]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["content-length"]))
                sent = Request(url + self.path, data, {"content-type": "application/json"}, method="POST")
                try:
                    with urlopen(sent, timeout=60) as answer:
                        status, body = answer.status, answer.read()
                except HTTPError as refused:
                    with refused:
                        status, body = refused.code, refused.read()
                about = {"path": self.path, "body": json.loads(data), "answer": json.loads(body)}
                recorder.calls.append(about | {"status": status})
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def names(self) -> list[str]:
        return [call["path"].split("/")[-1] for call in self.calls]


def record(folder: Path) -> list[dict[str, Any]]:
    task_server = TaskServer(folder)
    with task_server.server:
        recorder = Recorder(task_server.server.url)
        with LiveWorker(folder / "worker", recorder.url) as worker:
            task_server.bind()
            session = task_server.session()
            task_server.turn(session, "say:hello tool:edit write:a.txt=1")
            task_server.turn(session, "say:again")
            task_server.until_task(task_server.begin(session, "fail:unenforceable"), "failed")
            task = task_server.begin(session, f"say:one tick:{folder / 'never'}")
            until(lambda: recorder.names().count("messages") >= 3)
            task_server.call("POST", f"/api/tasks/{task}/cancel")
            until(lambda: "cancel-ack" in recorder.names())
            worker.stop()
    return [one for one in recorder.calls if one["path"].split("/")[-1] != "claim" or one["answer"]["tasks"]]


def without_secrets(text: str) -> str:
    """Tokens get readable names: nobody shall wonder whether they are good for something."""
    tokens = dict.fromkeys(re.findall(r"lg[ct]_[A-Za-z0-9_-]{43}", text))
    for number, token in enumerate(tokens, 1):
        text = text.replace(token, f"{token[:4]}recorded-{number}")
    return text


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        found = json.dumps(record(Path(made)), indent=1).replace(made, "/home/ann/lastgood")
    found = without_secrets(found).replace(f'"{platform.node()}"', '"laptop"')
    (FOLDER / f"{__version__}.json").write_text(found + "\n")
