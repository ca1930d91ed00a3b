"""What is wrong in a file that is YAML: told at its line, with what was probably meant."""

import pytest

from lastgood.core.limits import RULE_CHARACTERS, RULES
from tests.agents.corpus import errors_of, findings_of, warnings_of

#: Each file has its mistakes marked with `# !` and words of what is said about them.
CASES = {
    "a key that is known elsewhere": """
agents:
  root:
    model: auto
    temperature: 1 # ! it belongs to a model (models.NAME) or a provider (providers.NAME)
    permissions: {} # ! it belongs to the top of the file
    tools: [shell] # ! did you mean 'toolsets'? ('tools' belongs to a toolset)
model: x # ! did you mean 'models'?
""",
    "a key in another spelling": """
agents:
  root:
    model: auto
    subAgents: [] # ! did you mean 'sub_agents'?
    add-date: true # ! did you mean 'add_date'?
    Instruction: x # ! did you mean 'instruction'?
    zzzzzzzz: 1 # ! unknown key 'zzzzzzzz'
""",
    "keys that were once": """
version: "3"
env: {A: b} # ! 'env' was removed in version 2; remove it
models:
  m: {type: openai, model: x} # ! use provider
agents:
  root:
    model: openai/x
    think: true # ! use toolsets: [{type: think}]
    todo: {shared: true} # ! removed in version 1
    memory: {path: x} # ! removed in version 1
""",
    "versions": """
version: "1.5" # ! expected a number from 0 to 16
agents:
  root: {model: auto}
""",
    "flags": """
agents:
  root:
    model: auto
    add_date: maybe # ! expected true or false, got 'maybe'
    readonly: "true" # ! expected true or false, got the string "true"
    add_environment_info: 1 # ! expected true or false, got '1'
    code_mode_tools: [true] # ! got a list
""",
    "numbers": """
models:
  m:
    provider: openai
    model: x
    temperature: 2.5 # ! 2.5 is out of range; expected at least 0 and at most 2
    top_p: warm # ! expected a number, got 'warm'
    max_tokens: 0 # ! at least 1
    frequency_penalty: .inf # ! expected a number
    presence_penalty: {} # ! expected a number, got a mapping
    compaction_threshold: 0 # ! more than 0 and at most 1
    thinking_budget: hihg # ! did you mean 'high'?
    cost: {input: -1} # ! at least 0
agents:
  root:
    model: m
    max_iterations: -1 # ! at least 0
    num_history_items: 2.5 # ! expected a whole number, got '2.5'
    max_consecutive_tool_calls: many # ! expected a whole number
    fallback:
      retries: -2 # ! at least -1
      cooldown: soon # ! expected a duration (90s, 1m30s, or a number of seconds), got 'soon'
  other:
    model: m
    fallback: {cooldown: -5} # ! expected a duration
""",
    "texts and lists": """
agents:
  root:
    model: [openai/x] # ! expected text, got a list
    description: {a: b} # ! expected text, got a mapping
    instruction: {a: b} # ! expected a list, got a mapping
    sub_agents: other # ! expected a list, got 'other'
    toolsets: {type: shell} # ! expected a list, got a mapping
    commands: hello # ! expected a mapping or a list, got 'hello'
    skills: maybe # ! expected true or false or a list, got 'maybe'
  other: {model: auto}
""",
    "choices": """
agents:
  root:
    model: auto
    safety: strikt # ! did you mean 'strict'?
    harness: {type: vim} # ! expected claude-code, codex, goose, opencode, pi, acp or command
""",
    "toolsets": """
agents:
  root:
    model: auto
    toolsets:
      - type: shel # ! unknown type 'shel' of a toolset; did you mean 'shell'?
      - tools: [a] # ! needs a 'type'
      - type: [shell] # ! expected text
      - type: qqqq # ! known types: shell, script, filesystem
      - {type: think, env: {A: b}} # ! 'env' is not a key of a toolset of type 'think'; it belongs
      - {type: todo, path: x} # ! it belongs to type 'memory' or 'tasks'
      - type: script # ! a toolset of type 'script' needs 'shell'
      - {type: script, shell: {}} # ! add at least one entry
      - {type: script, shell: {a: {description: x}}} # ! a script needs 'cmd'
      - {type: filesystem, post_edit: [{path: x}]} # ! needs 'cmd'
      - {type: filesystem, allow_list: [""]} # ! an entry of 'allow_list' is empty
      - {type: fetch, timeout: 0} # ! at least 1
      - {type: fetch, allowed_domains: [a.b], blocked_domains: [c.d]} # ! cannot be combined
      - {type: fetch, blocked_domains: [10.0.0.0/33]} # ! is not a network
      - {type: fetch, allowed_domains: ["a.*"]} # ! only allowed as *.example.com
      - {type: fetch, allowed_domains: ["*"]} # ! only allowed as *.example.com
      - {type: mcp, tools: [a]} # ! needs exactly one of 'command', 'remote' or 'ref'; it has none
      - {type: mcp, command: a, ref: docker:b} # ! it has command and ref
      - {type: mcp, ref: wether} # ! 'wether' is not in `mcps`; did you mean 'weather'?
      - {type: mcp, remote: {transport_type: sse}} # ! a remote server needs 'url'
      - {type: rag, ref: books} # ! 'books' is not in `rag`
      - {type: lsp, args: [a]} # ! needs 'command'
      - {type: a2a, name: x} # ! needs 'url'
      - {type: model_picker, models: []} # ! add at least one entry
mcps:
  weather: {command: weather}
  broken: {args: [a]} # ! needs exactly one of 'command', 'remote' or 'ref'
  odd: {ref: weather} # ! must refer to docker:NAME, not to 'weather'
  wrong: {command: a, shared: true} # ! 'shared'
""",
    "references": """
agents:
  root:
    model: fsat # ! unknown model 'fsat'; did you mean 'fast'?
    sub_agents: [othre] # ! unknown agent 'othre'; did you mean 'other'?
    handoffs: [nobody-at-all] # ! define it under `agents`
    force_handoff: othr # ! did you mean 'other'?
    use_toolsets: [loook] # ! did you mean 'look'?
    use_commands: [evryday] # ! did you mean 'everyday'?
    fallback: {models: [fast, slo]} # ! did you mean 'slow'?
    commands:
      go: {agent: ohter} # ! unknown agent 'ohter'; did you mean 'other'?
      nothing: {} # ! needs an 'instruction' or an 'agent'
      page: {url: "javascript:alert(1)"} # ! it needs a scheme such as https
      half: {url: example.com} # ! it needs a scheme such as https
      odd: {url: "https://example.com/a b"} # ! percent-encode them
      both: {url: "https://example.com", agent: other} # ! so it sends nothing
  other:
    model: opnai/gpt-5 # ! unknown provider 'opnai'; did you mean 'openai'?
    sub_agents: [other] # ! cannot be one of its own sub_agents
  third:
    model: fast,slwo # ! did you mean 'slow'?
  a/b: {model: auto} # ! cannot contain '/'
  round: {model: auto, force_handoff: about}
  about: {model: auto, force_handoff: way}
  way: {model: auto, force_handoff: round} # ! 'force_handoff' never ends: way → round → about → way
  alone: {model: auto, force_handoff: alone} # ! never ends: alone → alone
  fourth: {model: gpt-5} # ! use a name from `models`, or provider/model
  fifth: {model: auto, sub_agents: [./other.yaml]} # ! unknown agent './other.yaml'
models:
  fast: {provider: openai, model: gpt-5-mini, title_model: tiny} # ! unknown model 'tiny'
  slow: {provider: antropic, model: x} # ! did you mean 'anthropic'?
toolsets:
  look: {type: filesystem}
commands:
  everyday: {a: b}
""",
    "models": """
models:
  nothing: {temperature: 1} # ! the model 'nothing' has no
  half: {provider: openai} # ! the model 'half' has no model
  other: {model: gpt-5} # ! the model 'other' has no provider
  both: {first_available: [openai/x], temperature: 1} # ! 'temperature' cannot be combined
  none: {first_available: []} # ! add at least one entry
  choice: {first_available: [any]} # ! 'any' is itself a list of models
  any: {first_available: [openai/x]}
  self: {model: "self, openai/x"} # ! 'self' refers to itself
  where: {provider: openai, model: x, base_url: ftp://x} # ! start with http:// or https://
providers:
  a/b: {base_url: http://x} # ! cannot contain '/'
  bare: {token_key: X} # ! needs a 'base_url'
  odd: {provider: opena} # ! did you mean 'openai'?
  bad: {base_url: example.com} # ! is not a URL
  api: {base_url: http://x, api_type: openai_chat} # ! did you mean 'openai_chatcompletions'?
agents:
  root: {model: openai/x}
""",
    "the rest": """
agents:
  root:
    model: auto
    instruction: a
    instruction_file: b.md # ! not both
    structured_output: {name: x} # ! structured output needs 'schema'
    hooks:
      pre_tool_use: [{matcher: a}] # ! needs 'hooks'
      stop: [{command: a}] # ! a hook needs 'type'
  other:
    model: auto
    instruction_file: /etc/passwd # ! must be a path inside the folder
  third:
    model: auto
    instruction_file: [../a, b/../../c] # ! must be a path inside the folder
permissions:
  allow: ["", ":x", "shell=ls", "run it"] # ! is not a valid rule; write TOOL, GLOB* or TOOL:ARGUMENT=GLOB
""",
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_each_mistake_is_reported_at_its_line(text: str) -> None:
    lines = text.splitlines()
    wanted = {number: line.split(" # ! ")[1] for number, line in enumerate(lines, 1) if " # ! " in line}
    found = errors_of(text)
    assert {line for line, _ in found} == set(wanted)
    for line, words in wanted.items():
        assert any(words in message for at, message in found if at == line), (line, words, found)


@pytest.mark.parametrize("name", ["api_key", "apiKey", "API-KEY"])
@pytest.mark.parametrize("section", ["models", "providers"])
def test_an_api_key_in_a_file_is_pointed_to_token_key_and_not_repeated(section: str, name: str) -> None:
    text = (
        f"agents: {{root: {{model: auto}}}}\n{section}:\n  m:\n    provider: openai\n    {name}: sk-secret\n"
    )
    [message] = [message for line, message in errors_of(text) if line == 5]
    assert message.startswith(
        f"unknown key '{name}'; use 'token_key' with the name of the environment variable"
    )
    assert "sk-secret" not in message


def test_I40_too_many_rules_and_too_long_ones_are_refused_by_their_limit() -> None:
    file = "agents: {root: {model: auto}}\npermissions:\n  deny: [%s]\n  ask: [a]"
    assert errors_of(file % ", ".join(["a"] * (RULES - 1))) == []
    [(line, message)] = errors_of(file % ", ".join(["a"] * RULES))
    assert (line, message[:42]) == (2, "too many permission rules: 201 (limit 200)")
    [(line, message)] = errors_of(file % ("a" * (RULE_CHARACTERS + 1)))
    assert (line, message) == (3, "this rule has 401 characters; the limit is 400")


def test_a_misspelt_required_key_is_reported_once() -> None:
    """That it is missing follows from the mistake, and is no second one."""
    [(line, message)] = errors_of("agents: {root: {model: auto, structured_output: {nmae: x, schema: {}}}}")
    assert (line, message) == (1, "unknown key 'nmae'; did you mean 'name'?")
    [(_, message)] = errors_of("agents: {root: {model: auto, toolsets: [{tyep: shell}]}}")
    assert message == "unknown key 'tyep'; did you mean 'type'?"
    [(_, message)] = errors_of("agents: {root: {model: auto, toolsets: [{type: mcp, comand: x}]}}")
    assert message == "unknown key 'comand'; did you mean 'command'?"
    [found] = findings_of(b"agents: {root: {modle: auto}}")
    assert found.message == "unknown key 'modle'; did you mean 'model'?"


def test_repeats_through_an_alias_are_reported_once() -> None:
    text = "agents:\n  root: &a {model: auto, modle: x}\n  second: *a\n  third: *a\n"
    assert len(errors_of(text)) == 1


@pytest.mark.parametrize(("off", "on"), [("false", "true"), ("no", "yes"), ("off", "on")])
def test_turning_off_what_is_not_there_needs_no_warning(off: str, on: str) -> None:
    text = "agents: {root: {model: auto, code_mode_tools: %s, session_compaction: %s}}"
    assert warnings_of(text % (off, off)) == []
    assert len(warnings_of(text % (on, on))) == 2


def test_what_is_inside_of_an_unsupported_part_is_not_warned_about_again() -> None:
    evaluator = "{model: a/b, type: boolean, instructions: x, cost: {cache_read: 1}}"
    text = f"agents: {{root: {{model: auto}}}}\nevaluators:\n  e: {evaluator}"
    assert [line for line, _ in warnings_of(text)] == [2]
    text = "agents: {root: {model: auto, toolsets: [\n{type: tasks, path: x, defer: true, toon: y}]}}"
    assert [line for line, _ in warnings_of(text)] == [2]


def test_mistakes_inside_of_an_unsupported_part_are_mistakes() -> None:
    [(line, message)] = errors_of("agents: {root: {model: auto}}\nbudget:\n  max_csot: 1\n")
    assert (line, message) == (3, "unknown key 'max_csot'; did you mean 'max_cost'?")


def test_a_newer_version_is_read_with_a_warning() -> None:
    [(line, message)] = warnings_of("version: 17\nagents: {root: {model: auto}}")
    assert line == 1
    assert "it is read as version 16" in message


@pytest.mark.parametrize(
    ("text", "line", "expression"),
    [
        ("agents:\n  root:\n    model: auto\n    instruction: Hi ${env.USER}\n", 4, "${env.USER}"),
        (
            "agents:\n  root:\n    model: auto\n    welcome_message: Hi ${env.A || 'you'}\n",
            4,
            "${env.A || 'you'}",
        ),
        (
            "agents:\n  root:\n    model: auto\n    toolsets:\n"
            "      - type: fetch\n        headers:\n          A: ${headers.Authorization}\n",
            7,
            "${headers.Authorization}",
        ),
        (
            "agents: {root: {model: auto}}\nmcps:\n  a:\n    remote:\n      url: https://a.example.com\n"
            "      headers: {A: \"${env.A || 'b'}\"}\n",
            6,
            "${env.A || 'b'}",
        ),
        (
            "agents:\n  root:\n    model: auto\n    toolsets:\n"
            "      - {type: shell, env: {A: \"${env.A ? '1' : '2'}\"}}\n",
            5,
            "${env.A ? '1' : '2'}",
        ),
    ],
)
def test_an_expression_that_is_not_evaluated_is_a_warning(text: str, line: int, expression: str) -> None:
    what = f"`{expression}` is not supported here yet: it is left as it is written"
    assert warnings_of(text) == [(line, what)]


def test_http_to_another_machine_needs_a_private_network() -> None:
    text = (
        "agents:\n  root:\n    model: auto\n    toolsets:\n      - type: mcp\n        remote: {url: %s}\n%s"
    )
    for url, more, found in (
        ("http://wiki.local:80/mcp", "", [6]),
        ("http://wiki.local:80/mcp", "        allow_private_ips: true\n", []),
        ("http://localhost:80/mcp", "", []),
        ("https://wiki.example.com/mcp", "", []),
    ):
        assert [line for line, _ in warnings_of(text % (url, more))] == found


def test_a_file_without_a_version_learns_which_one_had_its_keys() -> None:
    text = "agents:\n  root:\n    model: auto\n    think: true\n"
    [(line, message)] = errors_of(text)
    assert (
        line,
        message.endswith('or add `version: "0"` to the file if it was written for that version'),
    ) == (4, True)
    assert errors_of('version: "0"\n' + text) == []
    [(_, message)] = errors_of('version: "2"\n' + text)
    assert "or add" not in message
