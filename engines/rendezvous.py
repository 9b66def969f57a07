"""Where the ranks of a process group meet: on one address, not on every one as torch's own does."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore


_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def use_interface_of(address: str) -> None:
    """Have gloo and NCCL of this process talk through the network interface with this address of
    this host; by themselves they take what the host's name stands for. What a person set stays."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            for variable in _INTERFACE_VARIABLES:
                os.environ.setdefault(variable, name)


def interfaces() -> str:
    """Return which network interfaces gloo and NCCL of this process use, for an error's words.

    Example: "GLOO_SOCKET_IFNAME=eth0, NCCL_SOCKET_IFNAME=eth0"
    """
    return ", ".join(f"{name}={os.environ.get(name, '')}" for name in _INTERFACE_VARIABLES)


def listen(host: str, port: int = 0, backlog: int = 128) -> socket.socket:
    """Return a socket on which rank 0 can serve its store; without a port, on a free one.

    Rank 0 opens it before it tells the others where: a port that is only looked up may be taken by
    anyone until the group starts.
    """
    return socket.create_server((host, port), backlog=backlog)


def store_at(
    url: str, rank: int, world: int, timeout: timedelta, listener: socket.socket | None = None
) -> TCPStore:
    """The store at e.g. tcp://127.0.0.1:29500; rank 0 serves it there and returns when all came.

    `listener` is rank 0's socket on that address, if it has one already; the store takes it over.
    Whoever reaches that port can disturb the group, and no key is asked for.
    """
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"{url} is not a rendezvous address: tcp://HOST:PORT is expected")
    return tcp_store(parts.hostname, parts.port, rank, world, timeout, listener)


def tcp_store(
    host: str,
    port: int,
    rank: int,
    world: int,
    timeout: timedelta,
    listener: socket.socket | None = None,
) -> TCPStore:
    """Make the store by host and port."""
    from torch._C._distributed_c10d import TCPStore

    if rank:
        return TCPStore(host, port, world, is_master=False, timeout=timeout)
    served = listener or listen(host, port, max(128, world))
    return TCPStore(
        host, port, world, is_master=True, timeout=timeout, master_listen_fd=served.detach()
    )
