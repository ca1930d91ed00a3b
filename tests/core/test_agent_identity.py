"""Which served agent a session means (M1)."""

from typing import Any
from urllib.parse import quote, quote_plus, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastgood.core.agent_identity import (
    Ambiguous,
    Exact,
    Missing,
    Resolution,
    Stable,
    as_record,
    resolve,
    stable_identity,
)

URL = "https://agents.example.com/team/coder.yaml"


@pytest.mark.parametrize(
    "key",
    [
        URL,
        f"{URL}?tag=v9-light",
        f"{URL}?tag=v9-dev",
        f"{URL}?a=1&b=2&never_heard_of=3",
        f"{URL}?",
        f"{URL}#main",
        f"{URL}?tag=v9#main",
        f"{URL}?next=https://other.example.com/x?y=z",
        "HTTPS://Agents.Example.COM/team/coder.yaml?tag=v9",
    ],
)
def test_M1_2_the_whole_query_and_the_fragment_are_volatile_by_rule(key: str) -> None:
    assert stable_identity(key) == URL
    assert stable_identity(quote_plus(key)) == URL
    assert stable_identity(quote(key, safe="")) == URL


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (URL, URL.replace("https", "http")),
        (URL, URL.replace("agents.", "more.")),
        (URL, URL.replace("coder", "Coder")),
        (URL, URL + "/"),
        (URL, URL.replace(".com", ".com:8443")),
    ],
)
def test_M1_2_scheme_host_port_and_path_distinguish_sources(one: str, other: str) -> None:
    assert stable_identity(one) != stable_identity(other)
    assert isinstance(resolve(one, [other]), Missing)


@pytest.mark.parametrize(
    "key",
    [
        "coder.yaml",
        "/etc/agents/coder.yaml",
        "./agents/what?.yaml",
        "agents/a#b.yaml",
        "agents/two words+more.yaml",
        "C:\\agents\\coder.yaml",
        "docker.io/team/coder:v9",
        "registry.example.com:5000/team/coder@sha256:0123",
        "oci://registry.example.com/team/coder:v9?x=1",
        "file:///etc/agents/coder.yaml?tag=v9",
        "builtin:coder",
        "builtin/default?x",
        "",
        "https:",
        "https:///no-host?tag=v9",
        "?tag=v9",
    ],
)
def test_M1_2_files_oci_references_and_builtins_are_their_own_identity(key: str) -> None:
    assert stable_identity(key) == key


@pytest.mark.parametrize(
    "key",
    [
        f"{URL}?tag=%",
        f"{URL}?tag=%2",
        f"{URL}?tag=%zz",
        "https%3A%2F%2Fhost%2Fa%",
        f"{URL}?tag=%ff",  # escapes that are no text
        "https://[::1/agent.yaml?tag=v9",  # half an IPv6 address
        "https://host:port/agent.yaml?tag=v9",
        "https://host:99999/agent.yaml?tag=v9",
    ],
)
def test_M1_2_a_malformed_key_is_returned_unchanged(key: str) -> None:
    assert stable_identity(key) == key


def test_M1_2_ports_and_IPv6_hosts_stay_in_the_identity() -> None:
    assert stable_identity("http://localhost:8080/a?b") == "http://localhost:8080/a"
    assert stable_identity("http://[::1]:8080/a?b") == "http://[::1]:8080/a"
    assert stable_identity("http://[::1]/a#b") == "http://[::1]/a"


V1, V2, V3 = (f"{URL}?tag={tag}" for tag in ("v1", "v2", "v3"))


@pytest.mark.parametrize(
    ("recorded", "served", "expected"),
    [
        # M1.1: an exact match wins, also where others share the identity
        ("coder.yaml", ["coder.yaml"], Exact("coder.yaml")),
        (V1, [V2, V1, V3], Exact(V1)),
        (V1, [V1, V1], Exact(V1)),
        # M1.2: on a miss, the one source with the same identity
        (V1, [V2], Stable(V2, V1)),
        (V1, [V2, "coder.yaml"], Stable(V2, V1)),
        (V1, [V2, V2], Stable(V2, V1)),
        (V1, [URL], Stable(URL, V1)),
        (quote_plus(V1), [quote_plus(V2)], Stable(quote_plus(V2), quote_plus(V1))),
        (quote_plus(V1), [V2], Stable(V2, quote_plus(V1))),
        (V1, [quote_plus(V1)], Stable(quote_plus(V1), V1)),
        # nothing alike
        (V1, [], Missing(V1)),
        ("coder.yaml", ["coder.yaml?x"], Missing("coder.yaml")),
        ("team/coder:v1", ["team/coder:v2"], Missing("team/coder:v1")),
        (f"{URL}?tag=%zz", [URL], Missing(f"{URL}?tag=%zz")),
    ],
)
def test_M1_1_M1_2_a_recorded_key_finds_its_source(
    recorded: str, served: list[str], expected: Resolution
) -> None:
    assert resolve(recorded, served) == expected


def test_M1_3_two_sources_with_one_identity_are_refused_and_named() -> None:
    found = resolve(V1, [V3, V2])
    assert found == Ambiguous(V1, (V2, V3))
    assert V2 in found.reason
    assert V3 in found.reason


def test_M1_3_the_order_of_the_sources_changes_nothing() -> None:
    assert resolve(V1, [V2, V3, "x"]) == resolve(V1, ["x", V3, V2])


@pytest.mark.parametrize(
    ("decision", "record"),
    [
        (Exact("a"), {"agent": "exact", "key": "a"}),
        (Stable("b", "a"), {"agent": "stable", "key": "b", "recorded": "a"}),
        (Ambiguous("a", ("b", "c")), {"agent": "ambiguous", "recorded": "a", "candidates": ["b", "c"]}),
        (Missing("a"), {"agent": "missing", "recorded": "a"}),
    ],
)
def test_every_decision_is_recorded_with_its_reason(decision: Resolution, record: dict[str, Any]) -> None:
    kept = as_record(decision)
    assert kept.pop("reason") == decision.reason
    assert decision.reason
    assert kept == record


WORDS = st.text("abz019-_./~", max_size=12)
PLAIN_URLS = st.builds(
    "{}://{}/{}{}{}".format,
    st.sampled_from(["http", "https", "HTTPS"]),
    st.sampled_from(["h", "Host.example", "h:80", "[::1]", "[::1]:81"]),
    WORDS,
    WORDS.map(lambda word: f"?{word}"),
    WORDS.map(lambda word: f"#{word}"),
)


@given(st.one_of(st.text(), st.text("%+:/?#[]@a0htps.", max_size=30), PLAIN_URLS))
def test_the_identity_of_anything_is_found_without_an_error(key: str) -> None:
    identity = stable_identity(key)
    if "%" not in identity and "+" not in identity:  # a second round would decode once more
        assert stable_identity(identity) == identity


@given(PLAIN_URLS)
def test_M1_2_a_url_and_its_escaped_form_have_one_identity(url: str) -> None:
    identity = stable_identity(url)
    assert identity == stable_identity(quote_plus(url))
    parts = urlsplit(identity)
    assert (parts.query, parts.fragment) == ("", "")
    assert "?" not in identity
    assert "#" not in identity


@given(st.lists(st.sampled_from([V1, V2, V3, URL, "a", "b"]), max_size=5), st.sampled_from([V1, "a", "c"]))
def test_a_found_source_is_always_one_that_is_served(served: list[str], recorded: str) -> None:
    match resolve(recorded, served):
        case Exact(key):
            assert key == recorded
            assert key in served
        case Stable(key):
            assert key in served
            assert recorded not in served
        case Ambiguous(_, candidates):
            assert len(candidates) > 1
            assert set(candidates) <= set(served)
        case Missing():
            assert stable_identity(recorded) not in map(stable_identity, served)
