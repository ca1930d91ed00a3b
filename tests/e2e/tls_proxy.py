"""A company's network: a proxy that wants a password, and a server with a certificate of a private CA."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "lastgood.internal"


def write_certificates(folder: Path) -> tuple[Path, Path]:
    """The CA's certificate, and a file with the key and the certificate of the host."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A private CA")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)

    def certificate(
        subject: x509.Name, public: ec.EllipticCurvePublicKey, *, is_ca: bool
    ) -> x509.Certificate:
        usage = x509.KeyUsage(True, False, False, False, False, is_ca, is_ca, False, False)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
            )
        )
        if not is_ca:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        return builder.sign(ca_key, hashes.SHA256())

    pem = serialization.Encoding.PEM
    ca_file, host_file = folder / "ca.pem", folder / "host.pem"
    ca_file.write_bytes(certificate(ca_name, ca_key.public_key(), is_ca=True).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    host_file.write_bytes(private + certificate(name, key.public_key(), is_ca=False).public_bytes(pem))
    return ca_file, host_file


class CompanyNetwork:
    """`https://lastgood.internal` is reached through the proxy alone, and leads to the server's port."""

    def __init__(self, folder: Path, server_port: int, user: str, password: str) -> None:
        self.ca_file, self._host_file = write_certificates(folder)
        self._server_port = server_port
        self._expected = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.refused = self.tunnels = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.proxy_port = self._tls_port = 0

    url = f"https://{HOST}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        servers = self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._stop(servers))
        self._loop.close()

    async def _stop(self, servers: Sequence[asyncio.Server]) -> None:
        for server in servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)

    async def _start(self) -> Sequence[asyncio.Server]:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._host_file)
        front = await asyncio.start_server(self._front, "127.0.0.1", 0, ssl=tls)
        proxy = await asyncio.start_server(self._proxy, "127.0.0.1", 0)
        self._tls_port = front.sockets[0].getsockname()[1]
        self.proxy_port = proxy.sockets[0].getsockname()[1]
        return front, proxy

    async def _front(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._connect(reader, writer, self._server_port)

    async def _proxy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if f"Proxy-Authorization: Basic {self._expected}" not in head:
            self.refused += 1
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        assert head.startswith(f"CONNECT {HOST}:443 "), head
        self.tunnels += 1
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self._connect(reader, writer, self._tls_port)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        with contextlib.suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
            finally:
                for one in (writer, there_writer):
                    one.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()
