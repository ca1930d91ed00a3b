"""Outgoing HTTP requests that reach nothing that `core/egress` rejects.

    fetched = await fetch(url, limit_bytes=1_000_000, timeout_seconds=10.0)
    fetched.status, fetched.headers["content-type"], fetched.body, fetched.url, fetched.truncated
    status = await post(url, body, headers=signed, timeout_seconds=10.0)

Any status is returned to the caller. Everything else raises an EgressError whose text is one line, contains
no key and may be shown to a model or a person:

    EgressError
    ├── EgressRefused    the guard says no: the scheme, the host or an address
    ├── EgressTimedOut
    └── EgressFailed     unknown host, no connection, an invalid response

Each host is resolved once, all its addresses are judged, and only these are connected to, so a
name that changes its address in between gains nothing. Redirects are followed by hand and judged
again. There are no cookies, no proxies and nothing from the environment. The limit counts bytes
after decompression. One connection per request: nothing is kept open.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urljoin

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from lastgood.core.egress import (
    AllowedUrl,
    Denial,
    Policy,
    is_plain,
    judge_address,
    judge_redirect,
    judge_url,
    shown,
)

_MOST_REDIRECTS = 10
_CONNECT_SECONDS = 5.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
#: Headers that are sent to another origin after a redirect.
_HARMLESS = frozenset({"accept", "accept-language", "if-modified-since", "if-none-match", "user-agent"})
_CHUNK_BYTES = 65536

_Read = TypeVar("_Read")


class EgressError(Exception):
    """The request failed."""


class EgressRefused(EgressError):
    """The request is not allowed, and was not sent."""


class EgressTimedOut(EgressError):
    """It took too long."""


class EgressFailed(EgressError):
    """No response, or an invalid one."""


@dataclass(frozen=True, slots=True)
class Fetched:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes  # decompressed
    url: str  # where the answer came from, after redirects
    truncated: bool = False  # there was more than the limit


async def ask_system(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, as this machine's resolver knows them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True)
class Network:
    """How names become addresses and addresses connections; what a test replaces.

    `wires` leads a judged address elsewhere, so that a public host can be played by this machine.
    """

    resolve: Callable[[str, int], Awaitable[Sequence[str]]] = ask_system
    wires: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None


SYSTEM = Network()
STRANGERS_ONLY = Policy(loopback=False)


async def fetch(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    limit_bytes: int,
    timeout_seconds: float,
    policy: Policy = STRANGERS_ONLY,
    network: Network = SYSTEM,
) -> Fetched:
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _follow(url, headers or {}, limit_bytes, policy, network)
    except TimeoutError:
        raise EgressTimedOut(f"{shown(url)} timed out after {timeout_seconds:g} s") from None
    except EgressError as error:
        if str(error).lower().startswith(shown(url).lower()):
            raise
        raise type(error)(f"{shown(url)} redirects: {error}") from None


async def post(
    url: str,
    body: bytes,
    *,
    headers: Mapping[str, str],
    timeout_seconds: float,
    policy: Policy = STRANGERS_ONLY,
    network: Network = SYSTEM,
) -> int:
    """Returns the status of the response, whose body is not read. A redirect is an error: it would send the
    body and its signature to another host."""
    target, asked = _judged(url, lambda one: judge_url(one, policy))
    try:
        async with asyncio.timeout(timeout_seconds):
            answer = await _ask_once(target, asked, headers, network, _status, body)
    except TimeoutError:
        raise EgressTimedOut(f"{shown(url)} timed out after {timeout_seconds:g} s") from None
    if isinstance(answer, str):
        raise EgressFailed(f"{shown(url)} redirects, and redirects are not followed; use the final URL")
    return answer


async def request(
    method: str,
    url: str,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str],
    limit_bytes: int,
    timeout_seconds: float,
    policy: Policy = STRANGERS_ONLY,
    network: Network = SYSTEM,
) -> Fetched:
    """A request of any method. A redirect is an error: it would send a body, or a key, to another host."""
    target, asked = _judged(url, lambda one: judge_url(one, policy))
    read = partial(_fetched, str(target), limit_bytes)
    try:
        async with asyncio.timeout(timeout_seconds):
            answer = await _ask_once(target, asked, headers, network, read, body, method)
    except TimeoutError:
        raise EgressTimedOut(f"{shown(url)} timed out after {timeout_seconds:g} s") from None
    if isinstance(answer, str):
        raise EgressFailed(f"{shown(url)} redirects, and redirects are not followed; use the final URL")
    return answer


async def _status(answer: aiohttp.ClientResponse) -> int:
    return answer.status


async def _fetched(url: str, limit: int, answer: aiohttp.ClientResponse) -> Fetched:
    body, truncated = await _read(answer, limit)
    found = {name.lower(): value for name, value in answer.headers.items()}
    return Fetched(answer.status, found, body, url, truncated)


async def _follow(
    url: str, headers: Mapping[str, str], limit: int, policy: Policy, network: Network
) -> Fetched:
    target, asked = _judged(url, lambda one: judge_url(one, policy))
    for _ in range(_MOST_REDIRECTS + 1):
        answer = await _ask_once(target, asked, headers, network, partial(_fetched, str(target), limit))
        if isinstance(answer, Fetched):
            return answer
        before, onward = asked, _joined(target, answer)
        target, asked = _judged(onward, partial(judge_redirect, before, policy=policy))
        if asked.origin != before.origin:
            headers = {name: value for name, value in headers.items() if name.lower() in _HARMLESS}
    raise EgressRefused(f"{shown(url)} redirects more than {_MOST_REDIRECTS} times")


def _joined(target: URL, location: str) -> str:
    """Joining mends what is refused in a URL; then it comes back as it is, to be judged so."""
    try:
        return urljoin(str(target), location) if is_plain(location) else location
    except ValueError:
        return location


def _judged(url: str, judge: Callable[[str], AllowedUrl | Denial]) -> tuple[URL, AllowedUrl]:
    """The URL as aiohttp reads it. Two readers must mean the same host, or the wrong one was judged."""
    _checked(judge(url), url)
    try:
        target = URL(url).with_fragment(None)
        host, port = (target.raw_host or "").removesuffix("."), target.port
        asked = _checked(judge(str(target)), url)
    except ValueError:
        raise EgressRefused(f"{shown(url)} is blocked: not a valid URL") from None
    if (host, port) != (asked.host, asked.port):
        raise EgressRefused(f"{shown(url)} is blocked: its host is ambiguous")
    return target, asked


def _checked(judged: AllowedUrl | Denial, url: str) -> AllowedUrl:
    if isinstance(judged, Denial):
        raise EgressRefused(f"{shown(url)} is blocked: {judged.reason}")
    return judged


async def _ask_once(
    target: URL,
    asked: AllowedUrl,
    headers: Mapping[str, str],
    network: Network,
    read: Callable[[aiohttp.ClientResponse], Awaitable[_Read]],
    body: bytes | None = None,
    method: str | None = None,
) -> _Read | str:
    """What `read` makes of the answer, or where it leads to. `method`: without one, POST if it has a body."""
    url = str(target)
    addresses = await checked_addresses(asked, url, network)
    connector = aiohttp.TCPConnector(
        resolver=_Pinned(addresses),
        socket_factory=_only(addresses),
        use_dns_cache=False,
        force_close=True,
        ssl=network.tls or True,
    )
    async with aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,  # by hand, or a small body becomes a large one before it is counted
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
        headers={"User-Agent": "lastgood", "Accept-Encoding": "identity"},
    ) as session:
        try:
            method = method or ("GET" if body is None else "POST")
            async with session.request(
                method, target, headers=dict(headers), data=body, allow_redirects=False
            ) as answer:
                if answer.status in _REDIRECTS and "Location" in answer.headers:
                    return answer.headers["Location"]
                return await read(answer)
        except EgressError as error:
            raise type(error)(f"{shown(url)}: {error}") from None
        except TimeoutError:
            raise EgressTimedOut(f"connecting to {shown(url)} timed out") from None
        except (aiohttp.ClientError, OSError, ValueError, zlib.error) as error:
            raise EgressFailed(f"{shown(url)}: {_plainly(error)}") from None


async def checked_addresses(asked: AllowedUrl, url: str, network: Network) -> Sequence[str]:
    """Returns the addresses to connect to for this URL. EgressRefused: one of them is not allowed."""
    try:
        found: Sequence[str] = [str(ip_address(asked.host))]
    except ValueError:
        try:
            found = await network.resolve(asked.host, asked.port)
        except (OSError, UnicodeError):
            raise EgressFailed(f"{shown(url)}: unknown host {asked.host}") from None
    if not found:
        raise EgressFailed(f"{shown(url)}: the host {asked.host} has no address")
    for address in found:
        judged = judge_address(address, asked)
        if isinstance(judged, Denial):
            raise EgressRefused(f"{shown(url)} is blocked: {judged.reason}")
    return [network.wires.get(address, address) for address in found]


class _Pinned(AbstractResolver):
    """Knows the addresses that were judged, and no others."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        pass


def _only(addresses: Sequence[str]) -> Callable[[Any], socket.socket]:
    """Makes sockets for judged addresses alone: aiohttp asks no resolver about a host of digits."""

    def make(info: Any) -> socket.socket:
        family, kind, protocol, _, target = info
        if target[0] not in addresses:
            raise EgressRefused(f"{target[0]} was not checked")
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    return make


async def _read(answer: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """As much as the limit allows, and whether there was more."""
    encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", "deflate", ""):
        raise EgressFailed(f"unsupported content encoding {encoding!r:.40}")
    inflate = None if encoding in ("identity", "") else zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    body = bytearray()
    async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
        if inflate is not None:
            # One byte above the limit shows that there was more, and no compression bomb expands any further.
            chunk = inflate.decompress(chunk, limit + 1 - len(body))
        body += chunk
        if len(body) > limit:
            return bytes(body[:limit]), True
    if inflate is not None and not inflate.eof:
        raise EgressFailed("the response is incomplete")
    return bytes(body), False


def _plainly(error: Exception) -> str:
    """What happened, in words that cannot hold a header or a query."""
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return "TLS handshake failed, or its certificate is not trusted"
        case aiohttp.ClientConnectorError():
            return f"cannot connect ({error.os_error.strerror or 'no connection'})"
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return "the connection closed before the response was complete"
        case aiohttp.ClientResponseError():
            return "the response is not valid HTTP"
        case _:
            return f"the connection failed ({type(error).__name__})"
