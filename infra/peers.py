"""Whose program is at the other end of a connection that was made on this machine.

The kernel notes for each socket which user made it. A server can ask this of a client on the same
machine, which cannot lie about it, and a client of a server before it sends the key.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _LISTENS = "01", "0A"
"""of a connection that its maker closed, the kernel no longer says the user"""
_MAPPED = "0" * 16 + "FFFF0000"
"""in front of an IPv4 address in the table of IPv6, in the order in which this machine writes it"""
_ROOT = 0


def may_be_our_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Whether the client of this connection is on another machine, or a program of our own user's
    or root's. Both ends are IPv4 addresses with their ports."""
    if not _is_of_this_machine(client[0]):
        return True
    return any(uid in (os.geteuid(), _ROOT) for uid in _makers(client, server))


def strangers_at(ports: Collection[int], address: str = "127.0.0.1") -> dict[int, int]:
    """Those of these ports at which a program of another user's listens, with the user's number;
    none at an address of another machine. Such a program may wait for what is sent to one of ours
    that ended, or has not begun."""
    if not _is_of_this_machine(address):
        return {}
    return {
        port: uid
        for here, _, state, uid in _sockets()
        if state == _LISTENS and uid not in (os.geteuid(), _ROOT)
        and (port := int(here.rpartition(":")[2], 16)) in ports
    }  # fmt: skip


def _makers(client: tuple[str, int], server: tuple[str, int]) -> Iterator[int]:
    wanted = (_written(client), _written(server))
    for here, there, state, uid in _sockets():
        ends = (here.removeprefix(_MAPPED), there.removeprefix(_MAPPED))
        if ends == wanted and state == _ESTABLISHED:
            yield uid


def _sockets() -> Iterator[tuple[str, str, str, int]]:
    """Both ends, the state and the maker of each of this machine's."""
    for table in _TABLES:
        with suppress(FileNotFoundError), table.open() as lines:
            next(lines, None)  # the names of the columns
            for line in lines:
                _, here, there, state, _, _, _, uid, *_ = line.split()
                yield here, there, state, int(uid)


def _written(end: tuple[str, int]) -> str:
    """Example: ("127.0.0.1", 80) -> "0100007F:0050" """
    number = int.from_bytes(socket.inet_aton(end[0]), sys.byteorder)
    return f"{number:08X}:{end[1]:04X}"


def _is_of_this_machine(address: str) -> bool:
    """Only such an address can be bound."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
