"""Many publishes with training between them, to a server that is only what a publish asks of one: a
process of its own, which copies what it is told of as SGLang's ranks do."""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from statistics import median
from typing import Any
from urllib.request import urlopen

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d
from torch.multiprocessing import reductions

from engines.megatron import device
from engines.rendezvous import store_at, use_interface_of
from engines.weights.broadcast import arrivals
from engines.weights.reach import REACH, answer_gpus
from engines.weights.spec import TransportName, WeightTransport
from engines.weights.transport import PublishReport
from infra.cuda import has_cuda, nccl_environment, used_bytes
from tests.parts.json_server import json_server
from tests.programs.bench.process_memory import process_memory
from tests.programs.bench.rows import Row
from tests.programs.gpu.random_model import random_model
from tests.programs.gpu.settings import sequences, size_here, trainer

COUNT = {"cuda": 40, "cpu": 4}
COUNTED_OTHERWISE = 6
JOIN_S = 60
MB = 1e6
_DEVICE = 6
"""position of the device in what torch needs to open a CUDA tensor of another process"""


def publishes() -> list[Row]:
    """By CUDA IPC on a GPU, by shared memory on a CPU."""
    return _published("auto", COUNT[device.device().type])


def host_memory() -> list[Row]:
    """Through memory of the host, as to servers that do not say which GPU they are on."""
    return _published("shared_memory", COUNTED_OTHERWISE)


def broadcasts() -> list[Row]:
    """By a process group with the server's rank: NCCL on a GPU, which takes two members on one GPU
    if it is told that they are on two hosts."""
    os.environ.update(nccl_environment())
    return _published("broadcast", COUNTED_OTHERWISE, {"NCCL_HOSTID": "another-host"})


def _published(
    how: TransportName, count: int, environment: Mapping[str, str] | None = None
) -> list[Row]:
    """Are the weights those of the trainer each time, how long do servers pause, and what does
    memory grow by."""
    size = size_here()
    command = [sys.executable, "-m", __spec__.name]
    environment = os.environ | dict(environment or {})
    wrong, reports, held = 0, list[PublishReport](), list[int]()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as stub:
        assert stub.stdout is not None
        url = f"http://127.0.0.1:{int(stub.stdout.readline())}"
        model = random_model(size)
        with trainer(model, "bf16" if has_cuda() else "fp32") as trained:
            for number in range(1, count + 1):
                trained.sft_steps([sequences(size.vocab, 4, 64, seed=number)])
                report = trained.publish([url], number, WeightTransport(transport=how))
                assert not report.refused, report.refused
                reports.append(report)
                with urlopen(f"{url}/sums") as answer:
                    theirs = json.loads(answer.read())
                wrong += theirs != {name: _sum(tensor) for name, tensor in trained.hf_tensors()}
                held.append(used_bytes(0) if has_cuda() else process_memory("VmRSS"))
        stub.terminate()
    transport, sent = reports[-1].transport, reports[-1].bytes
    pause = median(report.pause_seconds for report in reports)
    note = f"Qwen3 {size.name}, {len(reports)} publishes, {sent / MB:.0f} MB each"
    half = len(held) // 2
    growth = (held[-1] - held[half - 1]) / (len(held) - half) / sent
    return [
        Row(f"{transport}: publishes with other weights", wrong, "", 0, True, note),
        Row(f"{transport}: pause of a publish", pause, "s", note=note),
        Row(f"{transport}: growth of memory", growth, "of the weights", 0.02, True, note)
        if has_cuda()
        else Row(f"{transport}: growth of memory", growth, "of the weights", note=note),
    ]


def _sum(tensor: Tensor) -> int:
    """Changes with any byte, and with its place."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8).long()
    places = torch.arange(len(flat), device=flat.device) % 65_521 + 1
    return int((flat * places).sum())


class _Stub:
    def __init__(self) -> None:
        self._version = "0"
        self._taken: dict[str, Tensor] = {}
        self._groups: dict[str, ProcessGroup] = {}

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        match path:
            case "/init_weights_update_group":
                self._groups[body["group_name"]] = _joined(body)
            case "/update_weights_from_distributed":
                self._receive(body)
            case _ if path == arrivals.LEAVE:
                return 404, {}  # a server of others, for whom a group of gloo is made, too
            case "/update_weights_from_tensor":
                (told,) = body["serialized_named_tensors"]
                self._take(pickle.loads(base64.b64decode(told)))
            case "/update_weight_version":
                self._version = body["new_version"]
            case "/flush_cache":
                return 200, b"Cache flushed."
            case "/sums":
                return 200, {name: _sum(tensor) for name, tensor in self._taken.items()}
            case _ if path == REACH:
                return 200, answer_gpus([0])
            case _:
                pass
        return 200, {"success": True, "weight_version": self._version, "tp_size": 1}

    def _receive(self, body: dict[str, Any]) -> None:
        """As SGLang's ranks do: they connect at the first broadcast."""
        dtypes = [getattr(torch, name) for name in body["dtypes"]]
        pairs = list(zip(dtypes, body["shapes"], strict=True))
        parts = [torch.empty(shape, dtype=dtype) for dtype, shape in pairs]
        flat = torch.empty(
            sum(part.numel() for part in parts), dtype=dtypes[0], device=device.device()
        )
        options = c10d.BroadcastOptions()
        options.rootRank = 0
        self._groups[body["group_name"]].broadcast([flat], options).wait()
        values = flat.split([part.numel() for part in parts])
        for name, part, value in zip(body["names"], parts, values, strict=True):
            self._taken[name] = value.view(part.shape).clone()
        if flat.is_cuda:
            torch.cuda.current_stream().synchronize()

    def _take(self, record: dict[str, Any]) -> None:
        flat = record["flattened_tensor"]
        for place in record["metadata"]:
            part = flat[place.start_idx : place.end_idx].view(place.dtype).view(place.shape)
            own = self._taken.setdefault(place.name, torch.empty_like(part))
            own.copy_(part)
        if flat.is_cuda:
            torch.cuda.current_stream().synchronize()  # as our plugin has SGLang's ranks do


def _joined(body: dict[str, Any]) -> ProcessGroup:
    """The server's side of a group, made with the calls of SGLang's own."""
    name, limit = body["group_name"], timedelta(seconds=JOIN_S)
    use_interface_of(body["master_address"])
    address = f"tcp://{body['master_address']}:{body['master_port']}"
    store = store_at(address, body["rank_offset"], body["world_size"], limit)
    made: tuple[Any, Any] = c10d._new_process_group_helper(
        body["world_size"],
        body["rank_offset"],
        [],
        c10d.Backend(body["backend"]),
        c10d.PrefixStore(name, store),
        group_name=c10d.GroupName(name),
        timeout=limit,
    )
    group: ProcessGroup = made[0]
    return group


def _serve() -> None:
    store = dist.HashStore()
    c10d.init_process_group("gloo", store=store, rank=0, world_size=1)
    if has_cuda():
        torch.zeros(1, device=device.device())
        open_tensor: Any = reductions.rebuild_cuda_tensor

        def by_number(*needed: Any) -> Tensor:
            own = torch.cuda.current_device()
            return open_tensor(*needed[:_DEVICE], own, *needed[_DEVICE + 1 :])

        reductions.rebuild_cuda_tensor = by_number
    with json_server(_Stub().answer) as port:
        print(port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve()
