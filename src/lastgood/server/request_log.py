"""The log line of a request."""

from __future__ import annotations

import logging

from lastgood.surfaces.http.app import AnsweredRequest

log = logging.getLogger("lastgood.requests")


def log_request(seen: AnsweredRequest) -> None:
    """Logs the client, the route and the status of a request; never its content."""
    if seen.route is not None and seen.route.probe:
        return
    fields = {
        "request_id": seen.request.id,
        "method": seen.request.method,
        "route": seen.route.path if seen.route else None,
        "status": seen.status,
        "ended": seen.ended.value,
        "ms": round(seen.seconds * 1000, 1),
        "tenant": seen.request.caller.tenant,
        "caller": seen.request.caller.name,
        "peer": seen.request.peer,
    }
    if seen.request.failure:
        fields["code"] = seen.request.failure
    log.info("request", extra={"fields": fields})
