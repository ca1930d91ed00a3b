"""What a model says and was told, in words that belong to no provider, and each dialect's bytes for it."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from lastgood.model.agents import ModelSpec
from tests.wires.server import Reply, Request, as_json

KEY_NAME = "WIRE_KEY"
KEY = "sk-canary-5d41402abc4b2a76b9719d911017c592"
#: Amazon has no bearer tokens for plain http, so its fake is asked with a signature.
KEYS = {KEY_NAME: KEY, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": KEY}


@dataclass(frozen=True)
class Says:
    text: tuple[str, ...] = ()
    thinks: tuple[str, ...] = ()
    signature: str = ""
    calls: tuple[tuple[str, str, dict[str, Any]], ...] = ()  # id, name, arguments
    too_long: bool = False
    usage: tuple[int, int] = (12, 7)
    cached: tuple[int, int] = (0, 0)  # of the input: read from the provider's cache, and written to it


@dataclass
class Seen:
    """A request as any of them could have meant it."""

    model: str
    key: str
    system: str = ""
    said: list[tuple[str, str]] = field(default_factory=list)  # role and text, in order
    images: list[str] = field(default_factory=list)  # base64, or an address
    calls: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    results: list[tuple[str, str]] = field(
        default_factory=list
    )  # id of the call, or its tool's name, and text
    thoughts: list[str] = field(default_factory=list)
    signatures: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    schema: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


class Dialect(Protocol):
    name: str

    def spec(self, url: str, **settings: Any) -> ModelSpec: ...

    def reply(self, says: Says) -> Reply: ...

    def error(self, status: int, kind: str, message: str, **headers: str) -> Reply: ...

    def seen(self, request: Request) -> Seen: ...


def _bearer(request: Request) -> str:
    return request.headers.get("authorization", "").removeprefix("Bearer ")


def _sse(events: Iterable[Any], name: bool = False) -> list[bytes]:
    pieces = []
    for event in events:
        head = f"event: {event['type']}\n" if name else ""
        data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        pieces.append(f"{head}data: {data}\n\n".encode())
    return pieces


class Chat:
    name = "chat"

    def spec(self, url: str, **settings: Any) -> ModelSpec:
        return ModelSpec("wire", "model-1", f"{url}/v1", KEY_NAME, **settings)

    def reply(self, says: Says) -> Reply:
        return Reply(_sse(self.events(says)))

    def events(self, says: Says) -> list[Any]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in says.thinks]
        deltas += [{"content": piece} for piece in says.text]
        for index, (identity, name, arguments) in enumerate(says.calls):
            text = json.dumps(arguments, ensure_ascii=False)
            call = {"index": index, "id": identity, "type": "function"}
            deltas.append({"tool_calls": [{**call, "function": {"name": name, "arguments": ""}}]})
            for piece in (text[:3], text[3:]):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        finish = "length" if says.too_long else "tool_calls" if says.calls else "stop"
        events = [self.chunk(delta) for delta in deltas]
        events.append(self.chunk({}, finish))
        prompt, completion = says.usage
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {
                "cached_tokens": says.cached[0],
                "cache_write_tokens": says.cached[1],
            },
        }
        return [
            *events,
            {"id": "c-1", "object": "chat.completion.chunk", "choices": [], "usage": usage},
            "[DONE]",
        ]

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "c-1", "object": "chat.completion.chunk", "model": "model-1", "choices": [choice]}

    def error(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        error = {"message": message, "type": kind, "code": kind}
        return as_json({"error": error}, status, named.items())

    def seen(self, request: Request) -> Seen:
        assert request.path == "/v1/chat/completions"
        body = request.body
        seen = Seen(body["model"], _bearer(request))
        seen.tools = [tool["function"]["name"] for tool in body.get("tools", ())]
        seen.settings = body
        if "response_format" in body:
            seen.schema = body["response_format"]["json_schema"]["schema"]
        for message in body["messages"]:
            self._see(message, seen)
        return seen

    def _see(self, message: dict[str, Any], seen: Seen) -> None:
        content = message["content"]
        if isinstance(content, list):
            for part in content:
                if part["type"] == "image_url":
                    seen.images.append(part["image_url"]["url"].rpartition("base64,")[2])
            content = "\n".join(part["text"] for part in content if part["type"] == "text")
        match message["role"]:
            case "system":
                seen.system += content
            case "tool":
                seen.results.append((message["tool_call_id"], content))
            case role:
                if content:
                    seen.said.append((role, content))
        for call in message.get("tool_calls", ()):
            function = call["function"]
            seen.calls.append((call["id"], function["name"], json.loads(function["arguments"])))
        if "reasoning_content" in message:
            seen.thoughts.append(message["reasoning_content"])


class Responses:
    """OpenAI's other API. Its reasoning is encrypted; what can be read of it is a summary."""

    name = "responses"

    def spec(self, url: str, **settings: Any) -> ModelSpec:
        options = {"api_type": "openai_responses"} | settings.pop("options", {})
        return ModelSpec("wire", "gpt-5", f"{url}/v1", KEY_NAME, options=options, **settings)

    def reply(self, says: Says) -> Reply:
        return Reply(_sse(self.events(says), name=True))

    def events(self, says: Says) -> list[Any]:
        events: list[dict[str, Any]] = [{"type": "response.created", "response": {"id": "r1", "output": []}}]
        for index, item in enumerate(self.output(says)):
            events.append({"type": "response.output_item.added", "output_index": index, "item": {}})
            events += [{**delta, "output_index": index} for delta in self._deltas(item, says)]
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        whole = self.whole(says)
        return [*events, {"type": f"response.{whole['status']}", "response": whole}]

    def _deltas(self, item: dict[str, Any], says: Says) -> Iterable[dict[str, Any]]:
        match item["type"]:
            case "message":
                for piece in says.text:
                    yield {"type": "response.output_text.delta", "content_index": 0, "delta": piece}
            case "function_call":
                yield {"type": "response.function_call_arguments.delta", "delta": item["arguments"]}
            case _:
                yield {"type": "response.reasoning_summary_part.added", "summary_index": 0}
                for piece in says.thinks:
                    yield {"type": "response.reasoning_summary_text.delta", "delta": piece}

    def output(self, says: Says) -> list[dict[str, Any]]:
        output: list[dict[str, Any]] = []
        if says.thinks:
            summary = [{"type": "summary_text", "text": "".join(says.thinks)}]
            reasoning = {"type": "reasoning", "id": "rs_1", "summary": summary, "status": None}
            output.append({**reasoning, "encrypted_content": says.signature or None})
        if says.text:
            content = [{"type": "output_text", "text": "".join(says.text), "annotations": []}]
            output.append({"type": "message", "id": "msg_1", "role": "assistant", "content": content})
        for identity, name, arguments in says.calls:
            text = json.dumps(arguments, ensure_ascii=False)
            call = {"type": "function_call", "id": f"fc_{identity}", "call_id": identity}
            output.append({**call, "name": name, "arguments": text})
        return output

    def whole(self, says: Says) -> dict[str, Any]:
        said, answered = says.usage
        details = {"cached_tokens": says.cached[0], "cache_write_tokens": says.cached[1]}
        usage = {"input_tokens": said, "input_tokens_details": details, "output_tokens": answered}
        reason = {"reason": "max_output_tokens"} if says.too_long else None
        return {
            "id": "r1", "object": "response", "status": "incomplete" if says.too_long else "completed",
            "error": None, "incomplete_details": reason, "output": self.output(says), "usage": usage,
        }  # fmt: skip

    def error(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        return Chat().error(status, kind, message, **headers)

    def seen(self, request: Request) -> Seen:
        assert request.path == "/v1/responses"
        body = request.body
        assert body["store"] is False
        seen = Seen(body["model"], _bearer(request))
        seen.tools = [tool["name"] for tool in body.get("tools", ())]
        seen.settings = body
        if "format" in body.get("text", {}):
            seen.schema = body["text"]["format"].get("schema")
        for item in body["input"]:
            self._see(item, seen)
        return seen

    def _see(self, item: dict[str, Any], seen: Seen) -> None:
        match item:
            case {"type": "function_call"}:
                seen.calls.append((item["call_id"], item["name"], json.loads(item["arguments"])))
            case {"type": "function_call_output"}:
                seen.results.append((item["call_id"], item["output"]))
            case {"type": "reasoning"}:
                seen.thoughts += [part["text"] for part in item["summary"]]
                seen.signatures.append(item["encrypted_content"])
            case {"role": role, "content": content}:
                if isinstance(content, list):
                    images = [part["image_url"] for part in content if part["type"] == "input_image"]
                    seen.images += [url.rpartition("base64,")[2] for url in images]
                    content = "\n".join(part["text"] for part in content if part["type"] == "input_text")
                if role == "system":
                    seen.system += content
                else:
                    seen.said.append((role, content))
            case _:
                raise AssertionError(f"an unknown item: {item}")


class Anthropic:
    name = "anthropic"

    def spec(self, url: str, **settings: Any) -> ModelSpec:
        return ModelSpec("anthropic", "claude-sonnet-4-6", url, KEY_NAME, **settings)

    def reply(self, says: Says) -> Reply:
        return Reply(_sse(self._events(says), name=True))

    def _events(self, says: Says) -> list[dict[str, Any]]:
        read, written = says.cached
        usage = {
            "input_tokens": says.usage[0] - read - written,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": 1,
        }
        message: dict[str, Any] = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6",
            "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        events: list[dict[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
        index = 0

        def block(start: dict[str, Any], *deltas: dict[str, Any]) -> None:
            nonlocal index
            events.append({"type": "content_block_start", "index": index, "content_block": start})
            for delta in deltas:
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
            events.append({"type": "content_block_stop", "index": index})
            index += 1

        if says.thinks:
            thoughts = [{"type": "thinking_delta", "thinking": piece} for piece in says.thinks]
            sign = {"type": "signature_delta", "signature": says.signature}
            block({"type": "thinking", "thinking": "", "signature": ""}, *thoughts, sign)
        if says.text:
            block(
                {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in says.text)
            )
        for identity, name, arguments in says.calls:
            text = json.dumps(arguments)
            pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in (text[:3], text[3:])]
            block({"type": "tool_use", "id": identity, "name": name, "input": {}}, *pieces)
        reason = "max_tokens" if says.too_long else "tool_use" if says.calls else "end_turn"
        delta = {"stop_reason": reason, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": says.usage[1]}})
        return [*events, {"type": "message_stop"}]

    def error(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return as_json({"type": "error", "error": {"type": kind, "message": message}}, status, named.items())

    def seen(self, request: Request) -> Seen:
        assert request.path.partition("?")[0] == "/v1/messages"
        body = request.body
        seen = Seen(body["model"], request.headers.get("x-api-key") or _bearer(request))
        system = body.get("system") or ""
        seen.system = system if isinstance(system, str) else "".join(part["text"] for part in system)
        seen.tools = [tool["name"] for tool in body.get("tools", ())]
        seen.settings = body
        seen.schema = (
            (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
        ).get("schema")
        for message in body["messages"]:
            content = message["content"]
            for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
                self._see(message["role"], part, seen)
        return seen

    def _see(self, role: str, part: dict[str, Any], seen: Seen) -> None:
        match part["type"]:
            case "text":
                seen.said.append((role, part["text"]))
            case "image":
                seen.images.append(part["source"].get("data") or part["source"]["url"])
            case "tool_use":
                seen.calls.append((part["id"], part["name"], part["input"]))
            case "tool_result":
                content = part["content"]
                text = content if isinstance(content, str) else "".join(piece["text"] for piece in content)
                seen.results.append((part["tool_use_id"], text))
            case "thinking":
                seen.thoughts.append(part["thinking"])
                seen.signatures.append(part["signature"])
            case _:
                pass


class Google:
    name = "google"

    def spec(self, url: str, **settings: Any) -> ModelSpec:
        return ModelSpec("google", "gemini-2.5-flash", url, KEY_NAME, **settings)

    def reply(self, says: Says) -> Reply:
        parts: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in says.thinks]
        parts += [{"text": piece} for piece in says.text]
        for identity, name, arguments in says.calls:
            parts.append({"functionCall": {"id": identity, "name": name, "args": arguments}})
        if says.signature and len(parts) > len(says.thinks):
            # Google signs what comes after its thoughts.
            parts[len(says.thinks)]["thoughtSignature"] = base64.b64encode(says.signature.encode()).decode()
        counts = {"promptTokenCount": says.usage[0], "candidatesTokenCount": says.usage[1]}
        counts |= {"cachedContentTokenCount": says.cached[0]}
        events = [self._event([part]) for part in parts]
        last = self._event([], "MAX_TOKENS" if says.too_long else "STOP") | {"usageMetadata": counts}
        return Reply(_sse([*events, last]))

    def _event(self, parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if finish:
            candidate["finishReason"] = finish
        return {"candidates": [candidate], "modelVersion": "gemini-2.5-flash", "responseId": "r-1"}

    def error(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return as_json({"error": {"code": status, "message": message, "status": kind}}, status, named.items())

    def seen(self, request: Request) -> Seen:
        assert ":streamGenerateContent" in request.path
        body = request.body
        model = request.path.partition("/models/")[2].partition(":")[0]
        seen = Seen(model, request.headers.get("x-goog-api-key", ""))
        seen.system = "".join(part["text"] for part in (body.get("systemInstruction") or {}).get("parts", ()))
        for tools in body.get("tools", ()):
            seen.tools += [tool["name"] for tool in tools["functionDeclarations"]]
        seen.settings = body.get("generationConfig", {})
        schema = seen.settings.get("responseJsonSchema") or seen.settings.get("responseSchema")
        seen.schema = schema
        for content in body["contents"]:
            for part in content["parts"]:
                self._see("assistant" if content["role"] == "model" else "user", part, seen)
        return seen

    def _see(self, role: str, part: dict[str, Any], seen: Seen) -> None:
        if "thoughtSignature" in part:
            signature = base64.urlsafe_b64decode(part["thoughtSignature"]).decode()
            if signature != "skip_thought_signature_validator":
                seen.signatures.append(signature)
        if part.get("thought"):
            seen.thoughts.append(part["text"])
        elif "text" in part:
            seen.said.append((role, part["text"]))
        elif "inlineData" in part:
            data = base64.urlsafe_b64decode(part["inlineData"]["data"])
            seen.images.append(base64.b64encode(data).decode())
        elif "functionCall" in part:
            call = part["functionCall"]
            seen.calls.append((call.get("id", ""), call["name"], call["args"]))
        elif "functionResponse" in part:
            response = part["functionResponse"]
            (text,) = response["response"].values()
            seen.results.append((response.get("id", response["name"]), text))


class Bedrock:
    name = "bedrock"

    def spec(self, url: str, **settings: Any) -> ModelSpec:
        model = "anthropic.claude-sonnet-4-6"
        return ModelSpec("amazon-bedrock", model, url, **settings)

    def reply(self, says: Says) -> Reply:
        headers = {"Content-Type": "application/vnd.amazon.eventstream"}
        return Reply([_frame(kind, event) for kind, event in self._events(says)], headers=headers)

    def _events(self, says: Says) -> list[tuple[str, dict[str, Any]]]:
        events: list[tuple[str, dict[str, Any]]] = [("messageStart", {"role": "assistant"})]
        index = 0

        def block(start: dict[str, Any] | None, *deltas: dict[str, Any]) -> None:
            nonlocal index
            if start is not None:
                events.append(("contentBlockStart", {"contentBlockIndex": index, "start": start}))
            events.extend(
                ("contentBlockDelta", {"contentBlockIndex": index, "delta": delta}) for delta in deltas
            )
            events.append(("contentBlockStop", {"contentBlockIndex": index}))
            index += 1

        if says.thinks:
            thoughts = [{"reasoningContent": {"text": piece}} for piece in says.thinks]
            block(None, *thoughts, {"reasoningContent": {"signature": says.signature}})
        if says.text:
            block(None, *({"text": piece} for piece in says.text))
        for identity, name, arguments in says.calls:
            text = json.dumps(arguments)
            pieces = [{"toolUse": {"input": piece}} for piece in (text[:3], text[3:])]
            block({"toolUse": {"toolUseId": identity, "name": name}}, *pieces)
        reason = "max_tokens" if says.too_long else "tool_use" if says.calls else "end_turn"
        events.append(("messageStop", {"stopReason": reason}))
        (said, answered), (read, written) = says.usage, says.cached
        usage = {"inputTokens": said - read - written, "outputTokens": answered}
        usage |= {"cacheReadInputTokens": read, "cacheWriteInputTokens": written}
        usage |= {"totalTokens": said + answered}
        events.append(("metadata", {"usage": usage, "metrics": {"latencyMs": 1}}))
        return events

    def error(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()} | {
            "x-amzn-ErrorType": kind
        }
        return as_json({"message": message}, status, named.items())

    def seen(self, request: Request) -> Seen:
        assert request.path.endswith("/converse-stream")
        body = request.body
        model = request.path.partition("/model/")[2].partition("/")[0].replace("%3A", ":")
        # A signature, not the key itself; it names the key that it was made with.
        seen = Seen(model, KEY if "Credential=AKIDEXAMPLE/" in request.headers["authorization"] else "")
        seen.system = "".join(part["text"] for part in body.get("system", ()))
        seen.tools = [tool["toolSpec"]["name"] for tool in body.get("toolConfig", {}).get("tools", ())]
        seen.settings = body.get("inferenceConfig", {})
        structure = body.get("outputConfig", {}).get("textFormat", {}).get("structure")
        if structure:
            seen.schema = json.loads(structure["jsonSchema"]["schema"])
        for message in body["messages"]:
            for part in message["content"]:
                self._see(message["role"], part, seen)
        return seen

    def _see(self, role: str, part: dict[str, Any], seen: Seen) -> None:
        if "text" in part:
            seen.said.append((role, part["text"]))
        elif "image" in part:
            seen.images.append(part["image"]["source"]["bytes"])
        elif "toolUse" in part:
            call = part["toolUse"]
            seen.calls.append((call["toolUseId"], call["name"], call["input"]))
        elif "toolResult" in part:
            result = part["toolResult"]
            seen.results.append((result["toolUseId"], "".join(piece["text"] for piece in result["content"])))
        elif "reasoningContent" in part:
            text = part["reasoningContent"]["reasoningText"]
            seen.thoughts.append(text["text"])
            seen.signatures.append(text["signature"])


def _frame(kind: str, event: dict[str, Any]) -> bytes:
    """One message of Amazon's event stream: lengths, headers, payload, and a checksum of each."""
    headers = b""
    for name, value in (
        (":event-type", kind),
        (":content-type", "application/json"),
        (":message-type", "event"),
    ):
        headers += (
            bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        )
    payload = json.dumps(event).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + payload
    return message + struct.pack(">I", zlib.crc32(message))
