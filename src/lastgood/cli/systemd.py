"""Tells systemd when the server is ready and when it stops, by the protocol of sd_notify(3).

Does nothing where no service manager listens. A notification is a courtesy: if it cannot be sent, the server
serves anyway, and systemd's own start timeout reports it.
"""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger(__name__)

READY = "READY=1"
STOPPING = "STOPPING=1"


def notify_systemd(state: str, status: str) -> None:
    """`status` is the line that `systemctl status` shows."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    name = "\0" + address[1:] if address.startswith("@") else address  # "@": an abstract socket
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.connect(name)
            # Never waits: a manager that does not read must not hold the event loop.
            sending.send(f"{state}\nSTATUS={status}".encode(), socket.MSG_DONTWAIT)
    except OSError as error:
        log.warning("cannot notify systemd", extra={"fields": {"socket": address, "error": str(error)}})
