"""A trainer's rank in a process of its own, which says what it holds at most in a step.

Usage: python -m tests.programs.bench.memory_rank FOLDER TOKENS LENGTH OPTIONS, with the model's
folder, the tokens of a micro-batch, those of a sequence, and `trainer.megatron` as JSON. It prints
bytes as JSON.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from pathlib import Path

from engines.batching import TokenSequence
from engines.devices.units import TRAINER_PARTS
from engines.megatron.rl.trainer import start_parallel, stop_parallel
from engines.megatron.spec import Optimizer, Parallel, TrainerSettings
from engines.megatron.train.policy_trainers import SftTrainer
from infra.processes.network import free_ports
from tests.parts.live_memory import LiveMemory


def main(folder: Path, tokens: int, length: int, options: str) -> dict[str, int]:
    start_parallel(0, 1, f"tcp://127.0.0.1:{free_ports(1)[0]}", Parallel())
    bare = _held("RssAnon")
    settings = TrainerSettings(micro_batch_tokens=tokens, megatron=json.loads(options))
    trainer = SftTrainer(settings, Optimizer(lr=1e-5), Parallel(), folder, 0, 100)
    draw, vocab = random.Random(0), trainer.shape.vocab
    batch = [
        TokenSequence([draw.randrange(vocab) for _ in range(length)], [1] * length)
        for _ in range(tokens // length)
    ]
    gc.collect()
    state = [tensor for part in TRAINER_PARTS for tensor in trainer.tensors_of(part)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in state}
    with LiveMemory(state) as live:
        trainer.sft_steps([batch])
    # The kernel's own mark: it is set back, and then the most that was resident since.
    Path("/proc/self/clear_refs").write_text("5")
    trainer.sft_steps([batch])
    files = _held("RssFile") + _held("RssShmem")
    found = {
        "state": sum(storages.values()),
        "tensors": sum(storages.values()) + live.peak,
        "resident": _held("VmHWM") - files - bare,
    }
    stop_parallel()
    return found


def _held(what: str) -> int:
    """Bytes of this process, by a line of its status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {what}")


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])))
