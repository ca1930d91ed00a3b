"""What an agent CLI sees of the worker's environment.

The minimum that programs need, the network's settings, and what the owner passes by name. The worker's token
is not the CLI's: the only variables of Lastgood are those of its own task.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path

_PASSED = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "XDG_CONFIG_HOME",
        "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
    }
)  # fmt: skip
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
#: Each replaces a program's certificates, so it gets the system's and the private ones together.
_BUNDLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)


def cli_environment(
    ours: Mapping[str, str], pass_env: Sequence[str], ca_bundle: Path | None = None
) -> dict[str, str]:
    passed = {
        name: value
        for name, value in ours.items()
        if name in _PASSED or name.startswith("LC_") or name.upper() in _PROXIES or name in pass_env
    }
    environment = {name: value for name, value in passed.items() if not name.startswith("LASTGOOD_")}
    environment["TERM"] = "dumb"
    if ca_bundle is not None:
        environment |= dict.fromkeys(_BUNDLES, str(ca_bundle))
    return environment


def task_environment(server: str, task: str, session: str, task_token: str | None) -> dict[str, str]:
    """What a CLI needs to read its own task and session. `LASTGOOD_TOKEN` is the name that the command
    `lastgood` looks for."""
    if task_token is None:
        return {}
    return {
        "LASTGOOD_SERVER": server,
        "LASTGOOD_TOKEN": task_token,
        "LASTGOOD_TASK": task,
        "LASTGOOD_SESSION": session,
    }


def write_ca_bundle(ca_file: Path, root: Path, ours: Mapping[str, str]) -> Path:
    """Writes the certificates of the file, and those that programs trust without it, into one file."""
    named = [ours[name] for name in _BUNDLES if ours.get(name)]
    system = ssl.get_default_verify_paths().cafile
    files = dict.fromkeys([*named, *([system] if system else []), str(ca_file)])
    bundle = root / "ca-bundle.pem"
    bundle.write_bytes(b"\n".join(Path(file).read_bytes() for file in files if Path(file).is_file()))
    return bundle
