"""What an agent is, once its source has been read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lastgood.model.hooks import HookSpec

#: In place of a model: the first whose key is set. The engine resolves it.
AUTO = "auto"


class OnUnknown(StrEnum):
    """What to do with a tool call that may or may not have happened before a crash."""

    REPEAT = "repeat"  # calling it twice does no harm
    ASK = "ask"  # a person decides
    FAIL = "fail"  # the result says that the outcome is unknown


class Effect(StrEnum):
    """What a tool call can do to the world."""

    SAFE = "safe"  # reads only; changes nothing outside the conversation
    DESTRUCTIVE = "destructive"  # changes things
    UNKNOWN = "unknown"  # depends on its arguments


class Safety(StrEnum):
    """What happens to a tool call that no rule matches."""

    STRICT = "strict"  # every call needs approval
    BALANCED = "balanced"  # safe ones run, others need approval
    RESTRICTED = "restricted"  # safe ones run, others are denied
    AUTONOMOUS = "autonomous"  # everything runs


@dataclass(frozen=True, slots=True)
class Permissions:
    """Rules `tool`, `glob*` or `tool:argument=glob:argument=glob`. Deny wins, then allow, then ask."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """A model, and requests that it is meant for."""

    model: str
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """How a model is called: provider, address and settings. A key is only named. `first_available` and
    `alloy` mean several models; they have no provider of their own.
    """

    provider: str
    model: str
    base_url: str | None = None
    token_key: str | None = None  # the name of the variable that holds the key
    keyless: bool = False  # called without a key, even if one is set: an untrusted file chose its address
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    parallel_tool_calls: bool | None = None
    thinking: str | int | None = None  # an effort, or a budget in tokens; 0 or "none": do not
    task_budget: int | None = None  # the token budget of a task, which the model is shown
    options: Mapping[str, Any] = field(default_factory=dict)  # provider_opts, as they are
    accepts: frozenset[str] | None = None  # kinds of attachments; None: all of them
    input_cost: float = 0.0  # per million tokens
    output_cost: float = 0.0
    cache_read_cost: float | None = None  # of input tokens that came from the cache; None: as input
    cache_write_cost: float | None = None  # of input tokens that went into it; None: as input
    title_model: str | None = None
    routes: tuple[ModelRoute, ...] = ()  # other models, for requests like these
    first_available: tuple[str, ...] = ()  # references: the first whose key is there
    alloy: tuple[str, ...] = ()  # references: each turn takes one of them

    @property
    def ref(self) -> str:
        return f"{self.provider}/{self.model}"

    @property
    def context_size(self) -> int | None:
        """Of its context window, in tokens, if its file states it."""
        size: int | None = self.options.get("context_size")
        return size


@dataclass(frozen=True, slots=True)
class Fallback:
    """The models to call if a model fails before its first chunk."""

    models: tuple[str, ...] = ()
    retries: int = 2  # of one model, after overload or a broken connection
    cooldown_seconds: float = 60.0  # how long a rate-limited model is skipped


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    name: str
    schema: Mapping[str, Any]
    description: str = ""
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """What a turn may spend. None: no limit. `agents`: whose spending counts; None: everybody's."""

    name: str = ""
    cost: float | None = None  # dollars
    tokens: int | None = None  # input and output
    seconds: float | None = None
    agents: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ToolsetSpec:
    """A toolset as its file asks for it. Nothing is started by reading it."""

    type: str
    tools: tuple[str, ...] | None = None  # None: all of them
    instruction: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    trusted: bool = True  # False: its file came from elsewhere, and gets no variables of this machine
    only: tuple[str, ...] = ()  # globs over the names of its tools, for a skill; none: all of them


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """A prompt with a name. `agent`: the agent that answers from then on. `instruction` is empty: what was
    typed after the name is the prompt. `url`: a page to open; nothing is sent then."""

    name: str
    instruction: str
    description: str = ""
    agent: str | None = None
    trusted: bool = True  # False: its file came from elsewhere, and gets no variables of this machine
    url: str = ""


@dataclass(frozen=True, slots=True)
class AgentOrigin:
    """Where a served agent comes from. `where` may name a path, which is for the operator."""

    kind: str  # file, URL, registry or built-in
    where: str
    changed_at: float | None = None  # of what was read last; None: it was never read, or never changes


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """An agent and its team: `members` holds every other agent of its file."""

    key: str
    name: str
    model: str  # provider/model, or a name in `models`
    digest: str  # of the definition: identifies the version that answered
    description: str = ""
    instruction: str = ""
    welcome_message: str = ""
    title_model: str | None = None
    toolsets: tuple[ToolsetSpec, ...] = ()
    sub_agents: tuple[str, ...] = ()
    handoffs: tuple[str, ...] = ()
    force_handoff: str | None = None  # the agent that continues in the same turn after this one
    fallback: Fallback = Fallback()
    commands: tuple[AgentCommand, ...] = ()
    structured_output: StructuredOutput | None = None
    permissions: Permissions = Permissions()
    safety: Safety | None = None  # only ever narrows what the server allows
    readonly: bool = False
    redact_secrets: bool = False  # text in the shape of a secret
    max_iterations: int = 50
    max_consecutive_tool_calls: int = 5  # the same calls, again and again
    max_tool_result_tokens: int = 0  # 0: our own limit
    max_old_tool_call_tokens: int = 0  # 0: old results stay whole
    num_history_items: int = 0  # 0: all of them
    add_date: bool = False
    add_environment_info: bool = False
    add_prompt_files: tuple[str, ...] = ()
    add_description_parameter: bool = False  # every tool call says what it is for
    hooks: tuple[HookSpec, ...] = ()
    budgets: tuple[Budget, ...] = ()  # all of the file: a turn may be the work of several agents
    harness: str | None = None  # the program that runs it, on a runtime; it calls models by itself
    harness_model: str | None = None  # the model that it is to call; None: it chooses
    harness_effort: str | None = None  # how much that model is to reason; None: it decides
    skill_toolsets: Mapping[str, ToolsetSpec] = field(default_factory=dict)  # what its skills may add
    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    members: Mapping[str, AgentSpec] = field(default_factory=dict)
    stale: str = ""  # why this is the last good definition and not the newest
    warnings: tuple[str, ...] = ()  # warnings about its file, each with its line

    @property
    def has_hooks(self) -> bool:
        """Its own, or those of an agent it may call on."""
        return bool(self.hooks) or any(member.hooks for member in self.members.values())

    @property
    def own_name(self) -> str:
        """As the file has it, also while the agent runs a skill: the name is then `AGENT/SKILL`."""
        return self.name.partition("/")[0]

    def member(self, name: str) -> AgentSpec | None:
        return self if name == self.name else self.members.get(name)
