"""A connection that loses answers: the server has sent them, and the client never sees them."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import Self


class LossyProxy:
    """Passes everything on, but cuts the first connection once the server's answer has `marker` in it."""

    def __init__(self, port: int, marker: bytes) -> None:
        self._port = port
        self._marker = marker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self.lost = 0

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"

    def _accept(self) -> None:
        while not self._closed.is_set():
            readable, _, _ = select.select([self._listener], [], [], 0.02)
            if readable:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._carry, args=(client, len(self._threads) == 1))
                self._threads.append(thread)
                thread.start()

    def _carry(self, client: socket.socket, is_first: bool) -> None:
        received = b""
        # A client that has read [DONE] closes with the stream's last bytes unread, which is a reset.
        with (
            suppress(ConnectionError),
            client,
            socket.create_connection(("127.0.0.1", self._port)) as server,
        ):
            while not self._closed.is_set():
                readable, _, _ = select.select([client, server], [], [], 0.02)
                for one in readable:
                    data = one.recv(65536)
                    if not data:
                        return
                    if one is client:
                        server.sendall(data)
                    elif not is_first:
                        client.sendall(data)
                    else:
                        received += data
                if is_first and self._marker in received:
                    self.lost += 1
                    return
