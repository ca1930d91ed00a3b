"""Builds toolsets as agents have them: references resolved, the rest of their keys as plain data."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from ipaddress import ip_network
from typing import Any
from urllib.parse import urlsplit

from lastgood.agents.findings import Findings, Location, hint
from lastgood.agents.placeholders import check_filled, check_text
from lastgood.agents.schema_reader import Fields, Value
from lastgood.core.egress import is_named_loopback
from lastgood.core.toon import why_not_patterns
from lastgood.core.url_template import why_not_an_endpoint
from lastgood.model.agents import ToolsetSpec

_NAMED = ("type", "tools", "instruction")
_DOCKER = "docker:"
#: Where the `ref` of a toolset leads.
_HOMES = {"mcp": "mcps", "rag": "rag"}


class ToolsetBuilder:
    """Each definition is built once, however many agents use it."""

    def __init__(
        self,
        named: Mapping[str, Fields],
        mcps: Mapping[str, Fields],
        rag: Collection[str],
        findings: Findings,
        trusted: bool,
    ) -> None:
        """`named` are the toolsets that agents share, `mcps` the servers, `rag` the names of documents."""
        self._mcps = mcps
        self._rag = rag
        self._findings = findings
        self._trusted = trusted
        self._servers = {
            name: {key: plain(one) for key, one in fields.values.items()} for name, fields in mcps.items()
        }
        for name, fields in mcps.items():
            self._check_server(name, fields)
            self._check_config(fields, fields.text("ref"))
            self._check_values(fields)
        self.named = {name: self.build(fields) for name, fields in named.items()}

    def _check_server(self, name: str, fields: Fields) -> None:
        ref = fields.text("ref")
        if ref and not ref.startswith(_DOCKER):
            what = f"the server '{name}' must refer to docker:NAME, not to '{ref}'"
            self._findings.error(fields.at("ref"), what)

    def build(self, fields: Fields) -> ToolsetSpec | None:
        """None: its type is unknown, and the findings say so."""
        kind = fields.text("type")
        if not kind:
            return None
        self._check_lists(fields)
        self._check_values(fields)
        if "post_edit" in fields and not self._trusted:
            what = "an agent file from a URL may not run commands after edits: these are ignored"
            self._findings.warning(fields.at("post_edit"), what)
        if kind in ("api", "open_url"):
            self._check_name(fields.raw("api_config") if kind == "api" else fields)
        if "toon" in fields:
            self._check_toon(kind, fields)
        if kind == "api" and "api_config" in fields:
            self._check_endpoint(fields.raw("api_config"))
        values = self._resolved(kind, fields)
        if kind == "mcp":
            self._check_config(fields, str(values.get("ref") or ""))
        return ToolsetSpec(
            type=kind,
            tools=tuple(values.get("tools", ())) or None,
            instruction=values.get("instruction", ""),
            options={key: value for key, value in values.items() if key not in _NAMED},
            trusted=self._trusted,
        )

    def _check_config(self, fields: Fields, ref: str) -> None:
        if "config" in fields and not ref.startswith(_DOCKER):
            what = "'config' is not supported yet without a `ref: docker:NAME`: it is not sent"
            self._findings.warning(fields.at("config"), what)

    def _resolved(self, kind: str, fields: Fields) -> dict[str, Any]:
        """What the toolset says, and else what the server it refers to says."""
        own = {key: plain(value) for key, value in fields.values.items()}
        ref = fields.text("ref")
        if not ref or ref.startswith(_DOCKER) or kind not in _HOMES:
            return own
        known = self._mcps if kind == "mcp" else self._rag
        if ref not in known:
            near = hint(ref, known) or "; define it there"
            self._findings.error(fields.at("ref"), f"'{ref}' is not in `{_HOMES[kind]}`{near}")
            return own
        if kind == "mcp":
            server = self._servers[ref]
            own = {**server, **{key: value for key, value in own.items() if key != "ref"}}
            own["type"] = kind
            if "env" in server and "env" in fields:
                own["env"] = {**server["env"], **own["env"]}
        return own

    def _check_values(self, fields: Fields) -> None:
        check_text(fields, ("instruction",), self._findings)
        remote: Fields | None = fields.raw("remote")
        scripts: list[Fields] = [one.raw for one in fields.named("shell").values()]
        config: Fields | None = fields.raw("api_config")
        for section in (fields, *scripts, remote, config):
            if section is not None:
                check_filled(section, self._findings)
        if remote is not None and self._trusted and not fields.raw("allow_private_ips", False):
            self._check_address(remote)

    def _check_address(self, remote: Fields) -> None:
        try:
            parts = urlsplit(remote.text("url"))
            is_near = is_named_loopback(parts.hostname or "")
        except ValueError:
            return  # what is wrong with it is said when it is called
        if parts.scheme == "http" and not is_near:
            what = (
                "http to another machine is not supported without `allow_private_ips: true`; add it if the "
                "server is in a private network, else use https"
            )
            self._findings.warning(remote.at("url"), what)

    def _check_toon(self, kind: str, fields: Fields) -> None:
        problem = why_not_patterns(fields.text("toon"))
        if problem is not None:
            self._findings.error(fields.at("toon"), problem)
        if kind == "todo":
            what = "'toon' is ignored: the to-do list is read from its results, which stay JSON"
            self._findings.warning(fields.at("toon"), what)

    def _check_name(self, config: Fields | None) -> None:
        name = "" if config is None else config.text("name")
        if config is not None and name and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) is None:
            what = f"'{name}' is not a name of a tool; use up to 64 letters, digits, '_' and '-'"
            self._findings.error(config.at("name"), what)

    def _check_endpoint(self, config: Fields) -> None:
        problem = why_not_an_endpoint(config.text("endpoint")) if "endpoint" in config else None
        if problem is not None:
            self._findings.error(config.at("endpoint"), f"'{config.text('endpoint')}': {problem}")

    def _check_lists(self, fields: Fields) -> None:
        for key in ("allow_list", "deny_list", "allowed_domains", "blocked_domains"):
            for one in fields.listed(key):
                if not one.raw.strip():
                    self._findings.error(one.place, f"an entry of '{key}' is empty; remove it")
                elif key.endswith("_domains"):
                    self._check_domain(one.raw.strip(), one.place)

    def _check_domain(self, pattern: str, place: Location) -> None:
        if "/" in pattern:
            try:
                ip_network(pattern, strict=False)
            except ValueError:
                self._findings.error(
                    place, f"'{pattern}' is not a network; use CIDR notation, for example 10.0.0.0/8"
                )
        elif "*" in pattern and not (pattern.startswith("*.") and "*" not in pattern[2:] and pattern[2:]):
            self._findings.error(place, f"in '{pattern}' '*' is only allowed as *.example.com")


def plain(value: Any) -> Any:
    """Without places: text, numbers, flags, lists and mappings."""
    match value:
        case Value(raw):
            return plain(raw)
        case Fields(values):
            return {key: plain(one) for key, one in values.items()}
        case dict():
            return {key: plain(one) for key, one in value.items()}
        case list():
            return [plain(one) for one in value]
        case _:
            return value
