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
OWN_LIST = "an agent that is given a task has a list of its own"

LIFECYCLE = Section(
    "lifecycle",
    "the lifecycle of a toolset",
    {
        "profile": Key(Text(("resilient", "strict", "best-effort")), "defaults for the rest"),
        "required": Key(FLAG, "whether the agent needs it"),
        "startup_timeout": Key(Span(), "how long it may take to start"),
        "call_timeout": Key(Span(), "how long a call may take"),
        "restart": Key(Text(("never", "on_failure", "always")), "when it is started again"),
        "max_restarts": Key(Whole(least=-1), "how often; -1: without end"),
        "backoff": Key(
            Section(
                "backoff",
                "the wait between restarts",
                {
                    "initial": Key(Span(), "the first wait"),
                    "max": Key(Span(), "the longest wait"),
                    "multiplier": Key(Number(least=0), "how waits grow"),
                    "jitter": Key(Number(least=0, most=1), "how much of a wait is chance"),
                },
            ),
            "the wait between restarts",
        ),
    },
)
REMOTE = Section(
    "remote",
    "a remote server",
    {
        "url": Key(TEXT, "its address", required=True),
        "transport_type": Key(TEXT, "how it is spoken to: `streamable` or `sse`"),
        "headers": Key(TEXT_MAP, "headers that are sent"),
        "oauth": Key(
            Section(
                "oauth",
                "OAuth",
                {
                    "clientId": Key(TEXT, "the client's id"),
                    "clientSecret": Key(TEXT, "the client's secret"),
                    "callbackPort": Key(Whole(least=1, most=65535), "the port of the callback"),
                    "scopes": Key(TEXTS, "what is asked for"),
                    "callbackRedirectURL": Key(TEXT, "where the browser is sent"),
                },
            ),
            "how to sign in",
            "sign-in is not supported; send a token in `headers`",
        ),
    },
)
API_CONFIG = Section(
    "api_config",
    "an API call",
    {
        "name": Key(TEXT, "the name of the tool", required=True),
        "instruction": Key(TEXT, "how it is used"),
        "endpoint": Key(TEXT, "the address", required=True),
        "method": Key(Text(("GET", "POST", "PUT", "PATCH", "DELETE")), "the method", required=True),
        "headers": Key(TEXT_MAP, "headers that are sent"),
        "args": Key(Anything(mapping=True), "its arguments"),
        "required": Key(TEXTS, "arguments that must be given"),
        "output_schema": Key(Anything(mapping=True), "the shape of the answer"),
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
            "the shape of the message",
        ),
        "url": Key(TEXT, "where it is sent", required=True),
        "headers": Key(TEXT_MAP, "headers that are sent"),
        "chat_id": Key(TEXT, "the chat it goes to"),
    },
)
SANDBOX = Section(
    "sandbox",
    "a sandbox",
    {
        "image": Key(TEXT, "the image of its container"),
        "paths": Key(TEXTS, "folders that it sees", required=True),
    },
)

# -- toolsets ------------------------------------------------------------------------------

_SCRIPT = Section(
    "script",
    "a script",
    {
        "cmd": Key(TEXT, "the command", required=True),
        "description": Key(TEXT, "what it does; the model reads it"),
        "args": Key(Anything(mapping=True), "its arguments, as properties of a JSON schema"),
        "required": Key(TEXTS, "arguments that must be given"),
        "env": Key(TEXT_MAP, "variables it gets"),
        "working_dir": Key(TEXT, "where it runs"),
    },
)
_POST_EDIT = Section(
    "post_edit",
    "a command after an edit",
    {"path": Key(TEXT, "which files", required=True), "cmd": Key(TEXT, "the command", required=True)},
)
_ALL = "every tool is offered from the start"
_KEYS = {
    "type": Key(TEXT, "which tools", required=True),
    "tools": Key(TEXTS, "only these tools of it"),
    "instruction": Key(TEXT, "how they are to be used"),
    "toon": Key(TEXT, "tools whose results are shortened", "results are passed on as they are"),
    "model": Key(TEXT, "the model that reads their results", "the agent's own model reads them"),
    "defer": Key(Either((FLAG, TEXTS)), "tools that are found only when they are looked for", _ALL),
    "readonly": Key(
        FLAG, "only tools that change nothing", "tools that change things stay; set `readonly` on the agent"
    ),
    "env": Key(TEXT_MAP, "variables that commands get"),
    "shell": Key(MapOf(_SCRIPT, least=1), "scripts, by the name of their tool"),
    "post_edit": Key(ListOf(_POST_EDIT), "commands that follow an edit"),
    "ignore_vcs": Key(FLAG, "whether files that git ignores are left out"),
    "allow_list": Key(TEXTS, "the only folders that are open to it"),
    "deny_list": Key(TEXTS, "folders that are closed to it"),
    "shared": Key(FLAG, "whether agents share one list", OWN_LIST),
    "timeout": Key(Whole(least=1), "seconds that a command or a request may take"),
    "repeatable": Key(
        FLAG, "whether running a command twice does no harm; then it is run again after a crash"
    ),
    "headers": Key(TEXT_MAP, "headers that are sent"),
    "allowed_domains": Key(TEXTS, "the only hosts that may be asked"),
    "blocked_domains": Key(TEXTS, "hosts that may not be asked"),
    "allow_private_ips": Key(FLAG, "whether hosts of private networks may be asked"),
    "escape_html": Key(FLAG, "whether <, > and & are escaped", "they are passed on as they are"),
    "sudo_askpass": Key(FLAG, "whether a person is asked for sudo's password", "nobody is asked; sudo fails"),
    "safer": Key(FLAG, "whether commands are judged first", "permissions and safety decide alone"),
    "safer_judge_model": Key(TEXT, "the model that judges commands", "permissions and safety decide alone"),
    "sandbox": Key(SANDBOX, "a container for commands", "commands run on this machine, not in a container"),
    "command": Key(TEXT, "the command that starts the server"),
    "args": Key(TEXTS, "its arguments"),
    "ref": Key(TEXT, "`docker:NAME`, or a name of `mcps` or `rag`"),
    "remote": Key(REMOTE, "a server somewhere else"),
    "config": Key(Anything(), "what the server is told", "it is not passed on"),
    "version": Key(TEXT, "the package that is installed", "install the server yourself"),
    "name": Key(TEXT, "how it is called"),
    "working_dir": Key(TEXT, "where the server runs"),
    "lifecycle": Key(LIFECYCLE, "how the server is looked after"),
    "file_types": Key(TEXTS, "the endings of files it is for"),
    "path": Key(TEXT, "the file it keeps things in"),
    "url": Key(TEXT, "its address"),
    "api_config": Key(API_CONFIG, "the call"),
    "webhook_config": Key(WEBHOOK_CONFIG, "where it is sent"),
    "rag_config": Key(RAG_CONFIG, "what is searched"),
    "models": Key(ListOf(TEXT, least=1), "models that may be picked"),
    "recall": Key(FLAG, "whether the agent is told when a job is done"),
    "allowed_servers": Key(TEXTS, "the only servers on offer"),
    "blocked_servers": Key(TEXTS, "servers that are not on offer"),
    "max_output_bytes": Key(_COUNT, "the longest answer"),
    "env_file": Key(
        ListOf(TEXT, or_one=True), "files with variables", "set them where Lastgood runs", until=1
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
        "script": Variant("commands with a name of their own", ("shell", *_RUNS), needs=("shell",)),
        "filesystem": Variant("reads, writes and searches files", (*_FILES, "ignore_vcs")),
        "fetch": Variant(
            "reads web pages",
            ("timeout", "headers", "allowed_domains", "blocked_domains", "allow_private_ips", "escape_html"),
            not_together=("allowed_domains", "blocked_domains"),
        ),
        "think": Variant("a place to think"),
        "todo": Variant("a list of things to do", ("shared",)),
        "mcp": Variant("tools of an MCP server", (*_MCP_KEYS, "env_file"), exactly_one=_ONE_SOURCE),
        "mcp_catalog": Variant("servers to choose from", ("allowed_servers", "blocked_servers"), _WITHOUT),
        "memory": Variant("remembers across sessions", ("path",), _WITHOUT),
        "tasks": Variant("a list of tasks in a file", ("path",), _WITHOUT),
        "file": Variant("edits one file at a time", _FILES, _WITHOUT),
        "background_jobs": Variant("runs commands beside the turn", ("env", "recall"), _WITHOUT),
        "plan": Variant("a plan that agents share", (), _WITHOUT),
        "session_plan": Variant("a plan of one session", (), _WITHOUT),
        "session_context": Variant("looks at the session itself", (), _WITHOUT),
        "environment": Variant("looks at the machine", (), _WITHOUT),
        "git": Variant("looks at git", (), _WITHOUT),
        "api": Variant(
            "one call of an API",
            ("api_config", "timeout", "allow_private_ips"),
            _WITHOUT,
            needs=("api_config",),
        ),
        "openapi": Variant(
            "an API by its description",
            ("url", "headers", "timeout", "allow_private_ips", "max_output_bytes"),
            _WITHOUT,
            needs=("url",),
        ),
        "a2a": Variant(
            "another agent", ("url", "headers", "name", "allow_private_ips"), _WITHOUT, needs=("url",)
        ),
        "lsp": Variant("a language server", (*_SERVER, "file_types"), _WITHOUT, needs=("command",)),
        "open_url": Variant("opens an address for a person", ("url", "name"), _WITHOUT, needs=("url",)),
        "user_prompt": Variant("asks a person", (), _WITHOUT),
        "model_picker": Variant("changes the model", ("models",), _WITHOUT, needs=("models",)),
        "background_agents": Variant("runs agents beside the turn", (), _WITHOUT),
        "scheduler": Variant("does things later", (), _WITHOUT),
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
