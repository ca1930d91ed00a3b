"""Files that are no agent files: refused with their line, quickly, and nothing else happens (I39, I40)."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastgood.agents.agent_file import read_agent_file
from lastgood.errors import AgentInvalid
from tests.agents.corpus import FILES, findings_of

ROOT = Path(__file__).parents[2]
GOOD = b"agents: {root: {model: auto}}\n"

#: Ten lists of ten of the list before: 10^10 values in 400 bytes.
LAUGHS = b"a: &a [x, x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (after, after, b", ".join([b"*%c" % before] * 10))
    for before, after in zip(b"abcdefghi", b"bcdefghij", strict=True)
)

CASES = {
    "empty": (b"", 1, "the file is empty"),
    "only a comment": (b"\n# nothing\n", 1, "the file is empty"),
    "a list": (b"- root\n", 1, "this is a list"),
    "a text": (b"hello\n", 1, "this is 'hello'"),
    "no agents": (b"models: {}\n", 1, "needs 'agents'"),
    "agents without any": (b"version: 7\nagents: {}\n", 2, "add at least one entry"),
    "agents without a value": (b"version: 7\nagents:\n", 1, "needs 'agents'"),
    "agents as a list": (b"agents:\n  - root\n", 1, "as a mapping, got a list"),
    "an agent that is a text": (b"agents:\n  root: hello\n", 2, "as a mapping, got 'hello'"),
    "two documents": (GOOD + b"---\n" + GOOD, 2, "a second YAML document starts here"),
    "a tab": (b"agents:\n\troot: {}\n", 2, "tab character in the indentation"),
    "a colon in a text": (b"agents:\n  root:\n    description: note: this\n", 3, "quote values"),
    "open brackets": (b"# 1\nagents: {root: {model: auto}\n", 2, "is not closed"),
    "open quotes": (b"agents:\n  root:\n    model: 'auto\n", 3, "is not closed"),
    "a crooked line": (
        b"agents:\n  root:\n    model: auto\n   description: x\n",
        4,
        "inconsistent indentation",
    ),
    "brackets that do not match": (b"agents: [a, b}\n", 1, "is not closed"),
    "an unknown escape": (b'agents:\n  root: {model: "a\\qb"}\n', 2, "unknown escape sequence"),
    "a reserved character": (b"agents:\n  root:\n    model: @auto\n", 3, "quote the value"),
    "a YAML of the future": (b"%YAML 9.9\n---\n" + GOOD, 1, "not valid YAML"),
    "not UTF-8": ("agents:\n  köche: {model: auto}\n".encode("latin-1"), 2, "not UTF-8"),
    "UTF-16": (GOOD.decode().encode("utf-16"), 1, "not UTF-8"),
    "a NUL": (b"agents:\n  root: {model: 'a\0'}\n", 2, "U+0000"),
    "an escape sequence": (b"agents:\n  root: {model: '\x1b[2J'}\n", 2, "U+001B"),
    "a tag that would execute": (
        b"agents:\n  root: !!python/object/apply:os.system ['touch executed']\n",
        2,
        "'!!python/object/apply:os.system' is not allowed",
    ),
    "a tag that would construct": (
        b"agents:\n  root: {model: !!python/name:os.system }\n",
        2,
        "is not allowed",
    ),
    "a tag of one's own": (b"agents:\n  root: {model: !secret key}\n", 2, "'!secret' is not allowed"),
    "a tag of YAML's that makes no text": (b"agents:\n  root: {model: !!binary aGk=}\n", 2, "'!!binary'"),
    "a tag on a list": (b"agents: !!set {root, other}\n", 1, "'!!set'"),
    "a list as a key": (b"agents:\n  ? [root]\n  : {model: auto}\n", 2, "a key must be a string"),
    "a key twice": (
        b"agents:\n  root:\n    model: auto\n    model: a/b\n",
        4,
        "'model' is a duplicate key; the first one is on line 3",
    ),
    "a name twice": (b"agents:\n  root: {model: auto}\n  root: {}\n", 3, "the first one is on line 2"),
    "a free key twice": (
        b"agents: {root: {model: m}}\nmodels:\n  m:\n    provider: openai\n    model: x\n    provider_opts:\n"
        b"      a: {b: 1,\n          b: 2}\n",
        8,
        "'b' is a duplicate key; the first one is on line 7",
    ),
    "an alias for nothing": (b"agents: *nowhere\n", 1, "there is no '&nowhere' before it"),
    "an alias for itself": (b"agents: &all\n  root: *all\n", 2, "is a recursive alias"),
    "a merge of a number": (b"agents:\n  root:\n    <<: 3\n", 3, "needs a mapping"),
    "lists in lists": (b"agents: " + b"[" * 100_000, 1, "more than 64 levels deep"),
    "mappings in mappings": (b"{a: " * 100_000, 1, "more than 64 levels deep"),
    "blocks in blocks": (b"".join(b" " * n + b"a:\n" for n in range(500)), 65, "more than 64 levels deep"),
    "a billion laughs": (LAUGHS, 5, "more than 100,000 values"),
    "too many values": (
        b"agents: {root: {model: auto, commands: {" + b"".join(b"c%d: a, " % n for n in range(50_001)),
        1,
        "100,000",
    ),
    "too many agents": (
        b"agents:\n" + b"".join(b"  a%d: {model: auto}\n" % n for n in range(257)),
        1,
        "the limit is 256",
    ),
    "5 MB": (GOOD + b"#" * 5_000_000, 1, "the file has 5,000,030 bytes; the limit is 1,048,576"),
}


@pytest.mark.parametrize(("body", "line", "words"), CASES.values(), ids=CASES)
def test_it_is_refused_with_its_line_in_plain_words(
    body: bytes, line: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began = time.process_time()
    with pytest.raises(AgentInvalid) as refused:
        read_agent_file(body, where="agent.yaml", key="agent")
    assert time.process_time() - began < 20
    assert refused.value.message.startswith(f"agent.yaml:{line}: ")
    assert words in refused.value.message
    assert "\n" not in refused.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_mebibyte_is_read_and_one_byte_more_is_not() -> None:
    most = GOOD + b"#" * (1024 * 1024 - len(GOOD))
    assert findings_of(most) == []
    assert "the limit is 1,048,576" in findings_of(most + b"#")[0].message


def test_64_levels_are_read_and_65_are_not() -> None:
    def nested(levels: int) -> bytes:
        # The file, its agents, the agent and what is said about its output are levels, too.
        head, inner = b"agents: {root: {model: auto, structured_output: {name: x, schema: ", levels - 4
        return head + b"{a: " * inner + b"1" + b"}" * inner + b"}}}"

    assert findings_of(nested(64)) == []
    assert "levels deep" in findings_of(nested(65))[0].message


def test_a_byte_order_mark_and_windows_line_ends_are_no_difference() -> None:
    text = b"agents:\n  root:\n    modle: auto\n"
    wanted = findings_of(text)
    assert [one.line for one in wanted if one.level == "error"] == [3]
    assert findings_of(b"\xef\xbb\xbf" + text) == wanted
    assert findings_of(text.replace(b"\n", b"\r\n")) == wanted


def test_all_mistakes_are_reported_not_only_the_first() -> None:
    body = b"agents:\n  root:\n    modle: auto\n    add_date: maybe\n  other: 3\nmodles: {}\n"
    with pytest.raises(
        AgentInvalid, match=r"agent\.yaml:3: unknown key 'modle'.* \(and 3 more errors; "
    ) as refused:
        read_agent_file(body, where="agent.yaml", key="agent")
    lines = [one["line"] for one in refused.value.detail["findings"] if one["level"] == "error"]
    assert lines == [3, 4, 5, 6]


def test_the_number_of_reported_mistakes_is_limited() -> None:
    """A file that came from elsewhere must not keep us busy with its mistakes."""
    names = b"".join(
        b"  some_rather_long_name_%d: {model: some_other_name_%d}\n" % (n, n) for n in range(250)
    )
    many = b"".join(b"  m%d: {modle: x, proivder: y, temprature: z}\n" % n for n in range(900))
    began = time.process_time()
    found = findings_of(b"agents:\n" + names + b"models:\n" + many)
    assert time.process_time() - began < 20
    assert len(found) == 502
    assert "more than 500 findings" in found[-1].message


def test_long_texts_are_cut_in_messages() -> None:
    found = findings_of(b"agents:\n  root: {model: auto, ? " + b"k" * 100_000 + b" : 1}\n")
    assert len(found) == 1
    assert len(found[0].message) < 1000
    assert len(found[0].key) < 1000


# -- without libyaml -------------------------------------------------------------------------

_SECOND_OPINION = """
import json, sys
sys.modules["yaml._yaml"] = None  # as if it had never been compiled
import yaml
assert not yaml.__with_libyaml__
from tests.agents.corpus import FILES, findings_of
from tests.agents.test_unreadable import CASES
bodies = [path.read_bytes() for path in FILES] + [body for body, *_ in CASES.values() if len(body) < 200_000]
print(json.dumps([[(one.line, one.level) for one in findings_of(body)] for body in bodies]))
"""


@pytest.mark.slow
def test_without_libyaml_the_same_is_found() -> None:
    """The fast parser is not there on every machine; then Python's own reads the same."""
    done = subprocess.run([sys.executable, "-c", _SECOND_OPINION], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    bodies = [path.read_bytes() for path in FILES]
    bodies += [body for body, *_ in CASES.values() if len(body) < 200_000]
    ours = [[[one.line, one.level] for one in findings_of(body)] for body in bodies]
    assert json.loads(done.stdout) == ours


# -- whatever else ---------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    path=st.sampled_from(FILES),
    start=st.integers(0, 3000),
    length=st.integers(0, 40),
    piece=st.binary(max_size=12)
    | st.sampled_from([b"[", b"{", b"- ", b": ", b"&a ", b"*a", b"<<: ", b"!!int ", b"|\n"]),
    trusted=st.booleans(),
)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    path: Path, start: int, length: int, piece: bytes, trusted: bool
) -> None:
    body = path.read_bytes()
    start %= len(body)
    findings_of(body[:start] + piece + body[start + length :], trusted=trusted)
