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
from lastgood.agents.schema.models import MODEL, PROVIDER
from lastgood.agents.schema.rag import RAG
from lastgood.agents.schema.toolsets import MCP, OWN_LIST, TOOLSET

_COUNT = Whole(least=0)

BUDGET = Section(
    "budget",
    "a budget",
    {
        "max_cost": Key(Number(least=0), "dollars"),
        "max_tokens": Key(_COUNT, "tokens, read and written"),
        "max_time": Key(Span(), "time spent working"),
    },
)
CACHE = Section(
    "cache",
    "a response cache",
    {
        "enabled": Key(FLAG, "whether answers are kept"),
        "case_sensitive": Key(FLAG, "whether case makes a question another one"),
        "trim_spaces": Key(FLAG, "whether outer spaces are left out of the comparison"),
        "path": Key(TEXT, "the file that answers are kept in"),
    },
)
AGENT_ROUTING = Section(
    "agent routing",
    "the routing of an agent",
    {
        "allowed_agents": Key(TEXTS, "agents that a hook may choose", required=True),
        "default_agent": Key(TEXT, "the agent that is chosen in doubt"),
    },
)
SKILL = Section(
    "skill",
    "a skill",
    {
        "name": Key(TEXT, "its name", required=True),
        "description": Key(TEXT, "when it applies", required=True),
        "instructions": Key(TEXT, "what to do", required=True),
        "context": Key(Text(("fork",)), "`fork`: it runs as an agent of its own"),
        "model": Key(TEXT, "the model it runs on"),
        "allowed_tools": Key(TEXTS, "the tools it may use"),
        "toolsets": Key(TEXTS, "toolsets of the file that it gets beside"),
    },
)
SKILLS = Either((FLAG, ListOf(Either((SKILL, TEXT)))))


# -- agents ----------------------------------------------------------------------------------

COMMAND = Section(
    "command",
    "a command",
    {
        "description": Key(TEXT, "what it is for"),
        "instruction": Key(TEXT, "what is said to the agent"),
        "agent": Key(TEXT, "the agent that it is said to"),
        "url": Key(TEXT, "an address to open instead", "nothing is opened"),
    },
)
_COMMAND_MAP = MapOf(Either((COMMAND, TEXT)))
COMMANDS = Either((_COMMAND_MAP, ListOf(_COMMAND_MAP)))
FALLBACK = Section(
    "fallback",
    "a fallback",
    {
        "models": Key(TEXTS, "models that are asked in turn when the agent's own gives no answer"),
        "retries": Key(Whole(least=-1), "how often one model is asked again; 0: 2 times, -1: never"),
        "cooldown": Key(Span(), "how long a model that has too much to do is left alone"),
    },
)
HARNESS = Section(
    "harness",
    "a harness",
    {
        "type": Key(
            Text(("claude-code", "codex", "goose", "opencode", "pi", "acp", "command")),
            "which program; the agent runs on the one runtime that offers it, or on the one it is bound to",
            required=True,
        ),
        "model": Key(TEXT, "the model it uses", "the program chooses its model"),
        "effort": Key(
            Text(("low", "medium", "high", "xhigh", "max")), "how hard it thinks", "it decides itself"
        ),
        "agent": Key(TEXT, "which of its agents", "it decides itself"),
        "thinking": Key(FLAG, "whether its thoughts are shown", "they are not"),
    },
)
STRUCTURED_OUTPUT = Section(
    "structured_output",
    "structured output",
    {
        "name": Key(TEXT, "the name of the schema", required=True),
        "description": Key(TEXT, "what it describes"),
        "schema": Key(Anything(mapping=True), "the JSON schema that answers have", required=True),
        "strict": Key(FLAG, "whether the provider makes sure of it"),
        "mode": Key(
            Text(("native", "tool")), "`native`: the provider is asked for it; `tool` is not there yet"
        ),
    },
)
PERMISSIONS = Section(
    "permissions",
    "permissions",
    {
        "allow": Key(TEXTS, "tool calls that run without asking"),
        "ask": Key(TEXTS, "tool calls that a person is asked about"),
        "deny": Key(TEXTS, "tool calls that never run"),
    },
)
_MEMORY = Section("memory", "a memory", {"path": Key(TEXT, "the file it is kept in", required=True)})
_TODO = Section("todo", "a todo list", {"shared": Key(FLAG, "whether agents share one list", OWN_LIST)})
_NO_SUMMARY = "no conversation is summarized"
SAFETY = Text(("strict", "balanced", "restricted", "autonomous"))
AGENT = Section(
    "agent",
    "an agent (agents.NAME)",
    {
        "model": Key(TEXT, "a name of `models`, provider/model, several of them with commas, or `auto`"),
        "description": Key(TEXT, "what it is for; other agents choose by it"),
        "instruction": Key(ListOf(TEXT, or_one=True), "what it is told first, in every turn"),
        "instruction_file": Key(ListOf(TEXT, or_one=True), "files beside this one that hold the instruction"),
        "welcome_message": Key(TEXT, "what a person is greeted with"),
        "toolsets": Key(ListOf(TOOLSET), "its tools"),
        "use_toolsets": Key(TEXTS, "names of `toolsets` that it has, too"),
        "sub_agents": Key(TEXTS, "agents that it gives tasks to"),
        "handoffs": Key(TEXTS, "agents that it hands the conversation to"),
        "fallback": Key(FALLBACK, "what is asked when its model gives no answer"),
        "commands": Key(COMMANDS, "prompts with a name"),
        "use_commands": Key(TEXTS, "names of `commands` that it has, too"),
        "structured_output": Key(STRUCTURED_OUTPUT, "the shape of its answers"),
        "add_date": Key(FLAG, "whether it is told the date"),
        "add_environment_info": Key(FLAG, "whether it is told where it runs"),
        "add_prompt_files": Key(TEXTS, "files of the working directory that are added to the instruction"),
        "max_iterations": Key(Whole(least=0), "how often its model is asked in one turn; 0: 50 times"),
        "max_consecutive_tool_calls": Key(
            Whole(least=0), "how often it may make the same calls in a row; 0: 5 times"
        ),
        "max_tool_result_tokens": Key(Whole(least=-1), "the longest result of a tool"),
        "max_old_tool_call_tokens": Key(Whole(least=-1), "how much of old results it is shown"),
        "num_history_items": Key(Whole(least=0), "how many messages it is shown; 0: all"),
        "readonly": Key(FLAG, "whether it has only tools that change nothing"),
        "safety": Key(SAFETY, "what happens to tool calls that no rule speaks about"),
        "harness": Key(HARNESS, "the program that it runs in, on a runtime"),
        "hooks": Key(HOOKS, "commands around what it does"),
        "force_handoff": Key(TEXT, "who goes on after it", "the conversation is not handed over by itself"),
        "routing": Key(AGENT_ROUTING, "agents that hooks may choose", "no hook chooses an agent"),
        "code_mode_tools": Key(FLAG, "whether it calls tools by writing code", "it calls them one by one"),
        "skills": Key(SKILLS, "skills it may use", "it runs without skills"),
        "use_skills": Key(TEXTS, "names of `skills` that it has, too", "it runs without skills"),
        "rag": Key(TEXTS, "names of `rag` that it may search", "it runs without these documents"),
        "cache": Key(CACHE, "whether answers are kept", "every question goes to the model"),
        "add_prompt_files_depth": Key(
            Whole(least=0), "how deep prompt files are listed", "they are not listed"
        ),
        "add_description_parameter": Key(FLAG, "whether it says why it calls a tool", "it does not say why"),
        "redact_secrets": Key(
            FLAG,
            "whether secrets in tool calls are hidden",
            "secrets in arguments and results are not looked for",
        ),
        "session_compaction": Key(FLAG, "whether long conversations are summarized", _NO_SUMMARY),
        "compaction_threshold": Key(Number(least=0, most=1, above=True), "when they are", _NO_SUMMARY),
        "compaction_model": Key(TEXT, "the model that summarizes", _NO_SUMMARY),
        "budgets": Key(
            TEXTS, "names of `budgets` that it spends from", "nothing stops it when they are spent"
        ),
        "name": Key(TEXT, "its name", until=0, instead="the name it has under `agents`"),
        "think": Key(FLAG, "whether it has a place to think", until=0, instead="toolsets: [{type: think}]"),
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
        "author": Key(TEXT, "who made it"),
        "license": Key(TEXT, "under which license"),
        "description": Key(TEXT, "what it is"),
        "readme": Key(TEXT, "more about it"),
        "version": Key(TEXT, "its own version"),
        "tags": Key(TEXTS, "words to find it by"),
    },
)
RUNTIME = Section(
    "runtime",
    "the runtime",
    {
        "safety": Key(
            SAFETY, "what happens to tool calls that no rule speaks about, unless an agent says otherwise"
        ),
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
            "the agents; `root`, or else the first, is asked",
            required=True,
        ),
        "models": Key(MapOf(MODEL, most=MOST_MODELS), "models, by the name that agents use"),
        "providers": Key(MapOf(PROVIDER), "who serves models, beside the known ones"),
        "toolsets": Key(MapOf(TOOLSET), "toolsets that several agents use"),
        "mcps": Key(MapOf(MCP), "MCP servers that several toolsets use"),
        "commands": Key(MapOf(COMMANDS), "groups of commands that several agents use"),
        "permissions": Key(PERMISSIONS, "which tool calls run, which are asked about, which never run"),
        "runtime": Key(RUNTIME, "how the agents are run"),
        "rag": Key(MapOf(RAG), "documents to search", "no documents are searched"),
        "skills": Key(MapOf(SKILLS), "skills that several agents use", "agents run without skills"),
        "budget": Key(BUDGET, "what a run may cost", "nothing stops a run that costs more"),
        "budgets": Key(MapOf(BUDGET), "what agents may spend", "nothing stops an agent that spends more"),
        "flavors": Key(MapOf(Anything()), "variants of the file", "the file is used as it stands"),
        "evaluators": Key(MapOf(EVALUATOR), "what hooks ask", "nothing is evaluated"),
        "env": Key(TEXT_MAP, "variables", "set them where Lastgood runs", until=1),
    },
)
