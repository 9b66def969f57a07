"""Weights by CUDA IPC, for a trainer and servers on one GPU: nothing is copied through the host.

A bucket is packed in the GPU's memory; the servers get a few kilobytes that say where it lies, open
that memory and copy from it on the device. This has never run on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from engines.sglang.http import UnknownRequest, call
from engines.weights.buckets import Bucket, OwnMemory, TrainedWeights
from engines.weights.ranks import Ranks
from engines.weights.reach import ANSWER_S, REACH
from engines.weights.recheck import checked_stream
from engines.weights.report import PublishReport
from engines.weights.shared_memory import tell
from engines.weights.shared_tensors import flat_handles
from engines.weights.transport import Target
from engines.weights.update import Servers
from infra.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

_DEVICE = 6
"""position of the device in what torch needs to open a CUDA tensor of another process"""


class CudaIpc:
    """See `Transport`."""

    name = "cuda ipc"

    def push(
        self, weights: TrainedWeights, targets: Sequence[Target], version: int
    ) -> PublishReport:
        import torch

        device = weights.weights[0].local.device
        require_gpu(gpu_of(weights))
        several = [target.url for target in targets if target.num_ranks > 1]
        if several:
            raise EngineError(_apart(several))

        def send(servers: Servers, bucket: Bucket) -> list[Future[Any]]:
            # What packs the bucket is only queued on this process's stream.
            torch.cuda.current_stream(device).synchronize()
            told = {url: flat_handles(bucket, 1, SharedOnDevice)[0] for url in servers.urls}
            return servers.start(lambda url: tell(url, [told[url]], bucket.flat.nbytes))

        def fresh(num_bytes: int) -> Tensor:
            return torch.empty(num_bytes, dtype=torch.uint8, device=device)

        # A server of one rank lets go of a bucket, and waits for its copies, before it answers:
        # torch does so when a tensor that it opened is freed, and `mapped_weights` in each rank. So
        # a bucket's memory may be used again then. Servers of several ranks are refused above: they
        # are on several GPUs, and would open the memory of one from the others.
        memory = OwnMemory(device)
        try:
            return checked_stream(self.name, weights, targets, version, memory, send, fresh)
        finally:
            torch.cuda.ipc_collect()

    def close(self) -> None:
        """Nothing is kept between pushes: the training needs the memory."""


class SharedOnDevice:
    """A CUDA tensor that pickles as what another process needs to open it.

    Processes number their devices differently, so the device is told by its name, as SGLang
    expects it.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        from torch.multiprocessing import reductions

        opened_by, needed = reductions.reduce_tensor(self._tensor)
        return opened_by, by_name(needed, _uuid(self._tensor))


def by_name(needed: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """What torch needs to open a tensor, with the device's name in place of its number."""
    return (*needed[:_DEVICE], device, *needed[_DEVICE + 1 :])


def gpu_of(weights: TrainedWeights) -> str:
    """The name (UUID) of the GPU with these weights; empty if they are on the CPU."""
    tensor = weights.weights[0].local
    return _uuid(tensor) if tensor.device.type == "cuda" else ""


def require_gpu(gpu: str) -> None:
    """Raises EngineError if a rank's weights are on the CPU."""
    if not gpu:
        raise EngineError(
            "weights.transport is `cuda_ipc`, but the trainer's ranks hold their weights on the"
            " CPU, and CUDA IPC shares the memory of a GPU: set it to `auto` or `shared_memory`"
        )


def require_one_gpu(targets: Sequence[Target], ranks: Ranks, gpu: str) -> None:
    """Raises EngineError unless all senders and all servers are on one GPU. All ranks call it."""
    require_gpu(gpu)
    apart = ranks.from_leader(lambda: [t.url for t in targets if not _is_on(t, gpu)])
    senders = {name for name in ranks.gather(gpu if ranks.is_sender else "") if name}
    if apart:
        raise EngineError(_apart(apart))
    if len(senders) > 1:
        raise EngineError(
            "weights.transport is `cuda_ipc`, but the trainer's pipeline stages are on"
            f" {len(senders)} GPUs: set it to `auto` or `shared_memory`"
        )


def is_one_gpu(targets: Sequence[Target], ranks: Ranks, gpu: str) -> bool:
    """Whether `require_one_gpu` would be content. Asks no server where there is no GPU."""
    if not all(ranks.gather(gpu)):
        return False
    senders = {name for name in ranks.gather(gpu if ranks.is_sender else "") if name}
    return len(senders) == 1 and ranks.from_leader(lambda: all(_is_on(t, gpu) for t in targets))


def _apart(urls: Sequence[str]) -> str:
    return (
        f"weights.transport is `cuda_ipc`, but {', '.join(urls)}: not known to run on the"
        " trainer's GPU alone. It is for a trainer and servers of ours that share one GPU, with"
        " `tp_per_server: 1`; else set it to `auto` or `shared_memory`"
    )


def _is_on(target: Target, gpu: str) -> bool:
    """Whether all of a server is on that GPU; one that is none of ours does not say."""
    if target.num_ranks > 1:
        return False
    try:
        return call(target.url, REACH, {"gpu": True}, timeout=ANSWER_S)["gpu"] == gpu
    except UnknownRequest:
        return False


def _uuid(tensor: Tensor) -> str:
    import torch

    return str(torch.cuda.get_device_properties(tensor.device).uuid)
