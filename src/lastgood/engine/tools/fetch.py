"""The `fetch` toolset: reads web pages, from public addresses (and private networks, if its file says so).

What may be reached is decided by `core/egress`, for each redirect again. A page is untrusted: it is a tool
result, and nothing in it grants any right.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from urllib.robotparser import RobotFileParser

import orjson

from lastgood.core.allowed_hosts import Hosts
from lastgood.core.egress import Policy
from lastgood.engine.tools.cancellation import in_thread
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.html_text import to_markdown, to_text
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.outside.network import EgressError, EgressRefused, Fetched, Network, fetch
from lastgood.outside.secrets import Secrets

SECONDS = 30
MOST_SECONDS = 300
MOST_URLS = 20
PAGE_BYTES = 1024 * 1024
_ROBOTS_BYTES = 64 * 1024
_OURSELVES = "lastgood"
_ACCEPT = {
    "markdown": "text/markdown;q=1.0, text/plain;q=0.9, text/html;q=0.7, */*;q=0.1",
    "html": "text/html;q=1.0, text/plain;q=0.8, */*;q=0.1",
    "text": "text/plain;q=1.0, text/markdown;q=0.9, text/html;q=0.8, */*;q=0.1",
}
#: Some codecs of Python are no text encodings, or take forever.
_CHARSETS = re.compile(
    r"(utf|us-ascii|ascii|latin|iso-|windows-|cp\d|gb|big5|shift|sjis|euc-|koi8|mac)", re.I
)


def fetch_toolset(spec: ToolsetSpec, environment: Environment, network: Network) -> Sequence[Tool]:
    default = min(int(spec.options.get("timeout") or SECONDS), MOST_SECONDS)
    hosts = Hosts(*(spec.options.get(key) or () for key in ("allowed_domains", "blocked_domains")))

    policy = Policy(private=spec.trusted and spec.options.get("allow_private_ips") is True)

    async def run(use: ToolUse) -> str:
        urls: list[str] = use.arguments["urls"]
        if len(urls) > MOST_URLS:
            raise ToolFailed(f"at most {MOST_URLS} URLs in one call")
        seconds = use.arguments.get("timeout", default)
        headers, secret = environment.filled(spec.options.get("headers") or {}, spec.trusted)
        if secret and not spec.options.get("allowed_domains"):
            # The model chooses the URL, and a page that it has read may have instructed it to.
            raise ToolFailed(
                "the headers of this tool contain a secret; set allowed_domains in the agent file"
            )
        asking = _Asking(
            hosts, _guarded(network, hosts), headers, use.arguments.get("format", "markdown"), seconds, policy
        )
        pages = [(await asking.page(url)).scrubbed(environment.secrets) for url in urls]
        if len(pages) > 1:
            several = orjson.dumps([page.as_json() for page in pages]).decode()
            return _escaped(several) if spec.options.get("escape_html") else several
        return pages[0].alone()

    return [
        Tool(
            "fetch",
            "Fetch content from one or more HTTP/HTTPS URLs. Returns the response body and metadata.",
            {
                "type": "object",
                "properties": {
                    "urls": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Array of URLs to fetch",
                        "minItems": 1,
                    },
                    "format": {
                        "type": "string",
                        "description": "The format to return the content in (text, markdown, or html)",
                        "enum": list(_ACCEPT),
                    },
                    "timeout": {
                        "type": "integer",
                        "description": f"Request timeout in seconds (default: {default})",
                        "minimum": 1,
                        "maximum": MOST_SECONDS,
                    },
                },
                "required": ["urls"],
            },
            run,
            on_unknown=OnUnknown.REPEAT,
            effect=Effect.SAFE,
        )
    ]


@dataclass(frozen=True, slots=True)
class _Page:
    url: str
    status: int = 0
    kind: str = ""
    body: str = ""
    error: str = ""

    def scrubbed(self, secrets: Secrets) -> _Page:
        """A page may say back what it was sent."""
        return replace(self, body=secrets.scrub(self.body), error=secrets.scrub(self.error))

    def as_json(self) -> dict[str, Any]:
        if self.error:
            return {"url": self.url, "error": self.error}
        return {
            "url": self.url,
            "statusCode": self.status,
            "contentType": self.kind,
            "contentLength": len(self.body),
            "body": self.body,
        }

    def alone(self) -> str:
        if self.error:
            raise ToolFailed(f"Error fetching {self.url}: {self.error}")
        about = f"Status: {self.status}, Length: {len(self.body)} characters"
        return f"Successfully fetched {self.url} ({about}):\n\n{self.body}"


def _guarded(network: Network, hosts: Hosts) -> Network:
    """The same, but for the hosts that the file does not want; redirects come this way, too."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        _check(hosts, host)
        return await network.resolve(host, port)

    return replace(network, resolve=resolve)


def _check(hosts: Hosts, host: str) -> None:
    if hosts.refuse(host):
        raise EgressRefused(f"{host} is not an allowed host for this tool")


@dataclass(frozen=True, slots=True)
class _Asking:
    hosts: Hosts
    network: Network
    headers: Mapping[str, str]
    format: str
    seconds: float
    policy: Policy
    robots: dict[str, RobotFileParser | None] = field(default_factory=dict)  # by origin, for this call

    async def page(self, url: str) -> _Page:
        try:
            # Hosts that are IP addresses are never resolved, so they are checked here, before and after.
            _check(self.hosts, _host(url))
            if not await self._welcome(url):
                return _Page(url, error="URL blocked by robots.txt")
            fetched = await self._fetch(url, PAGE_BYTES, {"Accept": _ACCEPT[self.format], **self.headers})
            _check(self.hosts, _host(fetched.url))
        except EgressError as error:
            return _Page(url, error=str(error))
        kind = fetched.headers.get("content-type", "")
        if b"\x00" in fetched.body[:8192] and "utf-16" not in kind.lower():
            return _Page(url, error=f"the response is not text ({kind or 'unknown media type'})")
        body = await in_thread(lambda stop: _converted(fetched, kind, self.format))
        if fetched.truncated:
            body += f"\n\n[Truncated; only the first {PAGE_BYTES} bytes were read]"
        return _Page(url, fetched.status, kind, body)

    async def _fetch(self, url: str, limit: int, headers: Mapping[str, str]) -> Fetched:
        return await fetch(
            url,
            headers=headers,
            limit_bytes=limit,
            timeout_seconds=self.seconds,
            policy=self.policy,
            network=self.network,
        )

    async def _welcome(self, url: str) -> bool:
        """A site without robots.txt allows everything; a 5xx response for it denies everything."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self.robots:
            self.robots[origin] = await self._rules(origin)
        rules = self.robots[origin]
        return rules is None or rules.can_fetch(_OURSELVES, url)

    async def _rules(self, origin: str) -> RobotFileParser | None:
        try:
            found = await self._fetch(f"{origin}/robots.txt", _ROBOTS_BYTES, {})
        except EgressError:
            return None
        rules = RobotFileParser()
        if found.status >= 500:
            rules.parse(["User-agent: *", "Disallow: /"])
        elif found.status == 200:
            rules.parse(found.body.decode(errors="replace").splitlines())
        else:
            return None
        return rules


def _escaped(plain: str) -> str:
    """JSON that can stand in a page of HTML."""
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        raise EgressRefused("not a valid URL") from None


def _converted(fetched: Fetched, kind: str, format_: str) -> str:
    text = fetched.body.decode(_charset(fetched.body, kind), errors="replace")
    if "html" not in kind.lower() or format_ == "html":
        return text
    return to_text(text) if format_ == "text" else to_markdown(text, fetched.url)


def _charset(body: bytes, kind: str) -> str:
    named = re.search(r"charset=[\"']?([\w.:-]+)", kind, re.I) or re.search(
        r"charset=[\"']?([\w.:-]+)", body[:1024].decode("latin-1"), re.I
    )
    name = named[1] if named else "utf-8"
    try:
        return codecs.lookup(name).name if _CHARSETS.match(name) else "utf-8"
    except LookupError:
        return "utf-8"
