"""The network between a worker and its server, which a test can cut and mend."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import Self


class NetworkLink:
    """While it is cut, connections end, and new ones are closed at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._closed = threading.Event()
        self._cut = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        self._cut.set()

    def valid_text(self) -> None:
        self._cut.clear()

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            readable, _, _ = select.select([self._listener], [], [], 0.02)
            if readable:
                client, _ = self._listener.accept()
                if self._cut.is_set():
                    client.close()
                else:
                    self._spawn(self._carry, client)

    def _carry(self, client: socket.socket) -> None:
        with (
            suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self._port)) as server,
        ):
            while not self._closed.is_set() and not self._cut.is_set():
                readable, _, _ = select.select([client, server], [], [], 0.02)
                for one in readable:
                    data = one.recv(65536)
                    if not data:
                        return
                    (server if one is client else client).sendall(data)
