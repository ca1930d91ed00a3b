"""The file as a whole, and its agents."""

from __future__ import annotations

from lastgood.agents.schema.hooks import EVALUATOR, HOOKS
from lastgood.agents.schema.kinds import (
    FLAG,
    TEXT,
    TEXT_MAP,
    TEXTS,
    Anything,
    Either,
    Key,
    ListOf,
    MapOf,
    Number,
    Section,
    Span,
    Text,
    Whole,
)
from lastgood.agents.schema.model_providers import MODEL, PROVIDER
from lastgood.agents.schema.rag import RAG
from lastgood.agents.schema.toolsets import MCP, TOOLSET

_COUNT = Whole(least=0)

BUDGET = Section(
    "budget",
    "a budget",
    {
        "max_cost": Key(Number(least=0), "dollars"),
        "max_tokens": Key(_COUNT, "input and output tokens"),
        "max_time": Key(Span(), "working time"),
    },
)
CACHE = Section(
    "cache",
    "a response cache",
    {
        "enabled": Key(FLAG, "whether responses are cached"),
        "case_sensitive": Key(FLAG, "whether the comparison of questions is case-sensitive"),
        "trim_spaces": Key(FLAG, "whether leading and trailing spaces are ignored"),
        "path": Key(TEXT, "the file of the cache"),
    },
)
AGENT_ROUTING = Section(
    "agent routing",
    "the routing of an agent",
    {
        "allowed_agents": Key(TEXTS, "agents that a hook may choose", required=True),
        "default_agent": Key(TEXT, "the agent used if no hook chooses one"),
    },
)
SKILL = Section(
    "skill",
    "a skill",
    {
        "name": Key(TEXT, "its name", required=True),
        "description": Key(TEXT, "when to use it", required=True),
        "instructions": Key(TEXT, "what to do", required=True),
        "context": Key(Text(("fork",)), "`fork`: it runs apart from the conversation"),
        "model": Key(TEXT, "the model it runs on; with `context: fork`"),
        "allowed_tools": Key(TEXTS, "globs of the agent's tools that it may use; with `context: fork`"),
        "toolsets": Key(TEXTS, "additional names of `toolsets`; with `context: fork`"),
    },
)
SKILLS = Either((FLAG, ListOf(Either((SKILL, TEXT)))))


# -- agents ----------------------------------------------------------------------------------

COMMAND = Section(
    "command",
    "a command",
    {
        "description": Key(TEXT, "what it is for"),
        "instruction": Key(TEXT, "the prompt; without one, the text after the command"),
        "agent": Key(TEXT, "the agent that answers from then on"),
        "url": Key(TEXT, "a page to open; nothing is sent. `{{session_id}}` is replaced"),
    },
)
_COMMAND_MAP = MapOf(Either((COMMAND, TEXT)))
COMMANDS = Either((_COMMAND_MAP, ListOf(_COMMAND_MAP)))
FALLBACK = Section(
    "fallback",
    "a fallback",
    {
        "models": Key(TEXTS, "models to try in this order if the agent's own model fails"),
        "retries": Key(Whole(least=-1), "retries per model; 0: 2 retries, -1: none"),
        "cooldown": Key(Span(), "how long to skip a model after it was overloaded"),
    },
)
HARNESS = Section(
    "harness",
    "a harness",
    {
        "type": Key(
            Text(("claude-code", "codex", "goose", "opencode", "pi", "acp", "command")),
            "the agent CLI; the agent runs on the one runtime that offers it, or on the one it is bound to",
            required=True,
        ),
        "model": Key(TEXT, "the model that claude-code, codex or command calls; default: its own choice"),
        "effort": Key(
            Text(("low", "medium", "high", "xhigh", "max")),
            "how much that model reasons; default: what the CLI decides",
        ),
        "agent": Key(TEXT, "the agent of the CLI", "the CLI decides"),
        "thinking": Key(FLAG, "whether to show its reasoning", "it is not shown"),
    },
)
STRUCTURED_OUTPUT = Section(
    "structured_output",
    "structured output",
    {
        "name": Key(TEXT, "the name of the schema", required=True),
        "description": Key(TEXT, "what it describes"),
        "schema": Key(Anything(mapping=True), "the JSON schema of every answer", required=True),
        "strict": Key(FLAG, "whether the provider enforces the schema"),
        "mode": Key(
            Text(("native", "tool")),
            "`native`: use the provider's structured output; `tool` is not supported yet",
        ),
    },
)
PERMISSIONS = Section(
    "permissions",
    "permissions",
    {
        "allow": Key(TEXTS, "tool calls that run without approval"),
        "ask": Key(TEXTS, "tool calls that need human approval"),
        "deny": Key(TEXTS, "tool calls that never run"),
    },
)
_MEMORY = Section("memory", "a memory", {"path": Key(TEXT, "the file of the memory", required=True)})
_TODO = Section("todo", "a todo list", {"shared": Key(FLAG, "whether agents share one list")})
_NO_SUMMARY = "no conversation is summarized"
SAFETY = Text(("strict", "balanced", "restricted", "autonomous"))
AGENT = Section(
    "agent",
    "an agent (agents.NAME)",
    {
        "model": Key(TEXT, "a name of `models`, provider/model, a comma-separated list of these, or `auto`"),
        "description": Key(TEXT, "what it is for; other agents delegate by it"),
        "instruction": Key(ListOf(TEXT, or_one=True), "the system prompt"),
        "instruction_file": Key(
            ListOf(TEXT, or_one=True), "files in the same folder that contain the system prompt"
        ),
        "welcome_message": Key(TEXT, "the greeting in a new chat"),
        "toolsets": Key(ListOf(TOOLSET), "its tools"),
        "use_toolsets": Key(TEXTS, "additional names of `toolsets`"),
        "sub_agents": Key(TEXTS, "agents that it can delegate tasks to"),
        "handoffs": Key(TEXTS, "agents that it can hand the conversation over to"),
        "fallback": Key(FALLBACK, "fallback models"),
        "commands": Key(COMMANDS, "named prompts"),
        "use_commands": Key(TEXTS, "additional names of `commands`"),
        "structured_output": Key(STRUCTURED_OUTPUT, "the JSON schema of its answers"),
        "add_date": Key(FLAG, "whether the system prompt contains the date"),
        "add_environment_info": Key(
            FLAG, "whether the system prompt describes the environment (working directory, system)"
        ),
        "add_prompt_files": Key(TEXTS, "files of the working directory to append to the system prompt"),
        "max_iterations": Key(Whole(least=0), "the maximum number of model calls in one turn; 0: 50"),
        "max_consecutive_tool_calls": Key(
            Whole(least=0), "the maximum number of identical consecutive tool calls; 0: 5"
        ),
        "max_tool_result_tokens": Key(Whole(least=-1), "the maximum length of a tool result, in tokens"),
        "max_old_tool_call_tokens": Key(
            Whole(least=-1), "how many tokens of old tool results stay in the prompt"
        ),
        "num_history_items": Key(
            Whole(least=0), "how many messages of the history are in the prompt; 0: all"
        ),
        "readonly": Key(FLAG, "whether it is limited to read-only tools"),
        "safety": Key(SAFETY, "the safety mode: how to handle tool calls that no permission rule covers"),
        "harness": Key(HARNESS, "the agent CLI that runs it on a remote runtime"),
        "hooks": Key(HOOKS, "hooks: commands that run at certain events"),
        "force_handoff": Key(TEXT, "the agent that always takes over after its final response"),
        "routing": Key(AGENT_ROUTING, "agents that hooks may choose", "no hook chooses an agent"),
        "code_mode_tools": Key(FLAG, "whether it calls tools by writing code", "it calls tools one by one"),
        "skills": Key(
            SKILLS,
            "its skills: `true` for all local ones, or a list of `local`, URLs, names and inline skills",
        ),
        "use_skills": Key(TEXTS, "additional names of `skills`"),
        "rag": Key(TEXTS, "names of `rag` to search", "it runs without these documents"),
        "cache": Key(CACHE, "whether responses are cached", "every request goes to the model"),
        "add_prompt_files_depth": Key(Whole(least=0), "how deep to list prompt files", "they are not listed"),
        "add_description_parameter": Key(FLAG, "whether every tool call states a reason"),
        "redact_secrets": Key(
            FLAG,
            "whether text in the shape of a secret is removed from prompts, arguments and results",
        ),
        "session_compaction": Key(FLAG, "whether long conversations are summarized", _NO_SUMMARY),
        "compaction_threshold": Key(
            Number(least=0, most=1, above=True),
            "the share of the context window that triggers it",
            _NO_SUMMARY,
        ),
        "compaction_model": Key(TEXT, "the model that summarizes", _NO_SUMMARY),
        "budgets": Key(TEXTS, "names of `budgets` that limit it"),
        "name": Key(TEXT, "its name", until=0, instead="agents.NAME"),
        "think": Key(FLAG, "whether it has the tool `think`", until=0, instead="toolsets: [{type: think}]"),
        "todo": Key(
            Either((FLAG, _TODO)), "whether it has a todo list", until=0, instead="toolsets: [{type: todo}]"
        ),
        "memory": Key(_MEMORY, "a memory", until=0, instead="toolsets: [{type: memory, path: …}]"),
    },
)

# -- the file --------------------------------------------------------------------------------

METADATA = Section(
    "metadata",
    "metadata",
    {
        "author": Key(TEXT, "the author"),
        "license": Key(TEXT, "the license"),
        "description": Key(TEXT, "what it is"),
        "readme": Key(TEXT, "more about it"),
        "version": Key(TEXT, "its own version"),
        "tags": Key(TEXTS, "search terms"),
    },
)
RUNTIME = Section(
    "runtime",
    "the runtime",
    {
        "safety": Key(SAFETY, "the default safety mode of the agents"),
        "sandbox": Key(FLAG, "whether it runs in a sandbox", "tools run on this machine, not in a sandbox"),
        "network_allowlist": Key(TEXTS, "hosts that a sandbox may reach", "there is no sandbox"),
    },
)
#: The newest version of the format that is known here.
NEWEST = 16
MOST_AGENTS = 256
MOST_MODELS = 1000
FILE = Section(
    "file",
    "the top of the file",
    {
        "version": Key(TEXT, f"the version of the format: 0 to {NEWEST}; without one: the newest"),
        "metadata": Key(METADATA, "about the file"),
        "agents": Key(
            MapOf(AGENT, least=1, most=MOST_AGENTS),
            "the agents; `root`, else the first one, answers",
            required=True,
        ),
        "models": Key(MapOf(MODEL, most=MOST_MODELS), "models, by the name that agents use"),
        "providers": Key(MapOf(PROVIDER), "additional model providers"),
        "toolsets": Key(MapOf(TOOLSET), "toolsets that several agents use"),
        "mcps": Key(MapOf(MCP), "MCP servers that several toolsets use"),
        "commands": Key(MapOf(COMMANDS), "groups of commands that several agents use"),
        "permissions": Key(PERMISSIONS, "which tool calls run, which need approval, which are denied"),
        "runtime": Key(RUNTIME, "runtime settings"),
        "rag": Key(MapOf(RAG), "documents to search", "no documents are searched"),
        "skills": Key(MapOf(SKILLS), "skills that several agents use"),
        "budget": Key(BUDGET, "what a turn may spend; checked before every model call"),
        "budgets": Key(MapOf(BUDGET), "budgets of a turn for the agents that name them"),
        "flavors": Key(MapOf(Anything()), "variants of the file", "variants are ignored"),
        "evaluators": Key(MapOf(EVALUATOR), "evaluators for hooks", "nothing is evaluated"),
        "env": Key(TEXT_MAP, "environment variables", "set them in the environment of Lastgood", until=1),
    },
)
