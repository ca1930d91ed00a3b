"""A hook: what an agent file runs when something happens in a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

#: How long a hook may take if its file does not say.
DEFAULT_SECONDS = 60.0


class HookEvent(StrEnum):
    """The events that can happen here. docker-agent has more; an agent file that uses them gets a warning."""

    TOOL_INPUT_TRANSFORM = "tool_input_transform"
    TOOL_GUARD = "tool_guard"
    PRE_TOOL_USE = "pre_tool_use"
    PERMISSION_REQUEST = "permission_request"
    ON_TOOL_APPROVAL_DECISION = "on_tool_approval_decision"
    TOOL_RESPONSE_TRANSFORM = "tool_response_transform"
    POST_TOOL_USE = "post_tool_use"
    SESSION_START = "session_start"
    USER_PROMPT_SUBMIT = "user_prompt_submit"
    USER_FOLLOWUP_SUBMIT = "user_followup_submit"
    USER_STEERING_MESSAGES_SUBMIT = "user_steering_messages_submit"
    TURN_START = "turn_start"
    BEFORE_LLM_CALL = "before_llm_call"
    AFTER_LLM_CALL = "after_llm_call"
    TURN_END = "turn_end"
    STOP = "stop"
    SUBAGENT_STOP = "subagent_stop"
    ON_AGENT_SWITCH = "on_agent_switch"
    ON_USER_INPUT = "on_user_input"
    ON_MAX_ITERATIONS = "on_max_iterations"
    ON_ERROR = "on_error"
    NOTIFICATION = "notification"
    SESSION_END = "session_end"


class HookKind(StrEnum):
    COMMAND = "command"
    BUILTIN = "builtin"
    MODEL = "model"


class OnHookError(StrEnum):
    """What follows from a hook that failed, where its event leaves the choice."""

    WARN = "warn"
    IGNORE = "ignore"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class HookSpec:
    """`command` is a command line, or the name of a built-in. `matcher` is a regular expression for names of
    tools; empty: all."""

    event: HookEvent
    kind: HookKind
    command: str = ""
    matcher: str = ""
    name: str = ""
    args: tuple[str, ...] = ()
    seconds: float = DEFAULT_SECONDS
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str = ""
    on_error: OnHookError = OnHookError.WARN
    strict_output: bool = False
    model: str = ""
    prompt: str = ""
    system_prompt: str = ""
    schema: str = ""

    @property
    def label(self) -> str:
        """For people: its name, or the first line of what it runs."""
        line = (self.command or self.model).strip().partition("\n")[0]
        return self.name or (line if len(line) <= 60 else f"{line[:59]}…")
