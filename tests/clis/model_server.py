"""A model on a loopback port, for real CLIs: Anthropic Messages, OpenAI Responses and chat completions.

It answers `FAKE seen=[MARK-one] prior_assistant=N`: which markers of users' messages were in the request, and
how many messages of the assistant. What a CLI resumed is read from here, never from what the CLI claims. The
last prompt decides: `RUNTOOL name {json}` calls a tool, `SLOW` streams until the client leaves. CLIs also
want titles and the like, so tests look for a request by its content and never count requests.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MARK = re.compile(r"MARK-[a-z0-9]+")
RUNTOOL = re.compile(r"RUNTOOL (\S+) (\{.*\})")
SLOW_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one request said, whatever its wire."""

    users: tuple[str, ...]
    assistants: int
    tools: frozenset[str]
    ends_with_tool_result: bool
    system: str = ""
    tool_results: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # system messages in the middle of a conversation

    @property
    def marks(self) -> list[str]:
        texts = (*self.users, *self.notes)
        return list(dict.fromkeys(mark for text in texts for mark in MARK.findall(text)))

    def tool_call(self) -> tuple[str, str] | None:
        last = RUNTOOL.findall(self.users[-1]) if self.users else []
        if self.ends_with_tool_result or not last or last[-1][0] not in self.tools:
            return None
        name, arguments = last[-1]
        return name, arguments

    def answer(self) -> str:
        return f"FAKE seen=[{','.join(self.marks)}] prior_assistant={self.assistants}"


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))


def _anthropic(body: dict[str, Any]) -> Conversation:
    users: list[str] = []
    results: list[str] = []
    ends = False
    for message in body["messages"]:
        content = message["content"]
        parts = content if isinstance(content, list) else []
        found = [part for part in parts if part.get("type") == "tool_result"]
        results += [_texts(part.get("content")) for part in found]
        if message["role"] == "user":
            ends = bool(found)
            said = _texts([part for part in parts if part not in found] if parts else content)
            if said or not found:
                users.append(said)
        elif message["role"] == "assistant":
            ends = False
    assistants = sum(message["role"] == "assistant" for message in body["messages"])
    notes = tuple(_texts(message["content"]) for message in body["messages"] if message["role"] == "system")
    tools = frozenset(tool["name"] for tool in body.get("tools", ()))
    return Conversation(
        tuple(users), assistants, tools, ends, _texts(body.get("system")), tuple(results), notes
    )


def _responses(body: dict[str, Any]) -> Conversation:
    given = body["input"] if isinstance(body["input"], list) else [{"role": "user", "content": body["input"]}]
    users = [_texts(item.get("content")) for item in given if item.get("role") == "user"]
    outputs = [item for item in given if str(item.get("type", "")).endswith("_output")]
    assistants = sum(item.get("role") == "assistant" for item in given)
    ends = bool(given) and str(given[-1].get("type", "")).endswith("_output")
    tools = frozenset(name for tool in body.get("tools", ()) for name in _responses_tools(tool))
    results = tuple(str(item.get("output")) for item in outputs)
    return Conversation(tuple(users), assistants, tools, ends, str(body.get("instructions", "")), results)


def _responses_tools(tool: dict[str, Any]) -> Iterator[str]:
    """A tool of a namespace is `NAMESPACE/TOOL` here."""
    name = str(tool.get("name", tool.get("type")))
    yield name
    yield from (f"{name}/{inner['name']}" for inner in tool.get("tools", ()))


def _chat(body: dict[str, Any]) -> Conversation:
    messages = body["messages"]
    users = [_texts(message["content"]) for message in messages if message["role"] == "user"]
    system = "\n".join(_texts(message["content"]) for message in messages if message["role"] == "system")
    results = tuple(_texts(message["content"]) for message in messages if message["role"] == "tool")
    assistants = sum(message["role"] == "assistant" for message in messages)
    tools = frozenset(tool["function"]["name"] for tool in body.get("tools", ()))
    ends = bool(messages) and messages[-1]["role"] == "tool"
    return Conversation(tuple(users), assistants, tools, ends, system, results)


def _anthropic_events(said: Conversation) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": 11, "output_tokens": 7}
    # Of one id claude makes one message, whatever came in between.
    head = {"id": f"msg_{time.time_ns()}", "type": "message", "role": "assistant", "model": "fake-model"}
    message = {**head, "content": []}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}
    call = said.tool_call()
    if call:
        block: dict[str, Any] = {
            "type": "tool_use",
            "id": f"toolu_{time.time_ns()}",
            "name": call[0],
            "input": {},
        }
        delta = {"type": "input_json_delta", "partial_json": call[1]}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": said.answer()}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": usage}
    yield {"type": "message_stop"}


def _responses_events(said: Conversation) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": {"id": "resp_1"}}
    call = said.tool_call()
    if call and call[0] == "apply_patch":
        item = {"type": "custom_tool_call", "call_id": f"call_{time.time_ns()}", "name": call[0]}
        item["input"] = json.loads(call[1])["patch"]
    elif call:
        namespace, _, name = call[0].rpartition("/")
        item = {
            "type": "function_call",
            "call_id": f"call_{time.time_ns()}",
            "name": name,
            "arguments": call[1],
            **({"namespace": namespace} if namespace else {}),
        }
    else:
        content = [{"type": "output_text", "text": said.answer()}]
        item = {"type": "message", "role": "assistant", "id": "msg_1", "content": content}  # type: ignore[dict-item]
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
    yield {"type": "response.completed", "response": {"id": "resp_1", "usage": usage, "output": [item]}}


def _chat_events(said: Conversation) -> Iterator[dict[str, Any]]:
    call = said.tool_call()
    delta: dict[str, Any] = {"role": "assistant", "content": None if call else said.answer()}
    if call:
        function = {"name": call[0], "arguments": call[1]}
        delta["tool_calls"] = [
            {"index": 0, "id": f"call_{time.time_ns()}", "type": "function", "function": function}
        ]
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-model"}
    yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    yield {**head, "choices": [end], "usage": usage}


WIRES = {
    "/v1/messages": (_anthropic, _anthropic_events),
    "/v1/responses": (_responses, _responses_events),
    "/v1/chat/completions": (_chat, _chat_events),
}


@dataclass
class ModelServer:
    """`fail_with` is a status that every model request gets; `slow` is set when a SLOW answer has begun."""

    port: int = 0
    fail_with: int | None = None
    cuts: int = 0  # so many streams end before their first event
    conversations: list[Conversation] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    slow: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)

    def about(self, mark: str) -> list[Conversation]:
        """The requests of turns whose newest user message holds the mark, oldest first.

        goose also asks for a title beside a turn: that request has no tools, and may arrive last.
        """
        return [
            one for one in self.conversations if one.tools and any(mark in text for text in one.users[-2:])
        ]

    def __enter__(self) -> ModelServer:
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self.port = self._http.server_port
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self._json(200, None)

        def do_GET(self) -> None:
            self._json(200, {"object": "list", "data": [{"id": "fake-model", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
            wire = WIRES.get(self.path.split("?")[0])
            if wire is None:
                return self._json(404, {"error": {"type": "not_found_error", "message": "no such route"}})
            said = wire[0](body)
            server.bodies.append(body)
            server.conversations.append(said)
            if server.fail_with is not None:
                error = {"type": "api_error", "message": f"planted {server.fail_with}"}
                return self._json(server.fail_with, {"type": "error", "error": error})
            if body.get("stream") is True and said.tools and server.cuts:
                server.cuts -= 1
                self.close_connection = True
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.end_headers()
                return None
            if body.get("stream") is not True:
                return self._json(200, _whole(self.path, said))
            return self._stream(said, wire[1](said))

        def _stream(self, said: Conversation, events: Iterator[dict[str, Any]]) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            try:
                # After the last mark: some CLIs join an unanswered message with the next one.
                last = said.users[-1].rpartition("MARK-")[2] if said.users else ""
                if "SLOW" in last and not said.ends_with_tool_result:
                    self._wait()
                for event in events:
                    name = f"event: {event['type']}\n" if "type" in event else ""
                    self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
                if "/chat/" in self.path:
                    self.wfile.write(b"data: [DONE]\n\n")
                self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                pass
            self.close_connection = True

        def _wait(self) -> None:
            """Comments keep the stream open: CLIs with an idle watchdog stay."""
            server.slow.set()
            for _ in range(SLOW_SECONDS * 5):
                self.wfile.write(b": still thinking\n\n")
                self.wfile.flush()
                if server.stopping.wait(0.2):
                    return

        def _json(self, status: int, value: Any) -> None:
            data = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _whole(path: str, said: Conversation) -> dict[str, Any]:
    text, call = said.answer(), said.tool_call()
    if "/messages" in path:
        # Claude asks once more like this if a stream was cut, also for a call of a tool.
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if call:
            number = f"toolu_{time.time_ns()}"
            content = [{"type": "tool_use", "id": number, "name": call[0], "input": json.loads(call[1])}]
        usage = {"input_tokens": 11, "output_tokens": 7}
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "fake-model"}
        reason = "tool_use" if call else "end_turn"
        return {**head, "content": content, "stop_reason": reason, "usage": usage}
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake-model",
        "choices": choices,
    }
