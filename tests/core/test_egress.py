"""I39: what may be asked for over the network. The address decides, however it is spelled."""

from dataclasses import replace

import pytest

from lastgood.core.egress import (
    AllowedUrl,
    Denial,
    Loopback,
    Policy,
    Public,
    is_loopback_url,
    judge_address,
    judge_redirect,
    judge_url,
    shown,
)

STRANGERS, ALSO_HERE = Policy(), Policy(loopback=True)
OUTSIDE = AllowedUrl("https", "agents.example.com", 443, loopback=False)
INSIDE = AllowedUrl("https", "wiki.example.com", 443, loopback=False, private=True)
HERE = AllowedUrl("http", "localhost", 80, loopback=True)


# --- URLs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://agents.example.com/team.yaml?tag=v9#part", OUTSIDE),
        ("HTTPS://Agents.Example.COM", OUTSIDE),
        ("https://agents.example.com./", OUTSIDE),
        ("https://agents.example.com:8443", AllowedUrl("https", "agents.example.com", 8443, False)),
        ("https://93.184.216.34/", AllowedUrl("https", "93.184.216.34", 443, False)),
        ("https://[2606:2800::1]:8/", AllowedUrl("https", "2606:2800::1", 8, False)),
        # Spelled so that only the resolver knows; its addresses will be judged as a stranger's.
        ("https://0x7f.1/", AllowedUrl("https", "0x7f.1", 443, False)),
        ("https://2130706433/", AllowedUrl("https", "2130706433", 443, False)),
        ("https://127.1/", AllowedUrl("https", "127.1", 443, False)),
        ("https://127.0.0.1.nip.io/", AllowedUrl("https", "127.0.0.1.nip.io", 443, False)),
        ("https://me.localhost/", AllowedUrl("https", "me.localhost", 443, False)),
    ],
)
def test_https_may_be_asked_of_anybody_whose_addresses_may(url: str, asked: AllowedUrl) -> None:
    assert judge_url(url, STRANGERS) == asked
    assert judge_url(url, ALSO_HERE) == asked


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/a.yaml",
        "http://localhost./a.yaml",
        "http://LOCALHOST:8080",
        "http://127.0.0.1:8080/a.yaml",
        "http://127.255.0.9",
        "http://[::1]:8080/a.yaml",
        "http://[0:0:0:0:0:0:0:1]/",
        "https://localhost/",
    ],
)
def test_this_machine_is_asked_under_its_own_name_where_the_policy_says_so(url: str) -> None:
    asked = judge_url(url, ALSO_HERE)
    assert isinstance(asked, AllowedUrl)
    assert asked.loopback
    assert isinstance(judge_url(url, STRANGERS), Denial)


@pytest.mark.parametrize(
    ("url", "because"),
    [
        ("http://agents.example.com/", "use https"),
        ("http://10.0.0.1/", "use https"),
        ("https://10.0.0.1/", "is not a public address"),
        ("https://[::ffff:127.0.0.1]/", "is not a public address"),
        ("http://127.1/", "use https"),
        ("http://0x7f000001/", "use https"),
        ("http://2130706433/", "use https"),
        ("http://[::ffff:127.0.0.1]/", "use https"),
        ("http://0.0.0.0/", "use https"),
        ("http://localhost.example.com/", "use https"),
        ("http://127.0.0.1.example.com/", "use https"),
        ("ftp://agents.example.com/", "must be https"),
        ("file:///etc/passwd", "must be https"),
        ("gopher://localhost/", "must be https"),
        ("//agents.example.com/", "must be https"),
        ("agents.example.com", "must be https"),
        ("", "must be https"),
        ("https:///team.yaml", "no host"),
        ("https://./", "no host"),
        ("https://user@agents.example.com/", "a user"),
        ("https://user:canary@agents.example.com/", "a user"),
        ("https://:@agents.example.com/", "a user"),
        ("https://agents.example.com:0/", "port 0"),
        ("https://agents.example.com:65536/", "not a valid URL"),
        ("https://agents.example.com:-1/", "not a valid URL"),
        ("https://agents.example.com:x/", "not a valid URL"),
        ("https://[::1/", "not a valid URL"),
        ("https://[fe80::zz]/", "not a valid URL"),
        ("https://exa\tmple.com/", "contains a space"),
        ("https://example.com\\@localhost/", "contains a space"),
        ("https://example.com/ x", "contains a space"),
        ("https://example.com/\r\nHost: localhost", "contains a space"),
        ("https://example.com/\x00", "contains a space"),
        ("https://example.com/\udcff", "contains a space"),
        ("https://example.com/" + "a" * 9000, "the limit is"),
    ],
)
def test_nothing_else_is_requested(url: str, because: str) -> None:
    for policy in (STRANGERS, ALSO_HERE):
        judged = judge_url(url, policy)
        assert isinstance(judged, Denial)
        assert because in judged.reason
        assert "canary" not in judged.reason


# --- redirects -------------------------------------------------------------------------------------------


def test_external_hosts_do_not_lead_to_this_machine() -> None:
    for url in ("http://localhost/", "https://127.0.0.1/", "https://[::1]/"):
        assert isinstance(judge_redirect(OUTSIDE, url, ALSO_HERE), Denial)
        assert isinstance(judge_redirect(HERE, url, STRANGERS), Denial)
        assert isinstance(judge_redirect(HERE, url, ALSO_HERE), AllowedUrl)


def test_https_does_not_lead_to_http() -> None:
    here = AllowedUrl("https", "localhost", 443, loopback=True)
    assert judge_redirect(here, "http://localhost/", ALSO_HERE) == Denial(
        "a redirect from https to http is not allowed"
    )
    assert isinstance(judge_redirect(OUTSIDE, "http://agents.example.com/", STRANGERS), Denial)


def test_an_answer_may_lead_outside() -> None:
    assert judge_redirect(HERE, "https://agents.example.com/", ALSO_HERE) == OUTSIDE
    onward = judge_redirect(OUTSIDE, "https://agents.example.org:8/", STRANGERS)
    assert onward == AllowedUrl("https", "agents.example.org", 8, loopback=False)
    assert onward.origin != OUTSIDE.origin


# --- addresses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "93.184.216.34",
        "1.1.1.1",
        "172.15.255.255",
        "172.32.0.1",
        "100.63.255.255",
        "100.128.0.1",
        "192.0.1.1",
        "223.255.255.255",
        "2606:2800:220:1::1",
        "2a00:1450::1",
        "2001:4860:4860::8888",
        "::ffff:93.184.216.34",
        "64:ff9b::5db8:d822",  # 93.184.216.34 behind NAT64
        "2002:5db8:d822::1",  # and by 6to4
    ],
)
def test_a_public_address_is_untrusted(address: str) -> None:
    assert judge_address(address, OUTSIDE) == Public()
    judged = judge_address(address, HERE)
    assert isinstance(judged, Denial)
    assert "localhost is a loopback name but resolves to" in judged.reason


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1"])
def test_an_address_of_this_machine_is_for_its_own_name_only(address: str) -> None:
    assert judge_address(address, HERE) == Loopback()
    judged = judge_address(address, OUTSIDE)
    assert isinstance(judged, Denial)
    assert "this machine" in judged.reason


# fmt: off
NOBODYS = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "100.127.255.255",
    "168.63.129.16", "169.254.169.254", "169.254.0.1", "172.16.0.1", "172.31.255.255", "192.0.0.192",
    "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.7",
    "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1",
    "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:10::1", "3fff::1", "100::1", "::127.0.0.1",
    "::8.8.8.8", "4000::1", "5f00::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0.0.0.0",
    "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::5db8:d822",
    "2002:7f00:1::", "2002:a00:1::1", "2002:c0a8:1::", "2002:a9fe:a9fe::1",
    "", "localhost", "1.2.3", "0x7f.1", "2130706433",
]
# fmt: on


@pytest.mark.parametrize("address", NOBODYS)
def test_no_other_address_is_anybodys(address: str) -> None:
    for asked in (OUTSIDE, HERE):
        assert isinstance(judge_address(address, asked), Denial), address


# fmt: off
PRIVATE = [
    "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "fc00::1", "fd12:3456::1",
]
# fmt: on


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_of_a_private_network_is_for_urls_that_may_lead_there(address: str) -> None:
    assert judge_address(address, INSIDE) == Public()
    assert isinstance(judge_address(address, OUTSIDE), Denial)


@pytest.mark.parametrize("address", [one for one in NOBODYS if one not in PRIVATE])
def test_a_private_network_is_no_way_to_any_other_address(address: str) -> None:
    assert isinstance(judge_address(address, INSIDE), Denial), address


# --- showing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        (
            "https://agents.example.com:8443/a.yaml?token=canary#canary",
            "https://agents.example.com:8443/a.yaml",
        ),
        ("https://user:canary@agents.example.com/a", "https://agents.example.com/a"),
        ("https://[canary/", "the URL"),
        ("nothing", "nothing"),
    ],
)
def test_I41_an_error_shows_no_part_of_a_url_that_often_holds_a_key(url: str, seen: str) -> None:
    assert shown(url) == seen


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("http://127.0.0.1:8080/x", True),
        ("http://localhost./x", True),
        ("https://[::1]/x", True),
        ("https://example.com/localhost", False),
        ("https://localhost.example.com/", False),
        ("https://[::1", False),
        ("/x", False),
    ],
)
def test_a_url_is_of_this_machine_by_its_host(url: str, is_one: bool) -> None:
    assert is_loopback_url(url) is is_one


def test_I39_http_is_for_this_machine_and_private_networks_only() -> None:
    """Also where a file opens private networks: whether a host is in one is known by its address."""
    inside = judge_url("http://wiki.example.com/", Policy(private=True))
    assert isinstance(inside, AllowedUrl)
    assert judge_address("10.0.0.1", inside) == Public()
    refused = judge_address("93.184.216.34", inside)
    assert isinstance(refused, Denial)
    assert "http is not allowed" in refused.reason
    assert isinstance(judge_url("http://93.184.216.34/", Policy(private=True)), Denial)
    assert judge_address("93.184.216.34", replace(inside, scheme="https")) == Public()
