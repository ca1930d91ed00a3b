"""Turns an MCP result that asks for input into questions for a person, and the answers into the next call.

A server may ask for several things at once; a person is asked for one after the other. What the next call
needs (the server's state and the answers so far) is plain JSON, because it is stored with the question: the
call may be repeated by another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types

from lastgood.engine.mcp.tool_limits import sendable_bytes
from lastgood.engine.tools.tool import NeedsInput, ToolFailed
from lastgood.model.answers import Answer, AnswerAction

#: A server that asks again and again never ends its call.
MOST_ROUNDS = 20


def state_of(
    result: mcp_types.InputRequiredResult, before: Mapping[str, Any] | None, server: str
) -> dict[str, Any]:
    """Raises ToolFailed if the server asks for something else than an answer of a person."""
    rounds = (before or {}).get("rounds", 0) + 1
    if rounds > MOST_ROUNDS:
        raise ToolFailed(
            f"MCP server {server} asked for input {MOST_ROUNDS} times in one call, which is the limit"
        )
    requests = {}
    for id, request in (result.input_requests or {}).items():
        if not isinstance(request, mcp_types.ElicitRequest):
            raise ToolFailed(
                f"MCP server {server} asks for {request.method}, which Lastgood does not support"
            )
        requests[id] = _request(request.params)
        if sendable_bytes(requests[id]) is None:
            raise ToolFailed(f"MCP server {server} asks with a schema that is nested too deeply")
    return {
        "request_state": result.request_state,
        "requests": requests,
        "responses": {},
        "rounds": rounds,
    }


def _request(params: mcp_types.ElicitRequestParams) -> dict[str, Any]:
    if isinstance(params, mcp_types.ElicitRequestURLParams):
        return {"message": params.message, "url": params.url}
    return {"message": params.message, "schema": params.requested_schema}


def with_answer(state: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """The state after its first open question was answered."""
    response: dict[str, Any] = {"action": answer.action.value}
    if answer.action is AnswerAction.ACCEPT and answer.content is not None:
        response["content"] = dict(answer.content)
    return {**state, "responses": {**state["responses"], _open(state)[0]: response}}


def next_question(state: Mapping[str, Any], server: str) -> NeedsInput | None:
    """None: everything is answered."""
    waiting = _open(state)
    if not waiting:
        return None
    asked = state["requests"][waiting[0]]
    message = f"MCP server {server}: {asked['message']}"
    return NeedsInput(message, asked.get("schema"), url=asked.get("url"), state=state)


def responses_of(state: Mapping[str, Any]) -> dict[str, Any]:
    return {id: mcp_types.ElicitResult.model_validate(one) for id, one in state["responses"].items()}


def _open(state: Mapping[str, Any]) -> list[str]:
    return [id for id in state["requests"] if id not in state["responses"]]


async def decline_inline(context: Any, params: Any) -> mcp_types.ErrorData:
    """Older servers ask while their call runs. Such a question would die with the process, so it is
    declined."""
    return mcp_types.ErrorData(
        code=mcp_types.INVALID_REQUEST,
        message="Lastgood cannot ask a person during a call of this protocol version; it needs a server of "
        "the revision 2026-07-28",
    )
