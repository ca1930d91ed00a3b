"""HTTP connections to remote MCP servers that reach nothing that `core/egress` refuses.

Each host is resolved here, all its addresses are judged, and only these are connected to: a name that changes
its address in between gains nothing. The SDK follows redirects within the server's own origin only. There are
no proxies and nothing from the environment. A reply is read up to a limit, and never compressed: a small body
could become a large one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpcore2
import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from lastgood.core.egress import AllowedUrl, Denial, Policy, judge_url, shown
from lastgood.engine.mcp.mcp_errors import ServerUnavailable
from lastgood.engine.mcp.reply_errors import OF_REPLY
from lastgood.outside.network import EgressError, Network, checked_addresses

CONNECT_SECONDS = 10.0
#: Of a body, or of one event of a stream, which may itself go on forever.
MAX_REPLY_BYTES = 16 * 1024 * 1024
#: Not 400, 404 and 405: a server of an older revision answers a newer one's first request with them.
_REFUSED = frozenset({401, 403, 500, 502, 503, 504})

OnRefused = Callable[[str], None]


class _Guarded(httpcore2.AsyncNetworkBackend):
    """Connects to the judged host and no other."""

    def __init__(self, asked: AllowedUrl, url: str, network: Network) -> None:
        self._asked, self._url, self._network = asked, url, network
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        if (host.lower().removesuffix("."), port) != (self._asked.host, self._asked.port):
            raise httpcore2.ConnectError(f"{host}:{port} is not the host of this MCP server")
        try:
            addresses = await checked_addresses(self._asked, self._url, self._network)
        except EgressError as error:
            raise httpcore2.ConnectError(str(error)) from None
        return await self._inner.connect_tcp(addresses[0], port, timeout, local_address, socket_options)

    async def connect_unix_socket(self, path: str, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("unix sockets are not supported for MCP servers")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """`transport`: `sse` for servers of the protocol's first revision, else streamable HTTP."""

    url: str
    transport: str
    headers: Mapping[str, str]
    seconds: float  # for an answer


class _GuardedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, asked: AllowedUrl, url: str, network: Network, on_refused: OnRefused) -> None:
        super().__init__(verify=network.tls or True, trust_env=False)
        # The pool is made by the class above, which has no parameter for how it connects.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=network.tls or httpx2.create_ssl_context(trust_env=False),
            network_backend=_Guarded(asked, url, network),
        )
        self._on_refused = on_refused

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The SDK does not report the status, and reads bodies without a limit."""
        response = await super().handle_async_request(request)
        if response.status_code in _REFUSED:
            self._on_refused(_refusal(response))
        coding = response.headers.get("content-encoding", "identity").lower()
        if coding != "identity":
            await response.aclose()
            reason = f"{OF_REPLY}is compressed ({coding[:40]}), which the request did not accept"
            self._on_refused(reason)
            raise httpx2.RemoteProtocolError(reason)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = _Bounded(response.stream)
        return response


class _Bounded(httpx2.AsyncByteStream):
    """Fails with an error that the SDK turns into a failed request."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_REPLY_BYTES:
                raise httpx2.StreamError(
                    f"{OF_REPLY}has more than {MAX_REPLY_BYTES:,} bytes, which is the limit"
                )
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _refusal(response: httpx2.Response) -> str:
    status = f"{response.status_code} {response.reason_phrase}".strip()
    has_oauth = "resource_metadata" in response.headers.get("www-authenticate", "")
    oauth = "; it offers OAuth, which is not supported yet" if has_oauth else ""
    if response.status_code in (401, 403):
        return f"it responded with {status}{oauth}; send a valid token in `remote.headers`"
    return f"it responded with {status}"


def remote_transport(
    server: RemoteServer, policy: Policy, network: Network, on_refused: OnRefused
) -> AbstractAsyncContextManager[TransportStreams]:
    url, headers, seconds = server.url, server.headers, server.seconds
    judged = judge_url(url, policy)
    if isinstance(judged, Denial):
        raise ServerUnavailable(f"{shown(url)} is blocked: {judged.reason}")

    def client(**more: Any) -> httpx2.AsyncClient:
        # What the SDK asks of a client for a server-sent stream: its own headers and time limits.
        given = {**headers, **(more.get("headers") or {}), "accept-encoding": "identity"}
        timeout = more.get("timeout") or httpx2.Timeout(CONNECT_SECONDS, read=seconds)
        transport = _GuardedTransport(judged, url, network, on_refused)
        return httpx2.AsyncClient(transport=transport, headers=given, timeout=timeout, trust_env=False)

    if server.transport == "sse":
        return sse_client(
            url,
            timeout=CONNECT_SECONDS,
            sse_read_timeout=seconds,
            httpx_client_factory=lambda headers=None, timeout=None, auth=None: client(
                headers=headers, timeout=timeout
            ),
        )
    return _streamable(url, client())


@asynccontextmanager
async def _streamable(url: str, client: httpx2.AsyncClient) -> AsyncGenerator[TransportStreams, None]:
    streams = streamable_http_client(url, http_client=client, max_sse_event_size=MAX_REPLY_BYTES)
    async with client, streams as opened:
        yield opened
