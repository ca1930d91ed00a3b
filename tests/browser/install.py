"""Installs what the browser suite needs: Debian's chromium, and axe-core from npm into .browser/.

Without the rights to install a system package, it says so and the tests are skipped.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / ".browser"
AXE = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
_AXE_VERSION = "4"


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


def main() -> None:
    if chromium() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        packages = ["chromium", "fonts-inter", "fonts-jetbrains-mono"]
        if subprocess.run(["apt-get", "update", "-q"], env=environment).returncode == 0:
            subprocess.run(
                ["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages], env=environment
            )
    if chromium() is None:
        print("BROWSER TESTS WILL BE SKIPPED: chromium is missing; install it as root", file=sys.stderr)
    if not AXE.exists() and shutil.which("npm"):
        FOLDER.mkdir(exist_ok=True)
        quiet = ["--no-audit", "--no-fund", "--silent"]
        subprocess.run(
            [
                "npm",
                "install",
                "--prefix",
                str(FOLDER),
                "--ignore-scripts",
                *quiet,
                f"axe-core@{_AXE_VERSION}",
            ]
        )
    if not AXE.exists():
        print("ACCESSIBILITY TESTS WILL BE SKIPPED: axe-core is missing; install npm", file=sys.stderr)


if __name__ == "__main__":
    main()
