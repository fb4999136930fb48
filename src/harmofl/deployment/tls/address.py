"""Where sites reach a server that listens on a TCP port."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from harmofl.errors import UsageError

PORT = 8443
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
BRACKETED = re.compile(r"\[(.*)\](?::(.*))?")


@dataclass(frozen=True)
class Address:
    """A host's name or IP address, and a port."""

    host: str
    port: int = PORT

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read HOST, HOST:PORT, an IPv6 address, or [IPv6]:PORT."""
        bracketed = BRACKETED.fullmatch(text)
        if bracketed:
            host, port = bracketed.group(1), bracketed.group(2)
        elif text.count(":") == 1:
            host, port = text.split(":")
        else:
            host, port = text, None
        if "/" in text or not (HOST.fullmatch(host) or is_ip_address(host)):
            raise UsageError(f"--server {text!r}: must be a host name or an address, with :PORT if it is not {PORT}")
        if port is not None and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise UsageError(f"--server {text!r}: the port must be a number from 1 to 65535")
        return cls(host, int(port) if port else PORT)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_ip_address(text: str) -> bool:
    """Whether this is an IPv4 or IPv6 address."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def complete_address(text: str) -> str:
    """Add the default port to an address that has none; raise an error for what is not an address."""
    return str(Address.parse(text))
