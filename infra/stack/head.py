"""The Ray head of another host's stack, as a host sees it that is to join."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

from infra.access import HOST_VARIABLE, is_loopback
from infra.errors import InfrastructureError, InputError

if TYPE_CHECKING:
    from infra.stack.record import Stack

_CONNECT_S = 5.0
_ASK_S = 60.0
_ASK = """
import json, sys
from ray._raylet import GcsClient
nodes = GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20)
print(json.dumps([node.node_manager_address for node in nodes.values() if node.is_head_node]))
"""


def address_towards(head: str) -> str:
    """This host's own address on the way to `head` (HOST:PORT), which must answer.

    Raises InputError for what is no such address, InfrastructureError if nothing answers.
    """
    host, _, port = head.rpartition(":")
    if not host or not port.isdecimal():
        raise InputError(
            f"--join {head}: write HOST:PORT of the Ray head, as `tributary status` shows it there"
        )
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_S) as connection:
            own = str(connection.getsockname()[0])
    except OSError as error:
        raise InfrastructureError(
            f"nothing answers at {head} ({error}): see `tributary status` on that host; its"
            " firewall must let this one in"
        ) from error
    if is_loopback(own):
        raise InputError(
            f"--join {head}: that is this host itself. A host joins the stack of another one,"
            f" which was started there with {HOST_VARIABLE}=ADDRESS"
        )
    return own


def require_head(stack: Stack) -> None:
    """Raises InputError unless the head of a joining stack lets it in and tells other hosts an
    address of its own."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK, stack.head],
            env=os.environ | stack.env(), capture_output=True, text=True, timeout=_ASK_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InfrastructureError(
            f"the Ray head at {stack.head} did not answer within {_ASK_S:.0f} s"
        ) from None
    if asked.returncode:
        if "AuthToken" in asked.stderr or "UNAUTHENTICATED" in asked.stderr.upper():
            raise InputError(
                f"the stack at {stack.head} has another key: set TRIBUTARY_KEY to what the file"
                " `key` in that host's home says"
            )
        raise InfrastructureError(
            f"{stack.head} is no Ray head of this version: {asked.stderr.strip()[-500:]}"
        )
    known: list[str] = json.loads(asked.stdout.splitlines()[-1])
    if any(is_loopback(address) for address in known):
        raise InputError(
            f"the stack at {stack.head} calls its host {known[0]}, so no other host can work with"
            f" it: start it again with {HOST_VARIABLE} set to one address of that host"
        )
