"""What servers can reach of a trainer's side, its host and a folder: ours are asked, and try it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from engines.rendezvous import listen
from engines.sglang.http import UnknownRequest, call
from infra.cuda import gpu_uuid
from infra.errors import StorageError
from infra.store.store import Store

REACH = "/tributary/reach"
_TRY_S = 5.0
ANSWER_S = 60.0
_PROBE = ".reach-"


def is_on_this_host(url: str) -> bool:
    """Return whether a server's address is one of this host's."""
    try:
        with socket.socket() as probe:
            probe.bind((urlsplit(url).hostname, 0))
    except OSError:
        return False
    return True


def address_towards(url: str) -> str:
    """This host's own address on the way to a server."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port))  # a datagram socket: nothing is sent
        return str(probe.getsockname()[0])


def reaches_this_host(url: str) -> bool:
    """Return whether the server can connect to a port here. True of one that is none of ours: it is
    not known. Raises EngineError if it does not answer."""
    with listen(address_towards(url)) as listener:
        host, port = listener.getsockname()[:2]
        return _asked(url, {"host": host, "port": port}, unknown=True)


def reads_folder(url: str, folder: str) -> bool:
    """Return whether the server sees what is written here to `folder`, a fsspec URL. False of one
    that is none of ours. Raises EngineError if it does not answer, StorageError if this side cannot
    write.
    """
    store, probe = Store(folder), f"{_PROBE}{token_hex(4)}"
    store.write(probe, probe.encode())
    try:
        return _asked(url, {"folder": store.root, "file": probe}, unknown=False)
    finally:
        with suppress(StorageError):
            store.delete_tree(probe)


def answer_reach(body: dict[str, Any]) -> dict[str, Any]:
    """The server's side of both."""
    if "folder" in body:
        return {"success": True, "reaches": _reads(body["folder"], body["file"])}
    try:
        with socket.create_connection((body["host"], body["port"]), timeout=_TRY_S):
            return {"success": True, "reaches": True}
    except OSError:
        return {"success": True, "reaches": False}


def answer_gpus(numbers: Sequence[int]) -> dict[str, Any]:
    """The server's side of a question for its ranks' GPUs, which have these numbers here."""
    return {"success": True, "gpus": [gpu_uuid(number) for number in numbers]}


def _reads(folder: str, file: str) -> bool:
    try:
        return Store(folder).read(file) == file.encode()
    except (FileNotFoundError, StorageError):
        return False


def _asked(url: str, body: dict[str, Any], *, unknown: bool) -> bool:
    try:
        return bool(call(url, REACH, body, timeout=ANSWER_S)["reaches"])
    except UnknownRequest:
        return unknown
