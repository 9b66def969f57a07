"""Free TCP ports."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection

# Below the kernel's ephemeral range, so no outgoing connection takes one between choice and use;
# above Ray's default worker range, so another person's Ray does not either.
_LOWEST, _HIGHEST = 20_000, 32_000


def is_free(port: int) -> bool:
    """Whether a server could listen there now, on any address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_ports(count: int, avoid: Collection[int] = ()) -> list[int]:
    """`count` different free ports, none of them in `avoid`."""
    found: list[int] = []
    for port in random.sample(range(_LOWEST, _HIGHEST), _HIGHEST - _LOWEST):
        if len(found) == count:
            break
        if port not in avoid and is_free(port):
            found.append(port)
    return found


def is_listening(port: int, timeout: float = 1.0) -> bool:
    """Whether something accepts connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=timeout).close()
    except OSError:
        return False
    return True
