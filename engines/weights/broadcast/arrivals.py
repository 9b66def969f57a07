"""Weights that arrive in a server's process by gloo while the server generates: its side, and how
the two sides meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod
from typing import TYPE_CHECKING, Any

from engines.rendezvous import tcp_store
from engines.weights.broadcast.engine_group import JOIN_S
from engines.weights.buckets import Bucket
from engines.weights.reach import address_towards
from engines.weights.shared_memory import allocate, flat_handles

if TYPE_CHECKING:
    import socket

    from torch import Tensor
    from torch.distributed import ProcessGroupGloo

JOIN, RECEIVE, OPEN, LEAVE = (
    "/tributary/join_broadcast",
    "/tributary/receive_weights",
    "/tributary/open_weights",
    "/tributary/leave_broadcast",
)


@dataclass(slots=True)
class _Stage:
    """What arrives from one pipeline stage of the trainer."""

    group: ProcessGroupGloo
    memory: Tensor
    """for all buckets, of type uint8 and shared: the server's ranks read it there"""
    tensors: list[tuple[str, Tensor]] = field(default_factory=list)
    """of the push that is under way"""


class Arrivals:
    """In the process that answers a server's requests. Its memory, once the size of the weights, is
    kept between pushes and given back when the trainer leaves or another one joins."""

    def __init__(self) -> None:
        self._trainer = ""
        self._stages: dict[str, _Stage] = {}

    def join(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Become a rank of a group of `trainer`, which has one for each of its pipeline stages."""
        if body["trainer"] != self._trainer:
            self._stages, self._trainer = {}, body["trainer"]
        host, port = body["host"], body["port"]
        own = address_towards(f"tcp://{host}:{port}")
        try:
            group = gloo_group(host, port, body["rank"], body["world_size"], own)
        except RuntimeError as error:
            return _refusal(str(error))
        self._stages[body["group"]] = _Stage(group, allocate(body["num_bytes"]))
        return {"success": True}

    def receive(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One bucket, to its place; the first one begins a push."""
        stage = self._stages.get(body["group"])
        if stage is None:
            return _refusal(f"this server is in no group {body['group']}")
        begin = body["begin"]
        if begin == 0:
            stage.tensors = []
        flat = stage.memory[begin : begin + body["num_bytes"]]
        try:
            broadcast(stage.group, flat)
        except RuntimeError as error:
            return _refusal(str(error))
        stage.tensors += _cut(flat, body["dtype"], body["names"], body["shapes"])
        return {"success": True}

    def open(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return what each of the server's ranks opens the stage's weights by."""
        stage = self._stages.get(body["group"])
        if stage is None:
            return _refusal(f"this server is in no group {body['group']}")
        arrived = Bucket(stage.memory, stage.tensors)
        return {"success": True, "handles": flat_handles(arrived, body["num_ranks"])}

    def leave(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._stages.pop(body["group"], None)
        return {"success": True}


def gloo_group(
    host: str, port: int, rank: int, world: int, own: str, listener: socket.socket | None = None
) -> ProcessGroupGloo:
    """Return a group apart from torch's global one; it ends when nothing refers to it. Its ranks
    meet at `host` and `port`, where rank 0 listens; each talks through its own address `own`.

    Raises RuntimeError.
    """
    from torch.distributed import ProcessGroupGloo

    limit = timedelta(seconds=JOIN_S)
    store = tcp_store(host, port, rank, world, limit, listener)
    options = ProcessGroupGloo._Options()  # pyrefly: ignore[missing-attribute]  # noqa: SLF001
    options._timeout = limit  # noqa: SLF001
    options._devices = [ProcessGroupGloo.create_device(hostname=own)]  # noqa: SLF001
    return ProcessGroupGloo(store, rank, world, options)


def broadcast(group: ProcessGroupGloo, tensor: Tensor) -> None:
    """Send a tensor from rank 0 to all. Raises RuntimeError."""
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = 0
    group.broadcast([tensor], options).wait()  # pyrefly: ignore[missing-attribute]


def _cut(
    flat: Tensor, dtype: str, names: list[str], shapes: list[list[int]]
) -> list[tuple[str, Tensor]]:
    import torch

    values = flat.view(getattr(torch, dtype))
    parts = values.split([prod(shape) for shape in shapes])
    return [
        (name, part.view(shape)) for name, part, shape in zip(names, parts, shapes, strict=True)
    ]


def _refusal(message: str) -> dict[str, Any]:
    return {"success": False, "message": message}
