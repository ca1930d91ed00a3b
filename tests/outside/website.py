"""A real HTTP server on this machine: a test tells it what to say, and it writes down what it was asked."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

#: Whom a secure one can speak for.
HOSTS = (
    "*.example.com",
    "github.com",
    "*.githubusercontent.com",
    "*.githubusercontent.com.example.com",
    "evil-github.com",
)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Asked:
    path: str  # with its query
    headers: Mapping[str, str]


@dataclass(slots=True)
class Website:
    port: int = 0
    scheme: str = "http"
    pages: dict[str, Answer] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    def says(
        self,
        path: str,
        body: bytes | str = b"",
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        data = body.encode() if isinstance(body, str) else body

        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(body=data, status=status, headers=headers)

        self.pages[path] = answer

    def leads(self, path: str, to: str, status: int = 302) -> None:
        self.says(path, status=status, headers={"Location": to})

    def publishes(self, path: str, body: str, etag: str) -> None:
        """With an ETag: who has it already is told so, without the body."""

        async def answer(request: web.Request) -> web.StreamResponse:
            known = request.headers.get("If-None-Match") == etag
            return web.Response(
                body=b"" if known else body.encode(), status=304 if known else 200, headers={"ETag": etag}
            )

        self.pages[path] = answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(Asked(request.path_qs, dict(request.headers)))
        page = self.pages.get(request.path)
        return await page(request) if page else web.Response(status=404, text="no such page")


@asynccontextmanager
async def website(*, tls: bool = False, port: int = 0) -> AsyncIterator[Website]:
    site = Website(scheme="https" if tls else "http")
    app = web.Application()
    app.router.add_get("/{path:.*}", site._answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        listener = web.TCPSite(
            runner, "127.0.0.1", port, ssl_context=contexts()[0] if tls else None, reuse_address=True
        )
        await listener.start()
        site.port = runner.addresses[0][1]
        yield site
    finally:
        await runner.cleanup()


@cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server that has a certificate for these hosts, and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "example.com")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in HOSTS]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "server.pem"
        file.write_bytes(pem + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        server.load_cert_chain(file)
    return server, ssl.create_default_context(cadata=pem.decode())
