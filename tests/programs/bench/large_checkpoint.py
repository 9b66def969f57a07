"""Host memory and seconds of a checkpoint of a model of 300 MB, on four ranks (dp 2 x tp 2)."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from engines.megatron.spec import Parallel
from tests.integration.megatron.megatron_models import sequences
from tests.integration.megatron.megatron_ranks import Ranks, TrainerArgs
from tests.parts.tiny import tiny_model
from tests.programs.bench.large_publish import SHAPE
from tests.programs.bench.process_memory import process_memory
from tests.programs.bench.rows import Row

LAYOUT = Parallel(dp=2, tp=2)
SAVES = 3
MOST = 1.3
"""host memory that all ranks together take for a checkpoint, divided by what it has to hold"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="tr-bench-") as name:
        model = tiny_model(Path(name) / "model", **SHAPE)
        ranks = Ranks()
        try:
            told = ranks.run(_saves, TrainerArgs(model, LAYOUT), Path(name) / "checkpoints")
        finally:
            ranks.stop()
        size = (model / "model.safetensors").stat().st_size
    # In fp32 the optimizer's own weights are the model's.
    state = 3 * size
    grown, waited, whole = (min(values) for values in zip(*told, strict=True))
    note = f"{size / 1e6:.0f} MB in fp32 at dp 2 x tp 2, least of {SAVES}"
    return [
        Row("host memory of a checkpoint / size of the state", grown / state, "ratio", MOST, True,
            f"{note}; {grown / 1e6:.0f} MB for {state / 1e6:.0f} MB"),
        Row("checkpoint of 300 MB, seconds that the ranks wait", waited, "s",
            note=f"{note}; {whole:.2f} s until it is written"),
    ]  # fmt: skip


def _saves(trainer: Any, folder: Path) -> list[tuple[float, float, float]]:
    """Of each save: bytes that all ranks grew by at their peaks, seconds that they waited, seconds
    until it was written."""
    import torch
    import torch.distributed as dist

    trainer.sft_steps([sequences([8, 8, 8, 8])])
    told: list[tuple[float, float, float]] = []
    for number in range(SAVES):
        dist.barrier()
        before = _peak_since_now()
        began = time.monotonic()
        trainer.begin_save(folder / str(number))
        waited = time.monotonic() - began
        trainer.finish_save(wait=True)
        whole = time.monotonic() - began
        grown = torch.tensor(float(process_memory("VmHWM") - before))
        dist.all_reduce(grown)
        told.append((float(grown), waited, whole))
        if dist.get_rank() == 0:
            shutil.rmtree(folder / str(number))
    return told


def _peak_since_now() -> int:
    """Bytes that this process has in memory; its peak is counted from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return process_memory("VmRSS")
