"""Predicted against measured memory of a trainer's rank and of a server, at three sizes.

Each rank is a fresh process in which one step runs. What it holds at most is measured twice: by
the bytes of its live tensors, and by what is resident beyond the bare process. A server is measured
by what its processes hold beyond those of a server with almost nothing in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil

from engines.devices.host_agent import HostAgent
from engines.families.common.model_config import read_config
from engines.families.common.registry import model_shape
from engines.megatron.spec import Parallel
from engines.memory.model_size import ModelSize, size_of
from engines.memory.server_memory import ServerNeeds, server_memory
from engines.memory.trainer_memory import TrainerNeeds, trainer_memory
from engines.sglang.servers.server import Place
from engines.sglang.servers.slots import ServerSlots
from engines.sglang.spec import FleetSpec
from tests.parts.tiny import tiny_model
from tests.programs.bench.rows import Row

MOST_OFF = 0.15
_RUN_S = 3_600
_MB = 10**6
# By default glibc keeps what a step freed, up to 32 MiB a block, in its own heap: then the process
# would be measured by the order in which it freed. From 64 KiB on, blocks go back to the kernel.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    config: dict[str, Any]
    tokens: int
    """of the trainer's micro-batch"""
    cached: int
    """tokens of the server's cache"""


def _config(hidden: int, layers: int, heads: int, head_dim: int, vocab: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
    }


CASES = (
    Case("8M weights", _config(256, 8, 8, 32, 8192), 1024, 8192),
    Case("55M weights", _config(512, 12, 8, 64, 32768), 512, 8192),
    Case(
        "218M weights",
        _config(1024, 12, 16, 64, 32768) | {"tie_word_embeddings": False},
        256,
        8192,
    ),
)
SEQUENCE = 128


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="tr-bench-") as name:
        folder = Path(name)
        models = [(case, tiny_model(folder / case.name, **case.config)) for case in CASES]
        rows = [row for case, model in models for row in _trainer(case, model)]
        with patch.dict(os.environ, _MALLOC):
            rows += _servers(models, tiny_model(folder / "empty"), folder / "logs")
    return rows


def _servers(models: Sequence[tuple[Case, Path]], empty: Path, logs: Path) -> list[Row]:
    slots = ServerSlots(HostAgent(logs, 0))
    try:
        nothing = _served_bytes(slots, empty, 64)
        return [_server(case, model, slots, nothing) for case, model in models]
    finally:
        slots.close()


def _trainer(case: Case, model: Path) -> Iterator[Row]:
    size = _size(model)
    predicted = trainer_memory(
        size, TrainerNeeds(Parallel(), "fp32", case.tokens, place="cpu")
    ).total
    arguments = [str(model), str(case.tokens), str(SEQUENCE), "{}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.bench.memory_rank", *arguments],
        env=os.environ | _MALLOC,
        capture_output=True,
        text=True,
        check=True,
        timeout=_RUN_S,
    )
    measured = json.loads(done.stdout.splitlines()[-1])
    for what in ("tensors", "resident"):
        note = f"micro-batches of {case.tokens} tokens, fp32; {what} at the peak of a step"
        yield _row(f"trainer, {case.name}, {what}", predicted, measured[what], note)


def _server(case: Case, model: Path, slots: ServerSlots, empty: tuple[int, int]) -> Row:
    measured, predicted = _served_bytes(slots, model, case.cached)
    note = f"weights and a cache of {case.cached} tokens, fp32"
    return _row(f"server, {case.name}", predicted - empty[1], measured - empty[0], note)


def _served_bytes(slots: ServerSlots, model: Path, cached: int) -> tuple[int, int]:
    """What a server's processes hold for themselves, and what is predicted of its weights and
    pools."""
    (name,) = slots.grow(1)
    # Of the host's free memory: ours for small models, 0.05, does not hold the largest one.
    spec = FleetSpec(max_total_tokens=cached, sglang={"mem_fraction_static": 0.5})
    slots.prepare({name: Place(tp=1)}, spec, model, 0)
    server = slots[name].server
    assert server is not None, name
    process = psutil.Process(server.pid)
    held = sum(_anonymous(p.pid) for p in (process, *process.children(recursive=True)))
    context = read_config(model)["max_position_embeddings"]
    return held, server_memory(_size(model), ServerNeeds(1, context, cached, {})).total


def _anonymous(pid: int) -> int:
    """Resident bytes that are no file's."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def _size(model: Path) -> ModelSize:
    return size_of(model_shape(read_config(model)))


def _row(name: str, predicted: int, measured: int, note: str) -> Row:
    said = f"predicted {predicted / _MB:.0f} MB, measured {measured / _MB:.0f} MB; {note}"
    return Row(f"{name}: off by", abs(predicted / measured - 1), "share", MOST_OFF, True, said)
