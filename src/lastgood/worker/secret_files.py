"""Decides which files never leave the machine, by their names."""

from __future__ import annotations

from fnmatch import fnmatchcase

#: Made by tools and made again by them.
IGNORED_FOLDERS = frozenset(
    {
        ".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".mypy_cache", ".pytest_cache",
        ".ruff_cache", ".tox", ".nox", ".cache", ".next", ".gradle", ".terraform",
    }
)  # fmt: skip
_FOLDERS = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".docker", ".azure", ".gcloud", ".password-store"})
_NAMES = (
    ".env", ".env.*", "*.env", ".envrc", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
    "*.ppk", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", ".netrc", "_netrc", ".npmrc", ".pypirc",
    ".pgpass", ".my.cnf", ".git-credentials", ".htpasswd", ".dockercfg", "credentials", "credentials.*",
    "*credentials*.json", "secret", "secrets", "secret.*", "secrets.*", "*.secret", "*.secrets",
    "service-account*.json", "service_account*.json", "*.tfstate", "*.tfvars",
)  # fmt: skip
_TEMPLATES = (".env.example", ".env.sample", ".env.template", ".env.dist")


def holds_secrets(path: str) -> bool:
    """A relative path with slashes."""
    *folders, name = path.lower().split("/")
    if not _FOLDERS.isdisjoint(folders):
        return True
    return name not in _TEMPLATES and any(fnmatchcase(name, pattern) for pattern in _NAMES)


def is_ignored(path: str) -> bool:
    return not IGNORED_FOLDERS.isdisjoint(path.split("/"))
