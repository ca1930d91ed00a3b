"""Which hosts may a tool ask?"""

import pytest

from lastgood.core.allowed_hosts import Hosts


@pytest.mark.parametrize(
    ("pattern", "host", "fits"),
    [
        ("example.com", "example.com", True),
        ("example.com", "Docs.Example.COM.", True),
        ("Example.com.", "a.b.example.com", True),
        ("example.com", "badexample.com", False),
        ("example.com", "example.com.evil.org", False),
        (".example.com", "a.example.com", True),
        (".example.com", "example.com", False),
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "badexample.com", False),
        ("93.184.216.34", "93.184.216.34", True),
        ("93.184.216.34", "93.184.216.35", False),
        ("93.184.0.0/16", "93.184.216.34", True),
        ("93.184.0.0/16", "example.com", False),
        ("93.184.0.0/16", "::ffff:93.184.216.34", True),
        ("2606:2800::/32", "[2606:2800::1]", True),
        ("2606:2800::/32", "93.184.216.34", False),
        ("216.34", "93.184.216.34", False),
    ],
)
def test_a_host_fits_a_pattern_by_whole_names(pattern: str, host: str, fits: bool) -> None:
    assert Hosts(blocked=[pattern]).refuse(host) is fits
    assert Hosts(allowed=[pattern]).refuse(host) is not fits


def test_without_lists_every_host_may_be_asked() -> None:
    assert not Hosts().refuse("example.com")


def test_blocked_wins_over_allowed() -> None:
    assert Hosts(["example.com"], ["a.example.com"]).refuse("a.example.com")
