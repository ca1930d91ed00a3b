"""Decides which requests may be sent on behalf of an agent.

Two judgements. A URL: https to any host, http only to this machine, nothing else.
An address: a host that is this machine by its name must have addresses of this
machine, and every other host public ones. The address decides, not the spelling:
`0x7f.1`, `127.1` or a name in somebody's zone are what the resolver makes of them.

Knows no resolver and no socket. The caller must connect to exactly the address
that was judged, and judge again at each redirect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

_LONGEST_URL = 8192
_PORTS = {"https": 443, "http": 80}
#: Characters that URL parsers disagree about: some drop them, some read them as a slash or an end.
_SMUGGLED = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")

# fmt: off
_SPECIAL_IPV4 = [(IPv4Network(network), reason) for network, reason in (
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "private (shared by a carrier)"),
    ("168.63.129.16/32", "a cloud's metadata service"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "reserved for documentation"),
    ("192.88.99.0/24", "reserved"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "reserved for benchmarks"),
    ("198.51.100.0/24", "reserved for documentation"),
    ("203.0.113.0/24", "reserved for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)]
_SPECIAL_IPV6 = [(IPv6Network(network), reason) for network, reason in (
    ("::/128", "unspecified"),
    ("2001::/23", "reserved"),  # Teredo among it
    ("2001:db8::/32", "reserved for documentation"),
    ("3fff::/20", "reserved for documentation"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
)]
# fmt: on
#: The only block that public IPv6 addresses are given out from.
_GLOBAL_IPV6 = IPv6Network("2000::/3")
_PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))
_AWS_METADATA = IPv6Address("fd00:ec2::254")
_MAPPED, _SIX_TO_FOUR, _NAT64 = (
    IPv6Network("::ffff:0:0/96"),
    IPv6Network("2002::/16"),
    IPv6Network("64:ff9b::/96"),
)


@dataclass(frozen=True, slots=True)
class Policy:
    """`loopback`: this machine is allowed, too, by its own names: localhost, 127.0.0.0/8 or ::1.
    `private`: so may hosts of private networks (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, fc00::/7),
    over http as well. The addresses of cloud metadata services are link-local, and stay closed."""

    loopback: bool = False
    private: bool = False


@dataclass(frozen=True, slots=True)
class AllowedUrl:
    """A URL that may be requested, if its addresses may. `loopback`: they must be this machine's own."""

    scheme: str
    host: str
    port: int
    loopback: bool
    private: bool = False

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


@dataclass(frozen=True, slots=True)
class Public:
    pass


@dataclass(frozen=True, slots=True)
class Loopback:
    pass


@dataclass(frozen=True, slots=True)
class Denial:
    reason: str


def is_plain(text: str) -> bool:
    """Whether all URL parsers agree on this URL."""
    return _SMUGGLED.search(text) is None


def judge_url(url: str, policy: Policy) -> AllowedUrl | Denial:
    if len(url) > _LONGEST_URL:
        return Denial(f"the URL has {len(url):,} characters; the limit is {_LONGEST_URL:,}")
    if not is_plain(url):
        return Denial("the URL contains a space, backslash or control character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return Denial("not a valid URL")
    scheme, host = parts.scheme, (parts.hostname or "").removesuffix(".")
    if scheme not in _PORTS:
        return Denial("the URL scheme must be https (http only for loopback hosts)")
    if not host:
        return Denial("the URL has no host")
    if parts.username is not None or parts.password is not None:
        return Denial("the URL must not contain a user name or password")
    if port == 0:
        return Denial("port 0 is not valid")
    loopback = is_named_loopback(host)
    if loopback and not policy.loopback:
        return Denial(f"{host} is a loopback host, which is not allowed")
    if scheme == "http" and not loopback and not policy.private:
        return Denial("http is allowed only for loopback hosts; use https")
    asked = AllowedUrl(scheme, host, port or _PORTS[scheme], loopback, policy.private)
    try:
        address = str(ip_address(host))
    except ValueError:
        return asked  # a name: its addresses are judged when they are known
    judged = judge_address(address, asked)
    return judged if isinstance(judged, Denial) else asked


def judge_redirect(asked: AllowedUrl, url: str, policy: Policy) -> AllowedUrl | Denial:
    """Judges a redirect. No other host may redirect to this machine, and no https URL to http."""
    onward = judge_url(url, Policy(loopback=policy.loopback and asked.loopback))
    if isinstance(onward, AllowedUrl) and asked.scheme == "https" and onward.scheme == "http":
        return Denial("a redirect from https to http is not allowed")
    return onward


def judge_address(address: str, asked: AllowedUrl) -> Public | Loopback | Denial:
    """Whether this address may be connected to for that URL."""
    kind = _kind(address)
    if isinstance(kind, Denial):
        return Public() if asked.private and _is_private(address) else kind
    if asked.loopback and isinstance(kind, Public):
        return Denial(f"{asked.host} is a loopback name but resolves to {address}")
    if not asked.loopback and isinstance(kind, Loopback):
        return Denial(f"{address} is not a public address: it belongs to this machine")
    if asked.scheme == "http" and isinstance(kind, Public):
        return Denial(f"{asked.host} is not in a private network, so http is not allowed; use https")
    return kind


def shown(url: str) -> str:
    """The URL as errors show it: without the parts that often contain a key."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return SplitResult(parts.scheme, host, parts.path, "", "").geturl()
    except ValueError:
        return "the URL"


def is_named_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return isinstance(_kind(str(ip_address(host))), Loopback)
    except ValueError:
        return False


def is_loopback_url(url: str) -> bool:
    try:
        return is_named_loopback((urlsplit(url).hostname or "").removesuffix("."))
    except ValueError:
        return False


def _kind(address: str) -> Public | Loopback | Denial:
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return Denial(f"{address!r} is not an IP address")
    plain = ip if isinstance(ip, IPv4Address) else _embedded(ip) or ip
    if plain.is_loopback:
        # Only in its plain spelling: no benign URL writes this machine as a tunnel address.
        return Loopback() if plain is ip else Denial(f"{address} is not a public address")
    special = _SPECIAL_IPV4 if isinstance(plain, IPv4Address) else _SPECIAL_IPV6
    for network, reason in special:
        if plain in network:
            return Denial(f"{address} is not a public address: it is {reason}")
    if isinstance(plain, IPv6Address) and plain not in _GLOBAL_IPV6:
        return Denial(f"{address} is not a public address: it is reserved")
    return Public()


def _is_private(address: str) -> bool:
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    # It returns credentials of the machine, which allowing private networks must not expose.
    return ip != _AWS_METADATA and any(ip in network for network in _PRIVATE)


def _embedded(ip: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that traffic for this one ends up at."""
    if ip in _MAPPED or ip in _NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip in _SIX_TO_FOUR:
        return IPv4Address(int(ip) >> 80 & 0xFFFFFFFF)
    return None
