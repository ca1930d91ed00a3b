"""A native client of OpenAI's chat completions, and of its Responses API: one request, one stream, one
response.

Sends one request; `fallback_chain` decides about retries. A response is complete or an error: a stream that
ends early raises, even if the connection was closed cleanly. Limits apply to bytes as they are read, so no
server can fill the memory. Keys go into one header only and are removed from all error texts.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from lastgood import __version__
from lastgood.engine.providers import chat_request, responses_request
from lastgood.engine.providers.chat_limits import ChatLimits
from lastgood.engine.providers.chat_stream_parser import ChatStreamParser
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.engine.providers.provider_aliases import (
    Dialect,
    alias_of,
    base_of,
    chat_url,
    expand,
    key_names,
    key_of,
)
from lastgood.engine.providers.provider_errors import refusal, what_to_check, words_of
from lastgood.engine.providers.response_stream_parser import ResponseStreamParser
from lastgood.errors import KeyRefused, ModelError, ModelUnreachable
from lastgood.model.agents import ModelSpec
from lastgood.outside.secrets import Secrets

_ERROR_BYTES = 64 * 1024
#: OpenRouter's list of models has about 1 MB.
_FACTS_BYTES = 3 * 1024 * 1024
_FACTS_SECONDS = 10.0
#: aiohttp writes a body up to this size at once, and warns about larger ones.
_AT_ONCE_BYTES = 512 * 1024
#: How long the end of a stream may take after its last word. Longer, and its connection is not used again.
_GOODBYE_SECONDS = 0.25


class ChatCompletions:
    def __init__(self, secrets: Secrets, limits: ChatLimits | None = None) -> None:
        self._secrets = secrets
        self._limits = limits or ChatLimits()
        self._session: aiohttp.ClientSession | None = None

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        model = call.model
        url, headers = chat_url(model, self._secrets), self._headers(model)
        alias, encode = alias_of(model), chat_request.body_of
        parser: type[ChatStreamParser] = ChatStreamParser
        if alias is not None and alias.dialect is Dialect.RESPONSES:
            encode, parser = responses_request.body_of, ResponseStreamParser
        body = await encode(call)
        response: aiohttp.ClientResponse | None = None
        try:
            data = body if len(body) <= _AT_ONCE_BYTES else io.BytesIO(body)
            response = await self._client().post(url, data=data, headers=headers, allow_redirects=False)
            if not 200 <= response.status < 300:
                raise await self._refusal(model, response)
            reading, content = parser(model, self._secrets, self._limits.reading), response.content
            while not reading.done and (received := await content.readany()):
                for chunk in reading.feed(received):
                    yield chunk
            for chunk in reading.end():
                yield chunk
            answer = reading.answer()
            await _goodbye(content)
            yield answer
            return
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            fault = _unreachable(model, url, error, self._limits)
        finally:
            if response is not None:
                # To the pool if all of it was read; else aiohttp closes the connection, here and now.
                response.release()
        # Raised out here so that it carries no aiohttp error along: those hold the request's headers.
        raise fault

    async def read(self, model: ModelSpec, path: str, body: Mapping[str, Any] | None) -> Any:
        """What the server of a model says about itself: below its API, or at its root if the path begins with
        a slash. None if it says nothing that can be used."""
        base = base_of(chat_url(model, self._secrets))
        url = f"{base.removesuffix('/v1')}{path}" if path.startswith("/") else f"{base}/{path}"
        try:
            async with (
                asyncio.timeout(_FACTS_SECONDS),
                self._client().request(
                    "GET" if body is None else "POST",
                    url,
                    data=None if body is None else orjson.dumps(body),
                    headers=self._headers(model),
                    allow_redirects=False,
                ) as response,
            ):
                if response.status != 200:
                    return None
                received = bytearray()
                while len(received) <= _FACTS_BYTES and (data := await response.content.readany()):
                    received += data
            return orjson.loads(received) if len(received) <= _FACTS_BYTES else None
        except (aiohttp.ClientError, OSError, ValueError):  # a timeout is an OSError
            return None

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            limits = self._limits
            self._session = aiohttp.ClientSession(
                # Each running turn needs a connection of its own; how many may run is decided elsewhere.
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=limits.connect_seconds, sock_read=limits.idle_seconds
                ),
                # Not decompressed, so that a few bytes never become many; not requested compressed either.
                auto_decompress=False,
                headers={
                    "Accept": "text/event-stream, application/json",
                    "Accept-Encoding": "identity",
                    "Content-Type": "application/json",
                    "User-Agent": f"lastgood/{__version__}",
                },
            )
        return self._session

    def _headers(self, model: ModelSpec) -> dict[str, str]:
        alias = alias_of(model)
        headers = dict(alias.headers) if alias else {}
        own = model.options.get("http_headers")
        if isinstance(own, dict):
            headers |= {str(name): expand(str(value), self._secrets) for name, value in own.items()}
        key = key_of(model, self._secrets)
        if key is not None:
            name = alias.key_header if alias else "Authorization"
            headers[name] = f"Bearer {key}" if name == "Authorization" else key
        if not all(text.isascii() and text.isprintable() for pair in headers.items() for text in pair):
            names = " or ".join(key_names(model)) or "headers"
            raise KeyRefused(f"{names} contains characters that are not valid in an API key; set it again")
        return headers

    async def _refusal(self, model: ModelSpec, response: aiohttp.ClientResponse) -> ModelError:
        body = bytearray()
        while len(body) < _ERROR_BYTES and (data := await response.content.readany()):
            body += data
        return refusal(model, response.status, words_of(bytes(body)), self._secrets, response.headers)


async def _goodbye(content: aiohttp.StreamReader) -> None:
    """The end of a stream often comes a moment after the last chunk; once it is read, the connection can be
    reused."""
    if not content.at_eof():
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await content.readany()


def _unreachable(model: ModelSpec, url: str, error: BaseException, limits: ChatLimits) -> ModelUnreachable:
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    match error:
        case aiohttp.ClientConnectorDNSError():
            what = f"no such host: {parts.hostname}"
        case aiohttp.ConnectionTimeoutError():
            what = f"{where} did not accept a connection within {limits.connect_seconds:g} seconds"
        case TimeoutError():
            what = f"{where} sent no data for {limits.idle_seconds:g} seconds"
        case aiohttp.ClientSSLError():
            what = f"{where} failed the TLS handshake"
        case aiohttp.ClientConnectorError():
            what = f"cannot connect to {where}"
        case _:
            what = f"{where} closed the connection"
    return ModelUnreachable(f"{model.ref} is unreachable: {what}; {what_to_check(model)}")
