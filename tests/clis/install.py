"""Installs the agent CLIs that the kinds are tested with, into `.clis/`, which git ignores.

Exit code 0 even if a package cannot be had: its tests are skipped, and say why.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".clis"
#: Newer releases of claude-code need Node 22, and npm would pick an older one silently.
PACKAGES = {
    "@aaif/goose-binary-linux-x64": "1.52.0",
    "@anthropic-ai/claude-code": "2.1.197",
    "@openai/codex": "0.166.0",
}
COMMANDS = {"goose": "goose-binary-linux-x64", "claude": "claude", "codex": "codex"}


def path_of(cli: str) -> Path:
    return FOLDER / "node_modules" / ".bin" / COMMANDS[cli]


def installed_version(package: str) -> str | None:
    try:
        return str(json.loads((FOLDER / "node_modules" / package / "package.json").read_text())["version"])
    except OSError:
        return None


def install() -> list[str]:
    """Returns what could not be installed."""
    missing = [name for name, version in PACKAGES.items() if installed_version(name) != version]
    if missing and shutil.which("npm"):
        FOLDER.mkdir(exist_ok=True)
        wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
        quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
        subprocess.run(["npm", "install", *quiet, "--prefix", str(FOLDER), *wanted], check=False)
    return [name for name, version in PACKAGES.items() if installed_version(name) != version]


if __name__ == "__main__":
    for name in install():
        print(f"{name}@{PACKAGES[name]} could not be installed; its tests are SKIPPED", file=sys.stderr)
