"""HTTP transport of the client: calls that are retried where that is safe, and frames of a stream.

Knows no sessions and no events. The caller says whether a call may be repeated.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import ssl
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import orjson
import yarl

from lastgood import __version__
from lastgood.client.proxies import proxy_of, tls_context
from lastgood.client.retry_policy import may_go_again, pause_seconds
from lastgood.errors import (
    InvalidRequest,
    LastgoodError,
    ModelError,
    ResponseLost,
    ResponseUnreadable,
    ServerUnreachable,
    TooManyRequests,
    TurnFailed,
    error_of,
)

_CONNECT_SECONDS = 10.0
#: A server sends a heartbeat every 15 seconds; a stream without one is dead.
_SILENT_SECONDS = 45.0
#: Shorter than the server's keep-alive, so that no request is sent on a connection that it is closing.
_KEPT_SECONDS = 3.0
_VISIBLE = re.compile(r"[\x21-\x7e]*")
_GATEWAYS = (502, 504)


@dataclass(frozen=True, slots=True)
class ApiCall:
    method: str
    path: str  # escaped
    body: Any = None
    headers: Mapping[str, str] | None = None
    repeatable: bool = True  # idempotent
    accepted: bool = False  # about a turn that the server has accepted before


@dataclass(frozen=True, slots=True)
class ApiResponse:
    plain: Any
    headers: Mapping[str, str]
    was_lost: bool  # the response to an earlier try did not arrive


@dataclass(frozen=True, slots=True)
class Frame:
    """`seq` is the number of the event, if it has one; `plain` is None for a heartbeat."""

    seq: int | None
    plain: Any


class Transport:
    """`uses_proxy`: through the proxy that the environment names. `ca_file`: more certificates to trust."""

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout: float,
        *,
        uses_proxy: bool = False,
        ca_file: Path | None = None,
    ) -> None:
        self._url, self._socket = _place(url)
        self._proxy = proxy_of(self._url) if uses_proxy and self._socket is None else None
        self._ca_file = ca_file
        self._shown = url
        self._headers = {"user-agent": f"lastgood/{__version__}", "accept-encoding": "identity"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {visible(token, 'the token')}"
        self._timeout = timeout
        self._http: aiohttp.ClientSession | None = None
        self._was_there = False

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    def patience(self) -> RetryBudget:
        return RetryBudget(self._timeout)

    # -- calls ---------------------------------------------------------------------------

    async def call(self, call: ApiCall) -> ApiResponse:
        patience, was_lost = self.patience(), False
        while True:
            try:
                async with asyncio.timeout(patience.left):
                    plain, headers = await self._try(call)
                return ApiResponse(plain, headers, was_lost)
            except TimeoutError:
                raise ResponseLost(
                    f"no response from {self._shown} within {self._timeout:g} s; the request may have been "
                    "processed, so check before you send it again"
                ) from None
            except LastgoodError as error:
                if not self.may_go_again(error, call):
                    raise
                was_lost = was_lost or isinstance(error, ResponseLost)
                await patience.pause(error)

    async def call_once(self, call: ApiCall, seconds: float) -> Any:
        """Returns the body of the response. For callers with a retry policy of their own."""
        try:
            async with asyncio.timeout(seconds):
                plain, _ = await self._try(call)
                return plain
        except TimeoutError:
            raise ResponseLost(f"no response from {self._shown} within {seconds:g} s") from None

    def may_go_again(self, error: LastgoodError, call: ApiCall | None = None) -> bool:
        """Without a call: may a stream be read again?"""
        if not self._was_there and type(error) is ServerUnreachable:
            return False  # it never responded: probably a wrong URL, so waiting would not help
        if call is None:
            return may_go_again(error, repeatable=True)
        return may_go_again(error, repeatable=call.repeatable, accepted=call.accepted)

    async def _try(self, call: ApiCall) -> tuple[Any, Mapping[str, str]]:
        data = None if call.body is None else _as_json(call.body)
        headers = {"content-type": "application/json"} if data is not None else {}
        try:
            async with self._session().request(
                call.method,
                self._address(call.path),
                data=data,
                headers={**headers, **(call.headers or {})},
                allow_redirects=False,
            ) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from error
        self._was_there = True
        if answer.status >= 300:
            raise self._refusal(answer.status, answer.headers, body)
        return self._json(body), answer.headers

    # -- streams -------------------------------------------------------------------------

    async def frames(self, path: str, query: Mapping[str, Any]) -> AsyncGenerator[Frame, None]:
        """Yields frames until the connection ends. Drops a frame that is cut in the middle."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)
        address = self._address(with_query(path, query))
        try:
            async with self._session().get(address, timeout=timeout, allow_redirects=False) as answer:
                self._was_there = True
                if answer.status != 200:
                    raise self._refusal(answer.status, answer.headers, await answer.read())
                rest = b""
                async for piece in answer.content.iter_any():
                    *whole, rest = (rest + piece).split(b"\n\n")
                    for block in whole:
                        yield self._frame(block)
        except (aiohttp.ClientError, OSError) as error:  # also a missing heartbeat
            raise self._broken(error) from error

    async def pieces(self, path: str) -> AsyncGenerator[bytes, None]:
        """Streams the body of a response. Raises an error if the connection is lost before its end."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)
        try:
            async with self._session().get(
                self._address(path), timeout=timeout, allow_redirects=False
            ) as answer:
                self._was_there = True
                if answer.status != 200:
                    raise self._refusal(answer.status, answer.headers, await answer.read())
                async for piece in answer.content.iter_any():
                    yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken(error) from error

    def _frame(self, block: bytes) -> Frame:
        seq, data = None, b""
        for line in block.split(b"\n"):
            name, _, value = line.partition(b": ")
            if name == b"id":
                seq = int(value)
            elif name == b"data":
                data += value
        if not data:
            return Frame(None, None)
        plain = self._json(data)
        if seq is None and plain.get("type") == "error":
            # The last frame of a stream that the server aborts is an error without a number.
            error = _error_of(str(plain.get("kind") or plain.get("code")), str(plain.get("error")), 0)
            error.detail = {"request_id": plain.get("request_id")}
            raise error
        return Frame(seq, plain)

    # -- errors ----------------------------------------------------------------------------

    def _broken(self, error: Exception) -> LastgoodError:
        if isinstance(error, aiohttp.InvalidURL):
            return InvalidRequest(f"invalid server URL {self._shown}; use http://HOST:PORT")
        if isinstance(error, ssl.SSLError | aiohttp.ClientSSLError):
            return InvalidRequest(self._tls_failure(error))
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return ServerUnreachable(
                f"the proxy refused to connect to {self._shown}: {error.status} {error.message}; check the "
                "user name and password in the variable HTTPS_PROXY"
            )
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            return ServerUnreachable(
                f"cannot connect to the proxy for {self._shown}; check the variables HTTP_PROXY and "
                "HTTPS_PROXY"
            )
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            number = error.errno if isinstance(error, aiohttp.ClientConnectorError) else errno.ETIMEDOUT
            why = os.strerror(number) if number is not None and number > 0 else "no such host"
            return ServerUnreachable(
                f"cannot connect to {self._shown}: {why}; start the server with `lastgood serve`, or correct "
                "the URL"
            )
        return ResponseLost(
            f"the connection to {self._shown} was lost before the response; the request may have been "
            "processed, so check before you send it again"
        )

    def _tls_failure(self, error: Exception) -> str:
        if "WRONG_VERSION_NUMBER" in str(error) or "record layer failure" in str(error):
            return f"{self._shown} does not speak TLS; use http:// instead of https://"
        return f"TLS certificate verification failed for {self._shown}: {error}"

    def _refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> LastgoodError:
        if status in _GATEWAYS:
            return ResponseLost(
                f"a proxy in front of {self._shown} returned {status}; send the request again"
            )
        try:
            fields = orjson.loads(body)["error"]
            detail = fields.get("detail", {})
            error = _error_of(_code_of(fields["code"], detail), fields["message"], status)
            error.detail = {**detail, "request_id": fields["request_id"]}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return ResponseUnreadable(
                f"{self._shown} is not a Lastgood server (HTTP status {status}); check the URL"
            )
        error.retryable = headers.get("x-should-retry") == "true"
        after = headers.get("retry-after", "")
        if isinstance(error, TooManyRequests) and after.isdecimal():
            error.retry_after = float(after)
        return error

    def _json(self, body: bytes) -> Any:
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError:
            raise ResponseUnreadable(
                f"{self._shown} is not a Lastgood server (its response is not JSON); check the URL"
            ) from None

    # -- connection ------------------------------------------------------------------------

    def _address(self, path: str) -> yarl.URL:
        return yarl.URL(f"{self._url}{path}", encoded=True)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector: aiohttp.BaseConnector
            if self._socket is not None:
                connector = aiohttp.UnixConnector(self._socket, keepalive_timeout=_KEPT_SECONDS)
            else:
                tls = tls_context(self._ca_file) if self._url.startswith("https:") else True
                connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_SECONDS, ssl=tls)
            self._http = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                headers=self._headers,
                proxy=self._proxy.url if self._proxy else None,
                proxy_auth=self._proxy.auth if self._proxy else None,
            )
        return self._http


class RetryBudget:
    """How long a server may stay unreachable. Restarts whenever the server responds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self.renew()

    def renew(self) -> None:
        self._ends = self._loop.time() + self._seconds
        self._tries = 0

    @property
    def left(self) -> float:
        return self._ends - self._loop.time()

    async def pause(self, error: LastgoodError) -> None:
        """Waits before the next try. Raises the error instead if the budget does not suffice."""
        self._tries += 1
        seconds = pause_seconds(
            self._tries, error.retry_after if isinstance(error, TooManyRequests) else None
        )
        # Jitter: many clients lose a server at the same moment.
        seconds *= 1 + random.random() / 4
        if seconds > self.left:
            raise error
        await asyncio.sleep(seconds)


def visible(text: str, what: str) -> str:
    """Returns text that can be sent as a header value, or raises InvalidRequest."""
    if not text or not _VISIBLE.fullmatch(text):
        raise InvalidRequest(f"{what} must consist of visible ASCII characters")
    return text


def escaped(text: str) -> str:
    """Escapes text as a segment of a URL path."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise InvalidRequest("a name or an id contains invalid Unicode (a lone surrogate)") from None


def with_query(path: str, query: Mapping[str, Any]) -> str:
    """Leaves out parameters that are None."""
    given = [f"{name}={escaped(str(value))}" for name, value in query.items() if value is not None]
    return f"{path}?{'&'.join(given)}" if given else path


def _as_json(body: Any) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError as error:
        raise InvalidRequest(f"the request cannot be encoded as JSON: {error}") from None


def _place(url: str) -> tuple[str, str | None]:
    """Returns the base URL, and the path of the unix socket if there is one."""
    socket = url.removeprefix("unix://")
    if socket != url:
        if not socket.startswith("/"):
            raise InvalidRequest(f"invalid socket URL {url!r}; use unix:///PATH")
        return "http://localhost", socket
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        raise InvalidRequest(f"invalid server URL {url!r}; use http://HOST:PORT or unix:///PATH")
    if parts.username is not None:
        raise InvalidRequest(
            "the server URL must not contain a user name or a password; pass the token separately"
        )
    return url.rstrip("/"), None


def _code_of(code: str, detail: Mapping[str, Any]) -> str:
    return str(detail.get("kind", code)) if code == ModelError.code else code


def _error_of(code: str, message: str, status: int) -> LastgoodError:
    if code == TooManyRequests.code and status == 429:
        return TooManyRequests(message)  # a provider's limit has the same code, but occurs only in events
    error = error_of(code, message)
    if type(error) is TurnFailed and code != TurnFailed.code:
        error = LastgoodError(message)
        error.code = code
    return error
