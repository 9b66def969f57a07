"""300 MB of weights into a running server: by shared memory against a memcpy of the same bytes, by
broadcast against a bare gloo broadcast of them from one process to another, and by disk delta."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from engines.weights.broadcast.broadcast import Broadcast
from engines.weights.buckets import TrainedWeights
from engines.weights.disk_delta.disk_delta import DiskDelta
from engines.weights.shared_memory import SharedMemory
from engines.weights.transport import PublishReport, Transport, find_targets, server_weights
from infra.processes.network import free_ports
from tests.parts.tiny import tiny_model
from tests.parts.whole_weights import whole_weights
from tests.programs.bench.clock import timed
from tests.programs.bench.rows import Row
from tests.programs.bench.servers import servers

ROUNDS = 7
SHAPE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 5,
    "head_dim": 128,
}
FLOOR, MOST_PAUSE = 0.3, 4.0
_WAIT_S = 120.0


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="tr-bench-") as name:
        model = tiny_model(Path(name) / "model", **SHAPE)
        with servers(Path(name) / "logs") as engines:
            _, urls = engines.serve(model, 1)
            trained = whole_weights(model)
            shared, copying = _published(SharedMemory(), trained, urls)
            broadcast, _ = _published(Broadcast(), trained, urls)
            delta, _ = _published(DiskDelta(f"{name}/deltas"), trained, urls)
            _require_same_bits(trained, urls)
    sending = _bare_broadcast_seconds(shared[0].bytes)
    note = f"{shared[0].bytes / 1e6:.0f} MB to 1 server, median of {ROUNDS}"
    times = f"{note}; {_median(shared):.2f} s, memcpy {copying:.2f} s"
    against = f"{note}; {_median(broadcast):.2f} s, gloo alone {sending:.2f} s"
    changed = f"{note}; fp32, 3% of the values changed"
    return [
        Row("memcpy / publish by shared memory", copying / _median(shared), "ratio", FLOOR,
            note=times),
        Row("bare gloo broadcast / publish by broadcast", sending / _median(broadcast), "ratio",
            FLOOR, note=against),
        Row("pause by shared memory / memcpy", _pause(shared) / copying, "ratio", MOST_PAUSE, True,
            note),
        # The bytes arrive in the pause, and gloo alone takes several times a memcpy for them.
        Row("pause by broadcast / bare gloo broadcast", _pause(broadcast) / sending, "ratio",
            note=note),
        Row("pause by broadcast / memcpy", _pause(broadcast) / copying, "ratio", MOST_PAUSE, True,
            note),
        Row("publish by disk delta", _median(delta), "s", note=changed),
        Row("pause by disk delta / memcpy", _pause(delta) / copying, "ratio", note=changed),
    ]  # fmt: skip


def _published(
    transport: Transport, trained: TrainedWeights, urls: Sequence[str]
) -> tuple[list[PublishReport], float]:
    """Reports of the rounds after the first, and the median of a memcpy before each of them."""
    sources = [weight.local for weight in trained.weights]
    targets = [torch.empty_like(tensor) for tensor in sources]

    def memcpy() -> None:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)

    reports: list[PublishReport] = []
    copying: list[float] = []
    try:
        for version in range(1, ROUNDS + 2):
            for tensor in sources:
                tensor.view(-1)[version::33] *= 1.001
            copying.append(timed(memcpy).wall)
            reports.append(transport.push(trained, find_targets(urls), version))
    finally:
        transport.close()
    return reports[1:], statistics.median(copying[1:])


def _require_same_bits(trained: TrainedWeights, urls: Sequence[str]) -> None:
    """What the servers hold is what shared memory gives them."""
    before = [server_weights(url).checksum for url in urls]
    SharedMemory().push(trained, find_targets(urls), 0)
    if before != [server_weights(url).checksum for url in urls]:
        raise RuntimeError("the servers' weights are not the trainer's after deltas")


def _median(reports: Sequence[PublishReport]) -> float:
    return statistics.median(report.seconds for report in reports)


def _pause(reports: Sequence[PublishReport]) -> float:
    return statistics.median(report.pause_seconds for report in reports)


def _bare_broadcast_seconds(size: int) -> float:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    port = free_ports(1)[0]
    ranks = [context.Process(target=_rank, args=(r, port, size, theirs)) for r in (0, 1)]
    for rank in ranks:
        rank.start()
    try:
        if not ours.poll(_WAIT_S):
            raise RuntimeError(f"two processes did not broadcast to each other in {_WAIT_S:.0f} s")
        return ours.recv()
    finally:
        for rank in ranks:
            rank.join(10)
            rank.kill()


def _rank(rank: int, port: int, size: int, answer: Connection[Any, Any]) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    data = torch.ones(size, dtype=torch.uint8)
    seconds: list[float] = []
    for _ in range(ROUNDS + 1):
        dist.barrier()
        seconds.append(timed(lambda: (dist.broadcast(data, 0), dist.barrier())).wall)
    if rank == 0:
        answer.send(statistics.median(seconds[1:]))
    dist.destroy_process_group()
