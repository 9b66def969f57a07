"""Which transport a trainer uses: the one that its recipe names, or what `auto` finds by asking
where the ranks and the servers run and what the servers reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from engines.weights.broadcast.broadcast import Broadcast
from engines.weights.cuda_ipc import CudaIpc, gpus_of, require_gpu, require_shared_gpus
from engines.weights.disk import Disk
from engines.weights.disk_delta.disk_delta import DiskDelta
from engines.weights.ranks import Ranks
from engines.weights.reach import is_on_this_host, reaches_this_host, reads_folder
from engines.weights.shared_memory import SharedMemory
from engines.weights.spec import TransportName, WeightTransport
from engines.weights.transport import Target, Transport
from infra.errors import EngineError
from infra.store.store import Store

_MAKE: Mapping[TransportName, Callable[[str], Transport]] = {
    "cuda_ipc": lambda _: CudaIpc(),
    "shared_memory": lambda _: SharedMemory(),
    "broadcast": lambda _: Broadcast(),
    "disk": lambda url: Disk(_path(url)),
    "disk_delta": DiskDelta,
}


def transport_to(
    targets: Sequence[Target], ranks: Ranks, wanted: WeightTransport, gpu: str = ""
) -> Transport:
    """Choose a transport. All ranks call it, each with the name of its GPU, and get the same.

    Raises EngineError if none can work, StorageError.
    """
    is_near = all(ranks.gather(all(is_on_this_host(target.url) for target in targets)))
    name: TransportName = wanted.transport
    if name == "auto":
        name = _near(targets, ranks, gpu) if is_near else _far_of(targets, ranks, wanted.url)
    if wanted.transport == "cuda_ipc":
        require_gpu(gpu)
        require_shared_gpus(ranks.from_leader(partial(gpus_of, targets)), ranks, gpu)
    if name == "shared_memory" and not is_near:
        raise EngineError(
            "weights.transport is `shared_memory`, but not all trainer ranks and servers are on"
            " one host: set it to `auto`, or to another transport"
        )
    return _MAKE[name](wanted.url)


def _near(targets: Sequence[Target], ranks: Ranks, gpu: str) -> TransportName:
    """On one host: CUDA IPC where every rank of a server shares its GPU with one of ours, else NCCL
    where none shares it with a sender, for it takes no two members on one GPU. Servers of others do
    not say on which GPUs they are."""
    trainers = ranks.gather((gpu, ranks.is_sender))
    if not all(name for name, _ in trainers):
        return "shared_memory"
    served = ranks.from_leader(partial(gpus_of, targets))
    taken = {name for gpus in served.values() for name in gpus}
    if not all(served.values()):
        return "shared_memory"
    if taken <= {name for name, _ in trainers}:
        return "cuda_ipc"
    senders = {name for name, is_sender in trainers if is_sender}
    return "shared_memory" if taken & senders else "broadcast"


def _far_of(targets: Sequence[Target], ranks: Ranks, url: str) -> TransportName:
    return ranks.from_leader(lambda: _far(targets, url))


def _far(targets: Sequence[Target], url: str) -> TransportName:
    """For servers on other hosts: the first way that all of them can go."""
    cut_off = [target.url for target in targets if not reaches_this_host(target.url)]
    if not cut_off:
        return "broadcast"
    if url and all(reads_folder(target.url, url) for target in targets):
        return "disk_delta"
    tried = f"and not all servers read {url}" if url else "and resources give no `weights.url`"
    raise EngineError(
        f"weights cannot reach {', '.join(cut_off)}: no connection from there to the trainer's"
        f" host, {tried}. Set `weights.url` in the stage's resources to a folder that the ranks and"
        " the servers reach, e.g. s3://bucket/weights"
    )


def _path(url: str) -> Path:
    path = Store(url).local_path("")
    if path is None:
        raise EngineError(f"transport `disk` needs a path, not {url}")
    return path
