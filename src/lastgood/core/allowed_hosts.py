"""Decides which hosts an agent file lets a tool request.

`example.com` is that host and everything below it, `.example.com` and `*.example.com` only what is
below it. An address or a network stands for itself: it is compared with hosts that are written as
addresses, never with what a name resolves to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network


@dataclass(frozen=True, slots=True)
class Hosts:
    allowed: Sequence[str] = ()  # none: every host
    blocked: Sequence[str] = ()

    def refuse(self, host: str) -> bool:
        if any(_fits(pattern, host) for pattern in self.blocked):
            return True
        return bool(self.allowed) and not any(_fits(pattern, host) for pattern in self.allowed)


def _fits(pattern: str, host: str) -> bool:
    pattern, host = (text.strip().lower().removesuffix(".") for text in (pattern, host))
    address = _address(host)
    if address is not None:
        return _covers(pattern, address)
    below = pattern.removeprefix("*").removeprefix(".")
    return host.endswith(f".{below}") or (host == below and below == pattern)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _covers(pattern: str, address: IPv4Address | IPv6Address) -> bool:
    try:
        return address in ip_network(pattern, strict=False)
    except ValueError:
        return False
