"""pydantic-ai's models, made with our keys, our addresses and our limits."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from importlib import import_module
from typing import Any, cast

import httpx2
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from lastgood.engine.providers.chat_limits import ChatLimits
from lastgood.engine.providers.direct_settings import own_settings
from lastgood.engine.providers.provider import ModelCall
from lastgood.engine.providers.provider_aliases import expand, key_of
from lastgood.errors import ModelGarbled
from lastgood.model.agents import ModelSpec
from lastgood.outside.secrets import Secrets

#: At DEBUG these write down what they send and get: prompts, headers, and the key among them.
_TALKATIVE = ("anthropic", "boto3", "botocore", "google_genai", "httpcore2", "httpx2", "urllib3")
_DEFAULT_REGION = "us-east-1"

#: The connection of a response, for the code that may have to close it.
CONNECTIONS: ContextVar[list[httpx2.AsyncByteStream] | None] = ContextVar("connections", default=None)

#: U+0085, U+2028 and U+2029 in UTF-8, and what may be the beginning of one.
_LINE_ENDS = re.compile(rb"\xc2\x85|\xe2\x80[\xa8\xa9]")
_HALF = re.compile(rb"(?:\xc2|\xe2\x80?)\Z")


def _spelled(found: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(found[0].decode())


class _CountedBytes(httpx2.AsyncByteStream):
    """A response that may not be longer than an answer and its wrapping."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int) -> None:
        self._stream = stream
        self._left = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        held = b""
        async for data in self._stream:
            self._left -= len(data)
            if self._left < 0:
                raise ModelGarbled(
                    "the response of the provider is above the size limit; nothing was committed"
                )
            # Google's SDK takes these characters for ends of lines, and loses the line. They stand in JSON
            # texts only, where they can as well be spelled; one may be cut in two by the end of a packet.
            data = _LINE_ENDS.sub(_spelled, held + data)
            half = _HALF.search(data)
            held, data = (data[half.start() :], data[: half.start()]) if half else (b"", data)
            yield data
        yield held

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Transport(httpx2.AsyncHTTPTransport):
    """Our limits, whatever an SDK does. Compressed responses are neither requested nor decompressed."""

    def __init__(self, limits: ChatLimits) -> None:
        # The same authorities as the native wire trusts.
        trusted, pool = ssl.create_default_context(), httpx2.Limits(max_keepalive_connections=20)
        super().__init__(verify=trusted, trust_env=False, limits=pool)
        self._limits = limits

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        limits = self._limits
        connect, idle = limits.connect_seconds, limits.idle_seconds
        request.extensions["timeout"] = {"connect": connect, "pool": connect, "read": idle, "write": idle}
        request.headers["Accept-Encoding"] = "identity"
        response = await super().handle_async_request(request)
        response.headers.pop("Content-Encoding", None)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        # These SDKs hold a line in memory until it ends, so this limit is near that of an answer.
        response.stream = _CountedBytes(response.stream, 2 * limits.reading.answer_bytes)
        connections = CONNECTIONS.get()
        if connections is not None:
            connections.append(response.stream)
        return response


class Clients:
    """One HTTP client for all, and a provider for each account that is used."""

    def __init__(self, secrets: Secrets, limits: ChatLimits) -> None:
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._secrets = secrets
        self._limits = limits
        self._http: httpx2.AsyncClient | None = None
        self._providers: dict[tuple[str | bool | None, ...], Any] = {}

    async def close(self) -> None:
        providers, self._providers = list(self._providers.values()), {}
        for provider in providers:
            if hasattr(provider.client, "meta"):  # boto3's
                provider.client.close()
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def model(self, spec: ModelSpec) -> Model[Any]:
        match spec.provider:
            case "anthropic":
                from pydantic_ai.models.anthropic import AnthropicModel

                return AnthropicModel(spec.model, provider=self._provider(spec))
            case "google":
                from pydantic_ai.models.google import GoogleModel

                return GoogleModel(spec.model, provider=self._provider(spec))
            case _:
                from pydantic_ai.models.bedrock import BedrockConverseModel

                return BedrockConverseModel(spec.model, provider=self._provider(spec))

    def _provider(self, spec: ModelSpec) -> Any:
        region, profile = (_text(spec.options, name) for name in ("region", "profile"))
        account = (spec.provider, spec.base_url, spec.token_key, spec.keyless, region, profile)
        if account not in self._providers:
            self._providers[account] = self._make(spec, region, profile)
        return self._providers[account]

    def _make(self, spec: ModelSpec, region: str | None, profile: str | None) -> Any:
        base_url = expand(spec.base_url, self._secrets) if spec.base_url else None
        match spec.provider:
            case "anthropic":
                from pydantic_ai.providers.anthropic import AnthropicProvider

                return AnthropicProvider(
                    api_key=self._key(spec), base_url=base_url or _ANTHROPIC, http_client=self._client()
                )
            case "google":
                from pydantic_ai.providers.google import GoogleProvider

                return GoogleProvider(
                    api_key=self._key(spec), base_url=base_url or _GOOGLE, http_client=self._client()
                )
            case _:
                from pydantic_ai.providers.bedrock import BedrockProvider

                client = self._bedrock(spec, base_url or _text(spec.options, "endpoint_url"), region, profile)
                return BedrockProvider(bedrock_client=client)

    def _key(self, spec: ModelSpec) -> str:
        # An empty key would send the SDK looking through the environment for one.
        return key_of(spec, self._secrets) or "none"

    def _client(self) -> httpx2.AsyncClient:
        if self._http is None:
            limits = self._limits
            timeout = httpx2.Timeout(limits.idle_seconds, connect=limits.connect_seconds)
            self._http = httpx2.AsyncClient(
                transport=_Transport(limits), timeout=timeout, trust_env=False, follow_redirects=False
            )
        return self._http

    def _bedrock(self, spec: ModelSpec, url: str | None, region: str | None, profile: str | None) -> Any:
        boto3, botocore = import_module("boto3"), import_module("botocore.session")
        get, limits = self._secrets.get, self._limits
        bearer = get(spec.token_key or "AWS_BEARER_TOKEN_BEDROCK")
        session = botocore.Session()
        config: dict[str, Any] = {
            "connect_timeout": limits.connect_seconds,
            "read_timeout": limits.idle_seconds,
            "retries": {"total_max_attempts": 1},
            "proxies": {},
        }
        keys: dict[str, str | None] = {}
        if bearer is not None:
            token = import_module("botocore.tokens").FrozenAuthToken(bearer)
            session.get_auth_token = lambda **_: token
            session.get_credentials = lambda: None
            config["signature_version"] = "bearer"
        elif profile is None and get("AWS_ACCESS_KEY_ID"):
            names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
            keys = {name: get(name.upper()) for name in names}
        made = boto3.Session(
            botocore_session=session,
            region_name=region or get("AWS_REGION") or get("AWS_DEFAULT_REGION") or _DEFAULT_REGION,
            profile_name=profile or (None if bearer or keys else get("AWS_PROFILE")),
            **keys,
        )
        settings = import_module("botocore.config").Config(**config)
        return made.client("bedrock-runtime", config=settings, endpoint_url=url)


_ANTHROPIC = "https://api.anthropic.com"
_GOOGLE = "https://generativelanguage.googleapis.com"


def _text(options: Mapping[str, Any], name: str) -> str | None:
    value = options.get(name)
    return str(value) if value else None


def settings_of(call: ModelCall, model: Model[Any]) -> ModelSettings:
    spec, asked = call.model, call.options
    settings: dict[str, Any] = {
        "max_retries": 0,  # whether to ask again is decided elsewhere
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "max_tokens": spec.max_tokens,
        "frequency_penalty": spec.frequency_penalty,
        "presence_penalty": spec.presence_penalty,
        "parallel_tool_calls": spec.parallel_tool_calls,
        "top_k": spec.options.get("top_k"),
        "seed": spec.options.get("seed") if asked.seed is None else asked.seed,
        "stop_sequences": list(asked.stop) or None,
        "tool_choice": _choice(asked.tool_choice) if call.tools else None,
        **own_settings(spec, model.profile),
    }
    known = {
        name: value
        for name, value in settings.items()
        if value is not None and name not in model.unsupported_settings
    }
    return cast(ModelSettings, known)


def _choice(choice: str | Mapping[str, Any] | None) -> str | list[str] | None:
    """OpenAI's way to say which tool must be called, as pydantic-ai says it."""
    if choice is None or isinstance(choice, str):
        return choice
    return [str(choice["function"]["name"])]
