"""Trusted proxies: their X-Forwarded headers count, and requests that come from them are marked.

The mark is set from the address of the connection, before X-Forwarded-For replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lastgood.surfaces.http.asgi import FROM_PROXY, Receive, Scope, Send


class TrustedProxies:
    def __init__(self, app: Any, addresses: Sequence[str]) -> None:
        from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

        self._app = ProxyHeadersMiddleware(app, list(addresses))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if client is not None and client[0] in self._app.trusted_hosts:
            scope[FROM_PROXY] = True
        await self._app(scope, receive, send)  # type: ignore[arg-type]
