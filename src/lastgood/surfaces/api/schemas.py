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
from lastgood.surfaces.http.message_schemas import ChatMessage, ContentPart, message_of
from lastgood.surfaces.http.parsing import Body, StrictModel

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
    """As in OpenAI's dialect; without a role it is the user's. `multi_content` is docker-agent's."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = "user"
    multi_content: list[ContentPart] | None = None

    @model_validator(mode="before")
    @classmethod
    def _take_parts(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("multi_content") and not given.get("content"):
            return {**given, "content": given["multi_content"]}
        return given


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
    """Without `after`, the turn follows the head. `null` means something else: it replaces every turn."""

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
    wait: bool = False


class LaterBody(_SaidBody):
    """A steer or a follow-up."""

    agent: Name | None = None

    @model_validator(mode="after")
    def _check(self) -> LaterBody:
        if "after" in (self.model_extra or ()):
            raise ValueError("after is not supported here: steers and follow-ups always append to the head")
        return self


class ResumeBody(StrictModel):
    """What a person says to a question."""

    confirmation: Literal["approve", "approve-tool", "approve-session", "reject", "repeat", "skip"]
    reason: str = ""
    question: Name | None = None
    tool_name: Name | None = None


class ElicitationBody(StrictModel):
    """What a person says to a tool that needs information."""

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

    @model_validator(mode="after")
    def _check(self) -> CreateBody:
        """docker-agent's clients send more than is used here. But what is nearly a rule was meant as one."""
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
    permissions: Rules


class SafetyBody(StrictModel):
    safety_policy: Mode | Literal[""] | None


class MetadataBody(Body):
    metadata: dict[str, Any]


class AppendBody(Body):
    message: ApiMessage | None = None
    messages: Annotated[list[ApiMessage], Field(min_length=1, max_length=MOST_MESSAGES)] | None = None

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
    wait: bool = False


def messages_of(given: Sequence[ApiMessage]) -> tuple[Message, ...]:
    return tuple(map(message_of, given))


def safety_of(word: str | None) -> Safety | None:
    return Safety(_LEGACY.get(word, word)) if word else None
