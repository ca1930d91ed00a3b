"""Toolsets: which there are, and which keys each of them has."""

from __future__ import annotations

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
    Typed,
    Variant,
    Whole,
)
from lastgood.agents.schema.rag import RAG_CONFIG

_COUNT = Whole(least=0)

LIFECYCLE = Section(
    "lifecycle",
    "the lifecycle of a toolset",
    {
        "profile": Key(Text(("resilient", "strict", "best-effort")), "defaults for the other keys"),
        "required": Key(FLAG, "whether the agent cannot run without it"),
        "startup_timeout": Key(Span(), "the timeout of its start"),
        "call_timeout": Key(Span(), "the timeout of a call"),
        "restart": Key(Text(("never", "on_failure", "always")), "when to restart it"),
        "max_restarts": Key(Whole(least=-1), "the maximum number of restarts; -1: unlimited"),
        "backoff": Key(
            Section(
                "backoff",
                "the delay between restarts",
                {
                    "initial": Key(Span(), "the first delay"),
                    "max": Key(Span(), "the longest delay"),
                    "multiplier": Key(Number(least=0), "the growth factor of delays"),
                    "jitter": Key(Number(least=0, most=1), "the random share of a delay"),
                },
            ),
            "the delay between restarts",
        ),
    },
)
REMOTE = Section(
    "remote",
    "a remote server",
    {
        "url": Key(TEXT, "its URL", required=True),
        "transport_type": Key(TEXT, "the transport: `streamable` or `sse`"),
        "headers": Key(TEXT_MAP, "request headers"),
        "oauth": Key(
            Section(
                "oauth",
                "OAuth",
                {
                    "clientId": Key(TEXT, "the client's id"),
                    "clientSecret": Key(TEXT, "the client's secret"),
                    "callbackPort": Key(Whole(least=1, most=65535), "the port of the callback"),
                    "scopes": Key(TEXTS, "the scopes to request"),
                    "callbackRedirectURL": Key(TEXT, "the redirect URL"),
                },
            ),
            "OAuth settings",
            "OAuth is not supported; send a token in `headers`",
        ),
    },
)
API_CONFIG = Section(
    "api_config",
    "an API call",
    {
        "name": Key(TEXT, "the name of the tool", required=True),
        "instruction": Key(TEXT, "how to use it"),
        "endpoint": Key(TEXT, "the URL", required=True),
        "method": Key(Text(("GET", "POST", "PUT", "PATCH", "DELETE")), "the HTTP method", required=True),
        "headers": Key(TEXT_MAP, "request headers"),
        "args": Key(Anything(mapping=True), "its arguments"),
        "required": Key(TEXTS, "required arguments"),
        "output_schema": Key(Anything(mapping=True), "the JSON schema of the response"),
    },
)
WEBHOOK_CONFIG = Section(
    "webhook_config",
    "a webhook",
    {
        "provider": Key(
            Text(
                (
                    "slack",
                    "discord",
                    "ifttt",
                    "telegram",
                    "mattermost",
                    "rocketchat",
                    "googlechat",
                    "teams",
                    "generic",
                )
            ),
            "the service, which decides the message format",
        ),
        "url": Key(TEXT, "the URL of the webhook", required=True),
        "headers": Key(TEXT_MAP, "request headers"),
        "chat_id": Key(TEXT, "the id of the chat"),
    },
)
SANDBOX = Section(
    "sandbox",
    "a sandbox",
    {
        "image": Key(TEXT, "the image of its container"),
        "paths": Key(TEXTS, "folders that it can access", required=True),
    },
)

# -- toolsets ------------------------------------------------------------------------------

_SCRIPT = Section(
    "script",
    "a script",
    {
        "cmd": Key(TEXT, "the command", required=True),
        "description": Key(TEXT, "what it does; the model reads it"),
        "args": Key(Anything(mapping=True), "its arguments, as the `properties` of a JSON schema"),
        "required": Key(TEXTS, "required arguments"),
        "env": Key(TEXT_MAP, "its environment variables"),
        "working_dir": Key(TEXT, "its working directory"),
    },
)
_POST_EDIT = Section(
    "post_edit",
    "a command to run after an edit",
    {
        "path": Key(TEXT, "a glob for the edited file", required=True),
        "cmd": Key(TEXT, "the command", required=True),
    },
)
_KEYS = {
    "type": Key(TEXT, "the type of the toolset", required=True),
    "tools": Key(TEXTS, "use only these tools of the toolset"),
    "instruction": Key(TEXT, "instructions for the model on how to use them"),
    "toon": Key(TEXT, "patterns of tools whose JSON results are converted to TOON, separated by commas"),
    "model": Key(TEXT, "the model that is called with their results, instead of the agent's"),
    "defer": Key(Either((FLAG, TEXTS)), "tools that the model must search for before it can call them"),
    "readonly": Key(FLAG, "use only its tools whose effect is `safe`"),
    "env": Key(TEXT_MAP, "environment variables of its commands"),
    "shell": Key(MapOf(_SCRIPT, least=1), "scripts, by tool name"),
    "post_edit": Key(ListOf(_POST_EDIT), "commands to run after an edit"),
    "ignore_vcs": Key(FLAG, "whether to skip files that git ignores"),
    "allow_list": Key(TEXTS, "the only folders that it may access"),
    "deny_list": Key(TEXTS, "folders that it may not access"),
    "shared": Key(FLAG, "whether agents with `shared: true` have one list, in the whole session"),
    "timeout": Key(Whole(least=1), "the timeout of a command or a request, in seconds"),
    "repeatable": Key(FLAG, "whether a command may safely run twice; if so, it is repeated after a crash"),
    "headers": Key(TEXT_MAP, "request headers"),
    "allowed_domains": Key(TEXTS, "the only hosts that it may request"),
    "blocked_domains": Key(TEXTS, "hosts that it may not request"),
    "allow_private_ips": Key(FLAG, "whether it may request private IP addresses"),
    "escape_html": Key(FLAG, "whether <, > and & are escaped in results with several URLs"),
    "sudo_askpass": Key(
        FLAG, "whether to ask the user for the sudo password", "sudo fails if it needs a password"
    ),
    "safer": Key(
        FLAG, "whether a model judges commands first", "only permissions and the safety mode decide"
    ),
    "safer_judge_model": Key(
        TEXT, "the model that judges commands", "only permissions and the safety mode decide"
    ),
    "sandbox": Key(SANDBOX, "a container for commands", "commands run on this machine, not in a container"),
    "command": Key(TEXT, "the command that starts the server"),
    "args": Key(TEXTS, "its arguments"),
    "ref": Key(TEXT, "`docker:NAME`, or a name of `mcps` or `rag`"),
    "remote": Key(REMOTE, "a remote server"),
    "config": Key(Anything(), "the configuration of the server; with `ref: docker:NAME`"),
    "version": Key(TEXT, "the package that has the command; named in the error if it is not installed"),
    "name": Key(TEXT, "its name"),
    "working_dir": Key(TEXT, "the working directory of the server"),
    "lifecycle": Key(LIFECYCLE, "timeouts and restarts of the server"),
    "file_types": Key(TEXTS, "the file extensions that it handles"),
    "path": Key(TEXT, "where it stores its data; of a memory its name, not a file"),
    "url": Key(TEXT, "its URL"),
    "api_config": Key(API_CONFIG, "the request"),
    "webhook_config": Key(WEBHOOK_CONFIG, "where to send it"),
    "rag_config": Key(RAG_CONFIG, "what to search"),
    "models": Key(ListOf(TEXT, least=1), "models to choose from"),
    "recall": Key(FLAG, "whether the agent is notified when a job has finished", "it must ask"),
    "allowed_servers": Key(TEXTS, "the only servers to choose from"),
    "blocked_servers": Key(TEXTS, "servers to exclude"),
    "max_output_bytes": Key(Whole(least=1), "the maximum length of a response"),
    "env_file": Key(
        ListOf(TEXT, or_one=True),
        "files with environment variables",
        "set them in the environment of Lastgood",
        until=1,
    ),
}
_SHARED = ("type", "tools", "instruction", "toon", "model", "defer", "readonly")
_TOOLSET = Section("toolset", "a toolset", _KEYS)
_WITHOUT = "the agent runs without these tools"
_RUNS = ("env", "timeout", "repeatable")
_FILES = ("post_edit", "allow_list", "deny_list")
_SERVER = ("command", "args", "env", "version", "working_dir", "lifecycle")
_ONE_SOURCE = ("command", "remote", "ref")
_MCP_KEYS = (*_SERVER, "ref", "remote", "config", "name", "allow_private_ips")
TOOLSET = Typed(
    _TOOLSET,
    _SHARED,
    {
        "shell": Variant(
            "runs commands", (*_RUNS, "sudo_askpass", "safer", "safer_judge_model", "sandbox", "env_file")
        ),
        "script": Variant("runs scripts, each as a tool of its own", ("shell", *_RUNS), needs=("shell",)),
        "filesystem": Variant("reads, writes and searches files", (*_FILES, "ignore_vcs")),
        "fetch": Variant(
            "reads web pages",
            ("timeout", "headers", "allowed_domains", "blocked_domains", "allow_private_ips", "escape_html"),
            not_together=("allowed_domains", "blocked_domains"),
        ),
        "think": Variant("lets the model write down its reasoning"),
        "todo": Variant("keeps a to-do list", ("shared",)),
        "mcp": Variant(
            "provides the tools of an MCP server", (*_MCP_KEYS, "env_file"), exactly_one=_ONE_SOURCE
        ),
        "mcp_catalog": Variant(
            "lets the agent add MCP servers from a catalog", ("allowed_servers", "blocked_servers"), _WITHOUT
        ),
        "memory": Variant("stores facts across sessions", ("path",)),
        "tasks": Variant("keeps a task list in a file", ("path",), _WITHOUT),
        "file": Variant("edits one file at a time", _FILES, _WITHOUT),
        "background_jobs": Variant("runs commands in the background", ("env", "recall")),
        "plan": Variant("keeps plans that agents share"),
        "session_plan": Variant("keeps a plan for the session"),
        "session_context": Variant("reads the session", (), _WITHOUT),
        "environment": Variant("reads facts about the machine", (), _WITHOUT),
        "git": Variant("reads git repositories", (), _WITHOUT),
        "api": Variant(
            "calls one API endpoint",
            ("api_config", "timeout", "allow_private_ips"),
            needs=("api_config",),
        ),
        "openapi": Variant(
            "calls an API described by OpenAPI",
            ("url", "headers", "timeout", "allow_private_ips", "max_output_bytes"),
            needs=("url",),
        ),
        "a2a": Variant(
            "calls a remote agent (A2A)",
            ("url", "headers", "name", "timeout", "allow_private_ips"),
            needs=("url",),
        ),
        "lsp": Variant("queries a language server", (*_SERVER, "file_types"), _WITHOUT, needs=("command",)),
        "open_url": Variant("asks the user to open a URL", ("url", "name"), needs=("url",)),
        "user_prompt": Variant("asks the user a question and waits for the answer"),
        "model_picker": Variant("changes the model", ("models",), needs=("models",)),
        "background_agents": Variant("runs agents in the background", (), _WITHOUT),
        "scheduler": Variant("schedules prompts", (), _WITHOUT),
        "rag": Variant(
            "searches documents", ("ref", "rag_config", "name"), _WITHOUT, exactly_one=("ref", "rag_config")
        ),
        "webhook": Variant("sends a message", ("webhook_config",), _WITHOUT, needs=("webhook_config",)),
    },
)
#: What `mcps.NAME` holds: a toolset that can only be of one type.
MCP = Typed(
    Section("mcp", "an MCP server (mcps.NAME)", _KEYS),
    _SHARED,
    {"mcp": Variant("an MCP server", _MCP_KEYS, exactly_one=_ONE_SOURCE)},
    implied="mcp",
)
