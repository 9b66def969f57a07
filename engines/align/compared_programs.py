"""Runs one model in each program on the same tokens and records its modules: SGLang's server, as a
stage starts it; the trainer's model, as it trains it, in this process; and transformers.
Each is on one device, one after the other. Then says where they first differ.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engines.align.points import (
    AS_STORED,
    EMBEDDING,
    EXPERTS,
    HINTS,
    LOGITS,
    NORM,
    OF_TRAINER,
    ORDER,
    Recorded,
    hook_of,
    listening,
    read_hooks,
    recorded,
)
from engines.devices.child_processes import ChildProcesses
from engines.families.common.family import ModelShape
from engines.families.common.model_config import read_config
from engines.families.common.registry import model_shape
from engines.megatron import device, kernels
from engines.megatron.hf.folder import HfWeights
from engines.megatron.hf.layout import load_weights
from engines.megatron.model import DTYPES, build_model, transformer_config
from engines.megatron.parallel import current_layout, one_rank
from engines.megatron.spec import Parallel, TrainerSettings
from engines.megatron.train.checkpoint import seed_all
from engines.megatron.train.pack import FlatSequences, build_pack
from engines.sglang.http import call
from engines.sglang.servers.server import Server
from engines.sglang.spec import FleetSpec
from infra.errors import InputError

TRAINER, ENGINE, WITNESS = "trainer", "engine", "transformers"
ENGINE_NAMES = replace(AS_STORED, output="logits_processor")
_RESERVE = 9
"""positions that SGLang keeps free, and one for an answer"""
_ANSWER_S = 600.0
_WHOLE_PASSES: Mapping[str, Any] = {
    "chunked_prefill_size": -1, "disable_radix_cache": True, "disable_cuda_graph": True,
}  # fmt: skip
"""options of a server that computes a sequence at once and as Python says, so that all is heard"""
BOUNDS: Mapping[str, float] = {"fp32": 1e-4, "bf16": 0.1}
"""relative differences that come of the order of sums in this type"""
_SHOWN = 3
"""tokens whose experts are told"""


def run_all(
    folder: Path,
    num_tokens: int,
    precision: str,
    *,
    children: ChildProcesses,
    served: Path | None = None,
) -> dict[str, Recorded]:
    """By program. `children` start the server; `served`: what it loads in place of the folder.

    Raises InputError for a model that cannot be trained, or a number of tokens that it has no
    positions for; EngineError.
    """
    shape = model_shape(read_config(folder))
    most = shape.max_positions - _RESERVE
    if not 2 <= num_tokens <= most:
        raise InputError(f"--tokens {num_tokens}: this model allows 2 to {most}")
    draw = random.Random(0)
    tokens = [draw.randrange(shape.vocab) for _ in range(num_tokens)]
    # The server first: later this process may hold the device's memory.
    engine = run_engine(served or folder, shape, tokens, precision, children)
    return {
        TRAINER: run_trainer(folder, shape, tokens, precision),
        ENGINE: engine,
        WITNESS: run_transformers(folder, shape, tokens, precision),
    }


def run_engine(
    folder: Path,
    shape: ModelShape,
    tokens: Sequence[int],
    precision: str,
    children: ChildProcesses,
) -> Recorded:
    with tempfile.TemporaryDirectory(prefix="tributary-align-") as name:
        hooks = [hook_of(module, Path(name)) for module in ENGINE_NAMES.modules(shape.num_layers)]
        options = {**_WHOLE_PASSES, "forward_hooks": hooks}
        server = Server(children, "align", FleetSpec(sglang=options).of_trainer(precision), folder)
        try:
            server.wait_ready()
            once = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
            asked = {"input_ids": list(tokens), "sampling_params": once}
            call(server.url, "/generate", asked, timeout=_ANSWER_S)
        finally:
            server.stop()
        seen = read_hooks(Path(name))
    logits = seen[ENGINE_NAMES.output].made[0]
    return recorded(seen, ENGINE_NAMES, shape, logits, len(tokens))


def run_trainer(folder: Path, shape: ModelShape, tokens: Sequence[int], precision: str) -> Recorded:
    with one_rank(), torch.no_grad():
        seed_all(0)
        kernels.choose(TrainerSettings().kernels)
        layout, weights = current_layout(Parallel()), HfWeights(folder)
        config = transformer_config(shape, layout, precision, {})
        network = build_model(shape, config, layout)
        load_weights(network, shape, layout, weights.read, weights.file_of)
        network.to(DTYPES[precision])
        # Logits are of tokens that have a successor; that one changes nothing before it.
        sequence = [*tokens, tokens[0]]
        pack = build_pack(FlatSequences.of([sequence], [[1] * len(sequence)]), [0], layout)
        with listening(network, OF_TRAINER, shape.num_layers) as seen:
            logits = network(pack.input_ids, None, None, packed_seq_params=pack)
        embedding = seen[OF_TRAINER.embedding].made[0]
        embedding *= network.embedding_scale
        return recorded(seen, OF_TRAINER, shape, logits[-1].cpu(), len(tokens))


def run_transformers(
    folder: Path, shape: ModelShape, tokens: Sequence[int], precision: str
) -> Recorded:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[precision])
    network = loaded.eval().to(device.device())
    given = torch.tensor([list(tokens)], device=device.device())
    with torch.no_grad(), listening(network, AS_STORED, shape.num_layers) as seen:
        logits = network(given).logits
    return recorded(seen, AS_STORED, shape, logits[0, -1].cpu(), len(tokens))


@dataclass(frozen=True, slots=True)
class Difference:
    """What the programs say at one point. Example: layer 1, `self_attn.o_proj`."""

    layer: int | None
    """None: outside of all layers"""
    point: str
    between: Mapping[tuple[str, str], float]
    """by pair of programs: the largest relative difference of a token's vector, or the share of
    tokens that go to other experts"""

    @property
    def name(self) -> str:
        return self.point if self.layer is None else f"layer {self.layer}, {self.point}"

    def is_beyond(self, bound: float) -> bool:
        """One token that goes to other experts is."""
        return any(value > self._limit(bound) for value in self.between.values())

    def _limit(self, bound: float) -> float:
        return 0.0 if self.point == EXPERTS else bound

    def odd_one(self, bound: float) -> str:
        """The program that differs from two that agree; empty where there is no such."""
        agreeing = [pair for pair, value in self.between.items() if value <= self._limit(bound)]
        programs = dict.fromkeys(name for pair in self.between for name in pair)
        others = [name for name in programs if name not in (agreeing[0] if agreeing else ())]
        return others[0] if len(agreeing) == 1 and len(others) == 1 else ""


@dataclass(frozen=True, slots=True)
class Alignment:
    bound: float
    differences: Sequence[Difference]
    """in the order in which a model computes"""
    experts: Sequence[str]
    """if tokens first differ in their experts: some of them, with what each program chose"""

    @property
    def first(self) -> Difference | None:
        """The first point at which two programs differ beyond the bound."""
        return next((each for each in self.differences if each.is_beyond(self.bound)), None)

    def sentence(self) -> str:
        """Return what a person should know of it."""
        if (first := self.first) is None:
            return f"No module's output differs by more than {self.bound:g}."
        said = f"The first output that differs by more than {self.bound:g}: {first.name}"
        hint = f" ({HINTS[first.point]})" if first.point in HINTS else ""
        odd = first.odd_one(self.bound)
        others = [n for n in dict.fromkeys(n for pair in first.between for n in pair) if n != odd]
        who = f"{' and '.join(others)} agree, {odd} differs" if odd else "none agrees"
        return f"{said}{hint}: {who if len(others) + bool(odd) > 2 else 'they differ'}."

    def as_json(self) -> dict[str, Any]:
        first = self.first
        return {
            "bound": self.bound,
            "agree": first is None,
            "first": None if first is None else _as_json(first),
            "odd": "" if first is None else first.odd_one(self.bound),
            "experts": list(self.experts),
            "differences": [_as_json(each) for each in self.differences],
        }


def _as_json(each: Difference) -> dict[str, Any]:
    between = {"-".join(pair): value for pair, value in each.between.items()}
    return {"layer": each.layer, "point": each.point, "between": between}


def compare(programs: Mapping[str, Recorded], bound: float) -> Alignment:
    """Every point that at least two programs have."""
    differences = list(_differences(programs))
    first = next((each for each in differences if each.is_beyond(bound)), None)
    told = list(_experts(programs, first)) if first and first.point == EXPERTS else []
    return Alignment(bound, differences, told)


def _differences(programs: Mapping[str, Recorded]) -> Iterator[Difference]:
    layers = {layer for found in programs.values() for layer, _ in found if layer is not None}
    inner = [(layer, point) for layer in sorted(layers) for point in ORDER]
    for at in ((None, EMBEDDING), *inner, (None, NORM), (None, LOGITS)):
        having = [name for name, found in programs.items() if at in found]
        between = {
            (one, other): relative_difference(programs[one][at], programs[other][at])
            for one, other in combinations(having, 2)
        }
        if between:
            yield Difference(*at, between)


def relative_difference(one_TX: Tensor, other_TX: Tensor) -> float:
    """The largest over tokens of |a - b| / max(|a|, |b|); of experts the share of tokens that have
    others. Infinite where a number is none."""
    if one_TX.dtype is torch.bool:
        return float((one_TX != other_TX).any(-1).float().mean())
    apart = (one_TX - other_TX).norm(dim=-1)
    size = torch.maximum(one_TX.norm(dim=-1), other_TX.norm(dim=-1))
    relative = torch.where(apart == 0, apart, apart / size)
    return float(relative.nan_to_num(nan=torch.inf).max())


def _experts(programs: Mapping[str, Recorded], at: Difference) -> Iterator[str]:
    place = (at.layer, EXPERTS)
    chosen = {name: found[place] for name, found in programs.items() if place in found}
    maps = list(chosen.values())
    unlike = torch.stack([(maps[0] != other).any(-1) for other in maps[1:]]).any(0)
    for token in unlike.nonzero().flatten().tolist()[:_SHOWN]:
        said = (f"{n} {map_TE[token].nonzero().flatten().tolist()}" for n, map_TE in chosen.items())
        yield f"token {token}: {', '.join(said)}"


def by_layer(alignment: Alignment) -> Iterator[tuple[str, list[Difference]]]:
    """The embedding, each layer, the last norm and the logits, each with its points."""
    groups: dict[str, list[Difference]] = {}
    for each in alignment.differences:
        name = each.point if each.layer is None else f"layer {each.layer}"
        groups.setdefault(name, []).append(each)
    yield from groups.items()
