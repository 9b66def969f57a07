"""What a trainer asks of the copy of the weights in a server's process, and what that answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engines.devices.waiting_time import transfer_bound_s
from engines.sglang.http import UnknownRequest, call, order
from engines.weights.buckets import TAKE_S
from engines.weights.disk_delta.weight_copy import ServedCopy
from engines.weights.shared_memory import handles
from engines.weights.transport import CONTROL_S, ServerWeights, Target
from infra.errors import EngineError, StorageError

PREPARE, CONFIRM, FORGET = (
    "/tributary/prepare_weights",
    "/tributary/confirm_weights",
    "/tributary/forget_weights",
)


@dataclass(frozen=True, slots=True)
class SharedBucket:
    """Tensors in shared memory of the server's host."""

    handles: Sequence[str]
    """one for each of its ranks"""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a server has to load; or, if it cannot follow, why it needs the version whole."""

    buckets: Sequence[SharedBucket]
    lacks: str = ""


def prepare(target: Target, url: str, folder: str, held: ServerWeights, num_bytes: int) -> Prepared:
    """Have the server's copy become the version in `folder` of `url`. The server generates on.

    `num_bytes`: of the weights. Raises EngineError if it does not answer, or is none of ours.
    """
    body = {
        "url": url,
        "folder": folder,
        "version": held.version,
        "checksum": held.checksum,
        "num_ranks": target.num_ranks,
    }
    try:
        reply = call(target.url, PREPARE, body, timeout=transfer_bound_s(2 * num_bytes, TAKE_S))
    except UnknownRequest as error:
        raise EngineError(
            f"{target.url} keeps no copy of its weights, so it can take no delta: it is no server"
            " of Tributary. Choose `broadcast` or `disk` as the transport"
        ) from error
    buckets = [SharedBucket(each["handles"], each["num_bytes"]) for each in reply["buckets"]]
    return Prepared(buckets, reply["lacks"])


def confirm(url: str, held: ServerWeights) -> None:
    """Tell the copy that its server holds what was prepared."""
    body = {"version": held.version, "checksum": held.checksum}
    order(url, CONFIRM, body, timeout=CONTROL_S)


def forget(url: str) -> None:
    """Have the server give back the memory of its copy; one that does not answer has none."""
    with suppress(EngineError):
        order(url, FORGET, {}, timeout=CONTROL_S)


def answer_prepare(copy: ServedCopy, body: dict[str, Any]) -> dict[str, Any]:
    """The server's side of `prepare`."""
    held = ServerWeights(body["version"], body["checksum"])
    try:
        buckets = copy.prepare(body["url"], body["folder"], held)
    except (FileNotFoundError, StorageError) as error:
        return {"success": True, "buckets": [], "lacks": str(error)}
    shared = [
        {
            "handles": handles(bucket, body["num_ranks"]),
            "num_bytes": sum(tensor.nbytes for _, tensor in bucket),
        }
        for bucket in buckets
    ]
    return {"success": True, "buckets": shared, "lacks": ""}


def answer_confirm(copy: ServedCopy, body: dict[str, Any]) -> dict[str, Any]:
    """The server's side of `confirm`."""
    copy.confirm(ServerWeights(body["version"], body["checksum"]))
    return {"success": True}


def answer_forget(copy: ServedCopy) -> dict[str, Any]:
    """The server's side of `forget`."""
    copy.forget()
    return {"success": True}
