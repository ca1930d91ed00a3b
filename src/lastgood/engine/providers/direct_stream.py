"""One request through `pydantic_ai.direct`: its events as our chunks, its errors as ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from lastgood.engine.providers.chat_limits import ChatLimits
from lastgood.engine.providers.direct_messages import to_answer, to_pydantic
from lastgood.engine.providers.direct_models import CONNECTIONS, Clients, settings_of
from lastgood.engine.providers.direct_settings import native_tools
from lastgood.engine.providers.provider import Chunk, ChunkKind, ModelAnswer, ModelCall
from lastgood.engine.providers.provider_errors import ErrorText, refusal, what_to_check, words_in
from lastgood.errors import LastgoodError, ModelError, ModelGarbled, ModelUnreachable
from lastgood.model.agents import ModelSpec, StructuredOutput
from lastgood.outside.secrets import Secrets

#: What pydantic-ai's categories would have been as statuses, most special first.
_STATUSES: tuple[tuple[type[exceptions.ModelAPIError], int], ...] = (
    (exceptions.ModelQuotaExceededError, 402),
    (exceptions.ModelRateLimitError, 429),
    (exceptions.ModelContextWindowExceededError, 413),
    (exceptions.ModelAuthenticationError, 401),
    (exceptions.ModelNotFoundError, 404),
    (exceptions.ModelUnavailableError, 503),
    (exceptions.ModelServerError, 500),
)


class DirectStream:
    def __init__(self, secrets: Secrets, limits: ChatLimits) -> None:
        self._secrets = secrets
        self._clients = Clients(secrets, limits)

    async def close(self) -> None:
        await self._clients.close()

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        spec = call.model
        try:
            model = self._clients.model(spec)
            request = model_request_stream(
                model,
                to_pydantic(call.messages, spec, model.system),
                model_settings=settings_of(call, model),
                model_request_parameters=_parameters(call, model),
                instrument=False,
            )
            async with _opened(request) as events:
                async for event in events:
                    chunk = _chunk(event)
                    if chunk is not None:
                        yield chunk
                response = events.get()
            answer = to_answer(response, spec)
            match response.finish_reason:
                case None:
                    fault: ModelError = ModelUnreachable(
                        f"the stream of {spec.ref} was cut off; nothing was committed. Send the turn again"
                    )
                case "content_filter":
                    fault = ModelError(
                        f"the provider of {spec.ref} blocked the response (content filter); rephrase it"
                    )
                case _:
                    yield answer
                    return
        except LastgoodError:
            raise
        except Exception as error:
            fault = self._fault(spec, error)
        # Raised out here so that it carries no error of an SDK along: those hold requests and their headers.
        raise fault

    def _fault(self, spec: ModelSpec, error: Exception) -> ModelError:
        match error:
            case exceptions.ModelConnectionError():
                how = f"{error.phase} failed" if error.phase else "no response"
                return ModelUnreachable(f"{spec.ref} is unreachable: {how}; {what_to_check(spec)}")
            case exceptions.ModelAPIError():
                return self._refusal(spec, error)
            case exceptions.UserError():
                said = self._secrets.scrub(str(error)).partition("\n")[0]
                return ModelError(f"{spec.ref} does not support this request: {said}")
            case _:
                return self._other(spec, error)

    def _refusal(self, spec: ModelSpec, error: exceptions.ModelAPIError) -> ModelError:
        status = next((number for kind, number in _STATUSES if isinstance(error, kind)), None)
        if status is None:
            if not isinstance(error, exceptions.ModelHTTPError):
                return ModelGarbled(f"{spec.ref} sent an invalid response; nothing was committed")
            status = error.status_code
        body = error.body if isinstance(error.body, (dict, list)) else None
        words = words_in(body) if body else ErrorText(kind=error.provider_error_code or "")
        fault = refusal(spec, status, words, self._secrets)
        fault.retry_after = error.retry_after
        return fault

    def _other(self, spec: ModelSpec, error: Exception) -> ModelError:
        """Errors that an SDK did not translate. Their texts are not shown: they may contain keys."""
        name = type(error).__name__
        if "Credentials" in name or "Token" in name:  # botocore's
            return refusal(spec, 401, ErrorText(), self._secrets)
        if any(word in name for word in ("Connect", "Timeout", "Endpoint", "Network", "Protocol", "Closed")):
            return ModelUnreachable(f"{spec.ref} is unreachable: {name}; {what_to_check(spec)}")
        return ModelGarbled(f"{spec.ref} sent an invalid response ({name}); nothing was committed")


@asynccontextmanager
async def _opened(request: AbstractAsyncContextManager[StreamedResponse]) -> AsyncIterator[StreamedResponse]:
    """The stream. Who leaves early closes its connection now; Google's SDK would leave that to chance."""
    connections: list[httpx2.AsyncByteStream] = []
    async with AsyncExitStack() as stack:
        # Set only while the request is sent, which is where the connection is taken.
        token = CONNECTIONS.set(connections)
        try:
            events = await stack.enter_async_context(request)
        finally:
            CONNECTIONS.reset(token)
        try:
            yield events
        except BaseException:
            for connection in connections:
                await connection.aclose()
            raise


def _chunk(event: Any) -> Chunk | None:
    match event:
        case PartStartEvent(part=TextPart(content=text)) if text:
            return Chunk(text)
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
            return Chunk(text)
        case PartStartEvent(part=ThinkingPart(content=text)) if text:
            return Chunk(text, ChunkKind.REASONING)
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text)) if text:
            return Chunk(text, ChunkKind.REASONING)
        case _:
            return None


def _parameters(call: ModelCall, model: Model[Any]) -> ModelRequestParameters:
    tools = [
        ToolDefinition(
            name=tool["function"]["name"],
            description=tool["function"].get("description") or "",
            parameters_json_schema=tool["function"].get("parameters") or {"type": "object", "properties": {}},
        )
        for tool in call.tools
    ]
    output, of_provider = _output(call), native_tools(call.model)
    if output is None:
        return ModelRequestParameters(function_tools=tools, native_tools=of_provider)
    native = bool(output.schema) and bool(model.profile.get("supports_json_schema_output"))
    wanted = OutputObjectDefinition(
        dict(output.schema) or {"type": "object"},
        output.name,
        output.description or None,
        output.strict or None,
    )
    return ModelRequestParameters(
        function_tools=tools,
        native_tools=of_provider,
        output_mode="native" if native else "prompted",
        output_object=wanted,
    )


def _output(call: ModelCall) -> StructuredOutput | None:
    """The shape the request asks for, else the file's. An empty schema: any JSON object."""
    asked = call.options.response_format
    if asked is None:
        return call.output
    match asked.get("type"):
        case "json_schema":
            wanted = asked["json_schema"]
            name, schema = str(wanted["name"]), wanted.get("schema") or {}
            return StructuredOutput(name, schema, wanted.get("description") or "", bool(wanted.get("strict")))
        case "json_object":
            return StructuredOutput("object", {})
        case _:
            return None
