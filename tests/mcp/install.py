"""Installs the reference MCP servers that the suite is run with, into `.mcp/`, which git ignores.

Exit code 0 even if a package cannot be had: its tests are skipped, and say why.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".mcp"
VENV = FOLDER / "python"
PYPI = {"mcp-server-fetch": "2026.10.19", "mcp-server-git": "2026.10.19"}
NPM = {
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
}


def path_of(package: str) -> Path:
    """Of the command that starts the server."""
    if package in PYPI:
        return VENV / "bin" / package
    return FOLDER / "node_modules" / ".bin" / f"mcp-{package.rpartition('/')[2]}"


def installed_version(package: str) -> str | None:
    if package in PYPI:
        wanted = package.replace("-", "_")
        found = sorted(VENV.glob(f"lib/python*/site-packages/{wanted}-*.dist-info"))
        return found[-1].name.removesuffix(".dist-info").rpartition("-")[2] if found else None
    try:
        return str(json.loads((FOLDER / "node_modules" / package / "package.json").read_text())["version"])
    except OSError:
        return None


def missing() -> list[str]:
    return [name for name, version in (PYPI | NPM).items() if installed_version(name) != version]


def install() -> list[str]:
    """Returns what could not be installed."""
    FOLDER.mkdir(exist_ok=True)
    wanted = missing()
    if any(name in PYPI for name in wanted):
        _install_from_pypi()
    if any(name in NPM for name in wanted) and shutil.which("npm"):
        quiet = ["--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
        names = [f"{name}@{version}" for name, version in NPM.items()]
        subprocess.run(["npm", "install", *quiet, "--prefix", str(FOLDER), *names], check=False)
    return missing()


def _install_from_pypi() -> None:
    """In an environment of their own: they need other versions than we do."""
    wanted = [f"{name}=={version}" for name, version in PYPI.items()]
    uv = shutil.which("uv") or _beside("uv")
    if uv is not None:
        subprocess.run([uv, "venv", "--quiet", "--allow-existing", "-p", sys.executable, VENV], check=False)
        python = ["--python", str(VENV / "bin" / "python")]
        subprocess.run([uv, "pip", "install", "--quiet", *python, *wanted], check=False)
    else:
        subprocess.run([sys.executable, "-m", "venv", VENV], check=False)
        subprocess.run([VENV / "bin" / "python", "-m", "pip", "install", "--quiet", *wanted], check=False)


def _beside(name: str) -> str | None:
    found = Path(sys.executable).parent / name
    return str(found) if found.exists() else None


if __name__ == "__main__":
    for name in install():
        print(f"{name}=={(PYPI | NPM)[name]} could not be installed; its tests are SKIPPED", file=sys.stderr)
