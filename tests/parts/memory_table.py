"""The smallest layouts of known models on devices of 80 GB: the table of docs/gpus.md.

They are computed by the code of `tributary check`.

`python -m tests.parts.memory_table` writes it into the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.families.common.registry import model_shape
from engines.megatron.spec import Parallel
from engines.memory.activations import NOTHING, Recompute
from engines.memory.model_size import KNOWN, ModelSize, size_of
from engines.memory.server_memory import ServerNeeds, server_memory
from engines.memory.trainer_memory import TrainerNeeds, trainer_memory

PAGE = Path(__file__).parents[2] / "docs/gpus.md"
BEGIN, END = (
    "<!-- shapes: made by `python -m tests.parts.memory_table` -->",
    "<!-- end of shapes -->",
)
GB = 10**9
DEVICE, PER_HOST, MOST_DEVICES = 80 * GB, 8, 1024
TOKENS, CONTEXT, CACHED = 8192, 16384, 131072
_RECOMPUTE = {"": NOTHING, "full": Recompute(method="uniform", num_layers=1)}
_HEAD = ("model", "weights, 10^9", "trainer: devices", "layout", "recompute", "GB a device",
         "server: devices", "GB a device", "RL: devices")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Smallest:
    layout: Parallel
    recompute: str
    num_bytes: int


def known_sizes() -> dict[str, ModelSize]:
    """By the model\'s name, smallest first within each kind."""
    return {name: size_of(model_shape(config)) for name, config in KNOWN.items()}


def table() -> str:
    lines = [_HEAD, ["---"] * len(_HEAD), *(_row(*each) for each in known_sizes().items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row(name: str, size: ModelSize) -> list[str]:
    trainer, (tp, num_bytes) = smallest_trainer(size), smallest_server(size)
    axes = trainer.layout.model_dump(exclude_none=True).items()
    return [
        name,
        f"{size.num_weights / GB:.1f}",
        str(trainer.layout.world_size),
        ", ".join(f"{axis} {n}" for axis, n in axes if n > 1) or "1 rank",
        trainer.recompute,
        f"{trainer.num_bytes / GB:.0f}",
        str(tp),
        f"{num_bytes / GB:.0f}",
        str(trainer.layout.world_size + tp),
    ]


def smallest_trainer(size: ModelSize) -> Smallest:
    """On as few devices as possible; then without recomputation, with as few stages and as little
    tensor parallelism as possible."""
    for world in _doubled(MOST_DEVICES):
        for recompute in _RECOMPUTE:
            for layout in _layouts(size, world):
                needs = TrainerNeeds(layout, "bf16", TOKENS, _RECOMPUTE[recompute])
                total = trainer_memory(size, needs).total
                if total <= DEVICE:
                    return Smallest(layout, recompute, total)
    raise ValueError(f"{size} does not fit {MOST_DEVICES} devices")


def smallest_server(size: ModelSize) -> tuple[int, int]:
    """Its devices, and bytes on each; a cache of `CACHED` tokens, SGLang's own reserve."""
    for tp in _doubled(2 * PER_HOST):
        total = server_memory(size, ServerNeeds(tp, CONTEXT, CACHED, {}, DEVICE)).total
        if total <= DEVICE:
            return tp, total
    raise ValueError(f"no server holds {size}")


def _layouts(size: ModelSize, world: int) -> Iterator[Parallel]:
    for pp in _doubled(16):
        for tp in _doubled(PER_HOST):
            if size.num_layers % pp or world % (pp * tp) or size.keys // size.head_dim % tp:
                continue
            dp = world // (pp * tp)
            yield Parallel(tp=tp, pp=pp, dp=dp, ep=dp if size.expert_weights else 1)


def _doubled(most: int) -> Iterator[int]:
    value = 1
    while value <= most:
        yield value
        value *= 2


def into_page(text: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(into_page(PAGE.read_text()))
