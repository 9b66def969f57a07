"""Runs one model in each program on the same tokens and records its modules: SGLang's server, as a
stage starts it; the trainer's model, as it trains it, in this process; and transformers.

Each is on one device, one after the other.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engines.align.engine_hooks import hook_of, read_hooks
from engines.align.points import (
    AS_STORED,
    OF_TRAINER,
    Recorded,
    listening,
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
