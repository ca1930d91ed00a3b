"""Follows the `session/update` notifications of an agent: what it says, which tools it calls, what it reads.

Between `session/load` and `began`, the agent shows the old conversation; of that only the first message is
kept.
"""

from __future__ import annotations

from typing import Any

from lastgood.worker.job import FailureCode
from lastgood.worker.runtimes.acp_presets import AcpPreset
from lastgood.worker.runtimes.acp_sessions import SessionName
from lastgood.worker.runtimes.record import RunRecord
from lastgood.worker.runtimes.tool_rules import CliToolCall, ToolGate

TEXT_CHARACTERS = 2_000
_IGNORED = frozenset(
    {"plan", "usage_update", "available_commands_update", "current_mode_update", "config_option_update"}
)


class AcpUpdates:
    def __init__(self, record: RunRecord, gate: ToolGate, preset: AcpPreset) -> None:
        self._record, self._gate, self._preset = record, gate, preset
        self._name: SessionName | None = None
        self._calls: dict[str, CliToolCall] = {}
        self._asked: set[str] = set()
        self._said: list[tuple[str, str]] = []  # message id and text, since the last tool call
        self._unreported = ""
        self._thought = ""
        self._replay_begun = False
        self.first_message = ""
        self.active_run: str | None = None
        self.messages_read: set[str] = set()

    @property
    def output(self) -> str:
        return "".join(text for _, text in self._said).strip()

    @property
    def last_message(self) -> str:
        last = self._said[-1][0] if self._said else ""
        return "".join(text for number, text in self._said if number == last)

    def began(self, name: SessionName) -> None:
        """From now on updates belong to the new turn."""
        self._name = name

    def asked(self, update: dict[str, Any]) -> CliToolCall:
        """The call that an agent asks about; its question may say less than its announcement."""
        asked = self._preset.tool_call(update)
        self._asked.add(asked.id)
        return self._calls.get(asked.id, asked)

    async def notified(self, method: str, params: dict[str, Any]) -> None:
        update = params.get("update")
        if method != "session/update" or not isinstance(update, dict):
            await self._record.unknown({"method": method, "params": params})
        elif self._name is None:
            self._replayed(update)
        else:
            # Pinned only now: an agent may forget a session that was never prompted.
            await self._record.pin(str(self._name))
            await self._happened(update)

    def _replayed(self, update: dict[str, Any]) -> None:
        is_user = update.get("sessionUpdate") == "user_message_chunk"
        if is_user and not self._replay_begun:
            self.first_message += _text_in(update)
        elif self.first_message:
            self._replay_begun = True

    async def _happened(self, update: dict[str, Any]) -> None:
        match update.get("sessionUpdate"):
            case "agent_message_chunk":
                await self._spoke(str(update.get("messageId", "")), _text_in(update))
            case "agent_thought_chunk":
                self._thought += _text_in(update)
            case "tool_call":
                await self._called(update)
            case "tool_call_update":
                await self._tool_ended(update)
            case "user_message_chunk":
                self.messages_read.add(str(update.get("messageId")))
            case "session_info_update":
                self._run_changed(update)
            case str() as kind if kind in _IGNORED:
                pass
            case _:
                await self._record.unknown(update)

    async def _spoke(self, message: str, text: str) -> None:
        self._said.append((message, text))
        self._unreported += text
        if len(self._unreported) >= TEXT_CHARACTERS:
            await self.flush()

    async def flush(self) -> None:
        thought, self._thought = self._thought, ""
        text, self._unreported = self._unreported, ""
        await self._record.thinking(thought)
        await self._record.text(text)

    async def _called(self, update: dict[str, Any]) -> None:
        await self.flush()
        self._said.clear()
        call = self._preset.tool_call(update)
        self._calls[call.id] = call
        await self._record.tool_use(call.tool, call.input, call.id)
        await self._tool_ended(update)

    async def _tool_ended(self, update: dict[str, Any]) -> None:
        status = update.get("status")
        if status not in ("completed", "failed"):
            return
        number = str(update.get("toolCallId", ""))
        call = self._calls.get(number) or self._preset.tool_call(update)
        if status == "completed" and number not in self._asked and not self._gate.allows(call):
            message = (
                f"The agent ran {call.tool!r} without asking, and the rules do not allow it: {call.input}"
            )
            raise self._record.failed(FailureCode.UNENFORCEABLE, message)
        await self._record.tool_result(call.tool, _output_in(update), number)

    def _run_changed(self, update: dict[str, Any]) -> None:
        meta = update.get("_meta")
        goose = meta.get("goose") if isinstance(meta, dict) else None
        if isinstance(goose, dict) and "activeRunId" in goose:
            run = goose["activeRunId"]
            self.active_run = run if isinstance(run, str) else None


def _text_in(update: dict[str, Any]) -> str:
    content = update.get("content")
    text = content.get("text") if isinstance(content, dict) else None
    return text if isinstance(text, str) else ""


def _output_in(update: dict[str, Any]) -> str:
    parts = update.get("content")
    texts = [_text_in(part) for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n".join(filter(None, texts)) or str(update.get("rawOutput") or "")
