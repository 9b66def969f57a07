"""Weights by CUDA IPC, where each rank of each server has one of the trainer's ranks on its GPU:
nothing is copied through the host.

    the stage's sender packs a bucket ─▶ all ranks have it (NCCL) ─▶ each tells where it lies on its
    GPU ─▶ rank 0 tells each server where its ranks find it: a few kilobytes

The servers' ranks open that memory and copy from it on their device. On a GPU this has run with one
rank on each side, to a stand-in of a server (`make gpu`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from engines.sglang.http import UnknownRequest, call
from engines.weights.buckets import Bucket, Memory, OwnMemory, TrainedWeights
from engines.weights.ranks import Ranks
from engines.weights.reach import ANSWER_S, REACH
from engines.weights.shared_memory import pickled, places_in, tell
from engines.weights.transport import PublishReport, Target
from engines.weights.update import Servers, Update, finish
from engines.weights.weight_stream import checked
from infra.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

_DEVICE = 6
"""position of the device in what torch needs to open a CUDA tensor of another process"""
Gpus = Mapping[str, tuple[str, ...]]
"""the names of the GPUs of each server's ranks, in order, by its URL"""
Opening = tuple[Callable[..., Any], tuple[Any, ...]]
"""what opens a tensor in another process, and with which arguments"""


@dataclass(frozen=True, slots=True)
class Told:
    """Where servers find a bucket."""

    num_bytes: int
    places: list[SimpleNamespace]
    openings: Mapping[tuple[str, int], Opening]
    """by URL and number of the server's rank"""


class CudaIpc:
    """See `Transport`."""

    name = "cuda ipc"

    def push(
        self, weights: TrainedWeights, targets: Sequence[Target], version: int
    ) -> PublishReport:
        gpu, ranks = self.gpu(weights), weights.ranks
        require_gpu(gpu)
        served = ranks.from_leader(partial(gpus_of, targets))
        require_shared_gpus(served, ranks, gpu)
        push = partial(self._push, weights, served, gpu, version)
        try:
            # Two buckets' memory is used in turn: a server's rank waits for its copies before any
            # of them answers (`server_hooks`), and the next but one comes after the answer.
            return checked(
                self.name,
                push,
                self.memory(weights),
                self.allocate(weights),
                ranks,
                targets,
                version,
            )
        finally:
            self.collect()

    def close(self) -> None:
        """Nothing is kept between pushes: the training needs the memory."""

    # What a GPU does

    def gpu(self, weights: TrainedWeights) -> str:
        return gpu_of(weights)

    def memory(self, weights: TrainedWeights) -> Memory:
        return OwnMemory(weights.weights[0].local.device)

    def allocate(self, weights: TrainedWeights) -> Callable[[int], Tensor]:
        import torch

        device = weights.weights[0].local.device
        return lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def share(self, flat: Tensor) -> Opening:
        """Share memory with one process that opens it: torch counts them."""
        return shared_on_device(flat)

    def wait_for(self, flat: Tensor) -> None:
        """Wait until what packs it, or brings it here, is done: it is only queued."""
        import torch

        torch.cuda.current_stream(flat.device).synchronize()

    def collect(self) -> None:
        import torch

        torch.cuda.ipc_collect()

    # A push

    def _push(
        self, weights: TrainedWeights, served: Gpus, gpu: str, version: int, memory: Memory
    ) -> PublishReport:
        began = time.perf_counter()
        ranks, within_s = weights.ranks, weights.wait_s()
        buckets = self._told(weights, served, gpu, memory)
        first = next(buckets)  # before servers pause
        sent, sending = 0, list[Future[Any]]()
        with Servers(list(served)) as servers:
            update = Update(servers, version)
            try:
                ranks.settle(update.begin if ranks.is_leader else None)
                for told in chain([first], buckets):
                    ranks.settle(partial(finish, sending), within_s)
                    if ranks.is_leader:
                        sending = servers.start(partial(_tell, told, served))
                        sent += told.num_bytes
                ranks.settle(partial(finish, sending), within_s)
                ranks.settle(update.end if ranks.is_leader else None)
            except BaseException:
                if ranks.is_leader:
                    update.give_up()
                raise
        return PublishReport(
            version=version,
            transport=self.name,
            bytes=sum(ranks.gather(sent)),
            servers=len(served),
            seconds=time.perf_counter() - began,
            pause_seconds=update.pause_seconds,
        )

    def _told(
        self, weights: TrainedWeights, served: Gpus, gpu: str, memory: Memory
    ) -> Iterator[Told]:
        """Every bucket of every stage in turn, on every rank, where each finds it on its GPU."""
        ranks, index = weights.ranks, 0
        own = ranks.rank, ranks.stage, weights.bucket_sizes()
        senders = [each for each in ranks.gather(own if ranks.is_sender else None) if each]
        mine = [
            (url, position)
            for url, gpus in served.items()
            for position, name in enumerate(gpus)
            if name == gpu
        ]
        for sender, stage, sizes in sorted(senders, key=lambda each: each[1]):
            slots = partial(_turned, memory, index)
            packed = weights.buckets(slots) if stage == ranks.stage else None
            for place, size in enumerate(sizes):
                bucket = next(packed) if packed is not None else None
                flat = slots(place % 2, size)[:size] if bucket is None else bucket.flat
                _spread(flat, sender, ranks)
                self.wait_for(flat)
                yield self._gathered(flat, bucket, mine, ranks)
            index += len(sizes)

    def _gathered(
        self, flat: Tensor, bucket: Bucket | None, mine: Sequence[tuple[str, int]], ranks: Ranks
    ) -> Told:
        places = None if bucket is None else places_in(bucket)
        of_all = ranks.gather((places, {each: self.share(flat) for each in mine}))
        openings = {each: opening for _, found in of_all for each, opening in found.items()}
        return Told(flat.nbytes, next(found for found, _ in of_all if found), openings)


def _turned(memory: Memory, first: int, slot: int, num_bytes: int) -> Tensor:
    """Memory whose two slots take turns also from one stage to the next."""
    return memory((slot + first) % 2, num_bytes)


def _spread(flat: Tensor, sender: int, ranks: Ranks) -> None:
    """From the rank that packed it to all others, over what connects their GPUs."""
    if ranks.world > 1:
        import torch.distributed as dist

        dist.broadcast(flat, sender)


def _tell(told: Told, served: Gpus, url: str) -> None:
    texts = [
        pickled({"flattened_tensor": Opened(*told.openings[url, rank]), "metadata": told.places})
        for rank in range(len(served[url]))
    ]
    tell(url, texts, told.num_bytes)


class Opened:
    """Pickles as what opens a tensor, and so is one where it is read."""

    def __init__(self, opened_by: Callable[..., Any], needed: tuple[Any, ...]) -> None:
        self._opening = opened_by, needed

    def __reduce__(self) -> Opening:
        return self._opening


def shared_on_device(flat: Tensor) -> Opening:
    """Return what another process needs to open a CUDA tensor. Processes number their devices
    differently, so the device is told by its name, as SGLang expects it."""
    from torch.multiprocessing import reductions

    opened_by, needed = reductions.reduce_tensor(flat)
    return opened_by, by_name(needed, _uuid(flat))


def by_name(needed: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """Return what torch needs to open a tensor, with the device's name in place of its number."""
    return (*needed[:_DEVICE], device, *needed[_DEVICE + 1 :])


def gpu_of(weights: TrainedWeights) -> str:
    """The name (UUID) of the GPU with these weights; empty if they are on the CPU."""
    tensor = weights.weights[0].local
    return _uuid(tensor) if tensor.device.type == "cuda" else ""


def gpus_of(targets: Sequence[Target]) -> Gpus:
    """Return what servers say of their ranks' GPUs; none of one that is not ours, or spans
    hosts."""
    return {target.url: _gpus(target) for target in targets}


def _gpus(target: Target) -> tuple[str, ...]:
    try:
        names = call(target.url, REACH, {"gpu": True}, timeout=ANSWER_S)["gpus"]
    except UnknownRequest:
        return ()
    return tuple(names) if len(names) == target.num_ranks and all(names) else ()


def require_gpu(gpu: str) -> None:
    """Raises EngineError if a rank's weights are on the CPU."""
    if not gpu:
        raise EngineError(
            "weights.transport is `cuda_ipc`, but the trainer's ranks hold their weights on the"
            " CPU, and CUDA IPC shares the memory of a GPU: set it to `auto` or `shared_memory`"
        )


def require_shared_gpus(served: Gpus, ranks: Ranks, gpu: str) -> None:
    """Raises EngineError if a server's rank is on a GPU without a trainer's. All ranks call it."""
    trainers = set(ranks.gather(gpu))
    if apart := [url for url, gpus in served.items() if not gpus or not trainers >= set(gpus)]:
        raise EngineError(
            f"weights.transport is `cuda_ipc`, but {', '.join(apart)}: not known to run on the"
            " trainer's GPUs alone. It is for servers of ours each of whose ranks shares its GPU"
            " with one of the trainer's (`share: true`); else set it to `auto` or `broadcast`"
        )


def _uuid(tensor: Tensor) -> str:
    import torch

    return str(torch.cuda.get_device_properties(tensor.device).uuid)
