"""Many publishes with training between them, to a server that is only what a publish asks of one: a
process of its own, which copies what it is told of as SGLang's ranks do."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from engines.megatron import device
from engines.weights.reach import REACH, answer_gpus
from infra.cuda import has_cuda, used_bytes
from tests.parts.json_server import json_server
from tests.programs.bench.process_memory import process_memory
from tests.programs.bench.rows import Row
from tests.programs.gpu.random_model import write_random_model
from tests.programs.gpu.settings import sequences, size_here, trainer

COUNT = {"cuda": 40, "cpu": 4}
MB = 1e6
_DEVICE = 6
"""position of the device in what torch needs to open a CUDA tensor of another process"""


def publishes() -> list[Row]:
    """By CUDA IPC on a GPU, by shared memory on a CPU: are the weights those of the trainer each
    time, how long do servers pause, and what does memory grow by."""
    import json
    from urllib.request import urlopen

    place, size = device.device().type, size_here()
    command = [sys.executable, "-m", __spec__.name]
    wrong, pauses, held = 0, list[float](), list[int]()
    with (
        tempfile.TemporaryDirectory(prefix="tr-") as folder,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stub,
    ):
        assert stub.stdout is not None
        url = f"http://127.0.0.1:{int(stub.stdout.readline())}"
        model = write_random_model(Path(folder) / "model", size)
        with trainer(model, "bf16" if has_cuda() else "fp32") as trained:
            for number in range(1, COUNT[place] + 1):
                trained.sft_steps([sequences(size.vocab, 4, 64, seed=number)])
                report = trained.publish([url], number)
                assert not report.refused, report.refused
                pauses.append(report.pause_seconds)
                with urlopen(f"{url}/sums") as answer:
                    theirs = json.loads(answer.read())
                wrong += theirs != {name: _sum(tensor) for name, tensor in trained.hf_tensors()}
                held.append(used_bytes(0) if has_cuda() else process_memory("VmRSS"))
            transport, sent = report.transport, report.bytes
        stub.terminate()
    note = f"Qwen3 {size.name} by {transport}, {len(pauses)} publishes, {sent / MB:.0f} MB each"
    half = len(held) // 2
    growth = (held[-1] - held[half - 1]) / (len(held) - half) / sent
    return [
        Row("publishes with other weights than the trainer's", wrong, "", 0, True, note),
        Row("pause of a publish", median(pauses), "s", note=note),
        Row("growth of memory a publish", growth, "of the weights", 0.02, True, note)
        if has_cuda()
        else Row("growth of memory a publish", growth, "of the weights", note=note),
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

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        match path:
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

    def _take(self, record: dict[str, Any]) -> None:
        flat = record["flattened_tensor"]
        for place in record["metadata"]:
            part = flat[place.start_idx : place.end_idx].view(place.dtype).view(place.shape)
            own = self._taken.setdefault(place.name, torch.empty_like(part))
            own.copy_(part)
        if flat.is_cuda:
            torch.cuda.current_stream().synchronize()  # as our plugin has SGLang's ranks do


def _serve() -> None:
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
