"""The configurations for nginx and Caddy, run: streams are not buffered, and the log names the client."""

import json
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import SECONDS, until
from tests.e2e.server import LiveServer
from tests.forkserver import DEVNULL

PACKAGING = Path(__file__).parent.parent.parent / "packaging"
#: The address that a client of the proxy has. All of 127.0.0.0/8 is this machine.
CLIENT = "127.0.0.77"
HOST = "agents.example.org"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def nginx(folder: Path, port: int, server: int) -> list[str]:
    """Without TLS, and with everything that nginx writes in the folder of the test."""
    ours = (PACKAGING / "nginx.conf").read_text()
    ours = re.sub(r"^ +ssl_certificate.*\n", "", ours, flags=re.MULTILINE)
    ours = ours.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    ours = ours.replace("127.0.0.1:8080", f"127.0.0.1:{server}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "\n".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off;\nworker_processes 1;\npid {folder / 'pid'};\nerror_log {folder / 'error.log'};\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{paths}\n{ours}\n}}\n"
    )
    return [_program("nginx"), "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]


def caddy(folder: Path, port: int, server: int) -> list[str]:
    ours = (PACKAGING / "Caddyfile").read_text()
    ours = ours.replace(f"{HOST} {{", f"http://{HOST}:{port} {{").replace(":8080", f":{server}")
    config = folder / "Caddyfile"
    config.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + ours)
    return [_program("caddy"), "run", "--config", str(config), "--adapter", "caddyfile"]


def _program(name: str) -> str:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin")
    return found or pytest.skip(f"{name} is not installed")


def request(port: int, path: str, body: object = None) -> urllib.request.Request:
    headers = {"Host": HOST, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)


def status(port: int, path: str) -> int | None:
    try:
        with urllib.request.urlopen(request(port, path), timeout=SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@contextmanager
def proxied(words: list[str], folder: Path, port: int) -> Iterator[None]:
    home = {"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin:/bin"}
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(words, env=home, stdin=DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or status(port, "/ready") == 200)
        assert process.poll() is None, (folder / "proxy.log").read_text()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(SECONDS)


@pytest.mark.parametrize("configure", [nginx, caddy], ids=["nginx", "caddy"])
def test_streams_pass_the_proxy_unbuffered_and_the_log_has_the_client(
    tmp_path: Path, configure: Callable[[Path, int, int], list[str]]
) -> None:
    port = free_port()
    options = ("--trusted-proxy", "127.0.0.1", "--public-url", f"https://{HOST}")
    with (
        LiveServer(tmp_path, options=options) as server,
        proxied(configure(tmp_path, port, server.port), tmp_path, port),
    ):
        assert status(port, "/v1/models") == 200
        assert status(port, "/metrics") == 404
        said = "!slow 0.3\n" + "word " * 10
        body = {"model": "builtin/scripted", "stream": True, "messages": [{"role": "user", "content": said}]}
        with socket.create_connection(("127.0.0.1", port), SECONDS, (CLIENT, 0)) as client:
            client.settimeout(SECONDS)
            data = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            client.sendall(head.encode() + data)
            arrived: list[float] = []
            got = b""
            while piece := client.recv(65536):
                got += piece
                arrived += [time.monotonic()] * piece.count(b'"content":"')
        assert b"data: [DONE]" in got
        # Buffered, all words would arrive at once.
        assert arrived[-1] - arrived[0] > 1.0
        until(lambda: bool(logged(server)))
        assert [(line["status"], line["peer"]) for line in logged(server)] == [(200, CLIENT)]


def logged(server: LiveServer) -> list[dict[str, Any]]:
    lines = server.stderr.read_text().splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [one for one in found if one.get("route") == "/v1/chat/completions"]
