"""Request bodies of the session API."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from lastgood.core.limits import RULE_CHARACTERS, RULES, check_rules
from lastgood.core.session_rules import WantedRules
from lastgood.errors import InvalidRequest
from lastgood.model.agents import Safety
from lastgood.model.attempts import After
from lastgood.model.ids import TurnId
from lastgood.model.messages import Message
from lastgood.surfaces.http.body_parser import Body, StrictModel
from lastgood.surfaces.http.message_schemas import ChatMessage, ContentPart, message_of

MOST_MESSAGES = 1000
MOST_IDS = 100

Id = Annotated[str, Field(min_length=1, max_length=255)]
Name = Annotated[str, Field(min_length=1, max_length=2048)]
Rule = Annotated[str, Field(min_length=1, max_length=RULE_CHARACTERS)]
#: docker-agent's older words for the modes, which its clients may have stored.
_LEGACY = {"unsafe": "autonomous", "safer": "balanced", "safe-auto": "balanced"}
_MEANT = ("permissions", "safety", "safety_policy")
#: Comparing names is slow, and a longer one is not like any of these.
_LONGEST_LIKE = 20
Mode = Literal["strict", "balanced", "restricted", "autonomous", "unsafe", "safer", "safe-auto"]


class ApiMessage(ChatMessage):
    """A message in OpenAI's format; without a role, or with an empty one, it is the user's. `multi_content`
    is docker-agent's field.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"] = "user"
    multi_content: list[ContentPart] | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_docker_agent(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if given.get("role") == "":
            given = {**given, "role": "user"}
        parts, text = given.get("multi_content"), given.get("content")
        if not isinstance(parts, list) or not parts or isinstance(text, list):
            return given
        own = [{"type": "text", "text": text}] if text else []
        parts = [_attachment(part) for part in parts]
        whole = parts if own and own[0] in parts else [*own, *parts]
        return {**given, "content": whole, "multi_content": parts}


def _attachment(part: Any) -> Any:
    """docker-agent's `document` as a text, an image or a file; anything else as it is."""
    match part:
        case {"type": "document", "document": {"name": str(name), "source": {"inline_text": str(text)}}} if (
            text
        ):
            return {"type": "text", "text": f"{name}:\n{text}"}
        case {
            "type": "document",
            "document": {"name": str(name), "mime_type": str(type), "source": {"inline_data": str(data)}},
        } if data:
            url = f"data:{type};base64,{data}"
            if type.startswith("image/"):
                return {"type": "image_url", "image_url": {"url": url}}
            return {"type": "file", "file": {"filename": name, "file_data": url}}
    return part


Messages = Annotated[list[ApiMessage], Field(min_length=1, max_length=MOST_MESSAGES)]


class _SaidBody(Body):
    """An empty `model` is docker-agent's way to name none."""

    messages: Messages
    model: Annotated[str, Field(max_length=2048)] | None = None
    user: str | None = Field(default=None, max_length=512)

    @field_validator("model")
    @classmethod
    def _named(cls, model: str | None) -> str | None:
        return model or None


class RunBody(_SaidBody):
    """Without `after`, the turn follows the head; `null` replaces every turn."""

    after: Id | None = Field(
        default=None,
        description="Turn to continue from; the commit replaces the turns that follow it. "
        "null replaces every turn. Omit it to append to the head.",
    )

    def where(self) -> After | None:
        """None: `after` was left out."""
        if "after" not in self.model_fields_set:
            return None
        return After(None if self.after is None else TurnId(self.after))


class TurnBody(RunBody):
    agent: Name | None = None
    wait: bool | None = None


class LaterBody(_SaidBody):
    """A steer or a follow-up."""

    agent: Name | None = None

    @model_validator(mode="after")
    def _check(self) -> LaterBody:
        if "after" in (self.model_extra or ()):
            raise ValueError("after is not supported here: steers and follow-ups always append to the head")
        return self


class ResumeBody(StrictModel):
    """A person's answer to a question."""

    confirmation: Literal[
        "approve",
        "approve-tool",
        "approve-session",
        "approve-safe",
        "approve-safer",
        "approve-balanced",
        "approve-autonomous",
        "reject",
        "repeat",
        "skip",
    ]
    reason: str | None = None
    question: Name | None = None
    tool_name: Name | None = None


class ElicitationBody(StrictModel):
    """A person's answer to a tool that needs information."""

    action: Literal["accept", "decline", "cancel"]
    content: dict[str, Any] | None = None
    elicitation_id: Name | None = None


class Rules(StrictModel):
    allow: list[Rule] | None = Field(default=None, max_length=RULES)
    ask: list[Rule] | None = Field(default=None, max_length=RULES)
    deny: list[Rule] | None = Field(default=None, max_length=RULES)

    @model_validator(mode="before")
    @classmethod
    def _limited(cls, given: Any) -> Any:
        """Counts the rules before any is parsed."""
        if isinstance(given, dict):
            check_rules({kind: rules for kind, rules in given.items() if isinstance(rules, list)})
        return given

    def wanted(self) -> WantedRules:
        lists = (self.allow, self.ask, self.deny)
        return WantedRules(*(None if rules is None else tuple(rules) for rules in lists))


class CreateBody(Body):
    agent: Name | None = None
    title: str | None = None
    model: Name | None = None
    working_dir: Name | None = None
    runtime: Name | None = None
    permissions: Rules | None = None
    safety: Mode | None = None
    safety_policy: Mode | Literal[""] | None = None
    metadata: dict[str, Any] | None = None
    tools_approved: bool | None = Field(
        default=None, description="The same as `safety: autonomous`, on servers that allow that mode"
    )
    agent_model_overrides: dict[str, Name] | None = Field(
        default=None, max_length=1, description="The same as `model`: a session has one model"
    )

    @property
    def asked_model(self) -> str | None:
        return self.model or next(iter((self.agent_model_overrides or {}).values()), None)

    def asked_safety(self, ceiling: Safety) -> Safety | None:
        asked = safety_of(self.safety or self.safety_policy)
        approved = self.tools_approved and ceiling is Safety.AUTONOMOUS
        return Safety.AUTONOMOUS if asked is None and approved else asked

    @model_validator(mode="after")
    def _check(self) -> CreateBody:
        """docker-agent's clients send unknown fields, which are ignored; but a misspelt rule list is
        rejected."""
        for name in self.model_extra or ():
            if len(name) <= _LONGEST_LIKE and (near := get_close_matches(name, _MEANT, cutoff=0.8)):
                raise ValueError(f"unknown field {name!r}; did you mean {near[0]!r}?")
        return self


class ForkBody(Body):
    turn: Id | None = None
    user_message_index: int | None = Field(default=None, ge=0, lt=2**31)


class RebindBody(Body):
    agent: Name


class ModelBody(Body):
    model: Name | None


class TitleBody(Body):
    title: str


class StarredBody(Body):
    starred: bool


class PermissionsBody(StrictModel):
    """`null` clears all lists, as an object without any does."""

    permissions: Rules | None


class SafetyBody(StrictModel):
    safety_policy: Mode | Literal[""] | None


class MetadataBody(Body):
    metadata: dict[str, Any]


class AppendBody(Body):
    """docker-agent wraps a message once more: `{"message": {"agent_name", "message": {…}}}`."""

    message: ApiMessage | None = None
    messages: Annotated[list[ApiMessage], Field(min_length=1, max_length=MOST_MESSAGES)] | None = None

    @field_validator("message", mode="before")
    @classmethod
    def _unwrapped(cls, given: Any) -> Any:
        inner = given.get("message") if isinstance(given, dict) else None
        return inner if isinstance(inner, dict) and "content" not in given else given

    def given(self) -> tuple[Message, ...]:
        if (self.message is None) == (self.messages is None):
            raise InvalidRequest("Send either `message` or `messages`")
        return messages_of([self.message] if self.message else self.messages or [])


class SummaryBody(Body):
    summary: str = Field(min_length=1)
    first_kept_entry: int | None = Field(default=None, ge=0, lt=2**31)


class TokensBody(Body):
    input_tokens: int = Field(ge=0, lt=2**62)
    output_tokens: int = Field(ge=0, lt=2**62)
    cost: float | None = Field(default=None, ge=0)


class IdsBody(Body):
    session_ids: list[Id] = Field(min_length=1, max_length=MOST_IDS)


class ContinueBody(Body):
    wait: bool | None = None


def messages_of(given: Sequence[ApiMessage]) -> tuple[Message, ...]:
    return tuple(map(message_of, given))


def safety_of(word: str | None) -> Safety | None:
    return Safety(_LEGACY.get(word, word)) if word else None
