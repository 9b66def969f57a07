"""Experts of the pass before an update are those of the update, whatever routers say by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.algorithms.spec import Algorithm
from engines.devices.host_agent import HostAgent
from engines.families.common.experts import Mixture
from engines.megatron.spec import TrainerSettings
from engines.megatron.train.pack import FlatSequences
from engines.megatron.train.routes import Routes
from engines.sglang.client import GenerationClient
from engines.sglang.servers.server import Place
from engines.sglang.servers.slots import ServerSlots
from engines.sglang.spec import FleetSpec
from engines.step_inputs import StepInputs
from engines.types import Generation, Sample, Sampling, Status
from infra.errors import TrainingStopped
from tests.integration.megatron.megatron_models import make_model, samples, sequences
from tests.integration.megatron.megatron_ranks import (
    EACH_LAYOUT,
    LENGTHS,
    RECOMPUTE,
    SPEC,
    Ranks,
    TrainerArgs,
)
from tests.integration.megatron.test_families import (
    MIXTURES,
    PLACES,
    REFUSED,
    assert_gradients,
    gradients,
    gradients_of,
    logprobs_of,
    nll_of,
)
from tests.parts.sample_parts import sample_of
from tests.parts.tiny import tiny_model

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Folder and transformers model of each family."""
    root = tmp_path_factory.mktemp("models")
    return {name: (root / name, make_model(name, root / name)) for name in MIXTURES}


def noise(like: torch.Tensor, layer: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(layer)
    return 0.5 * torch.randn(like.shape, generator=draw) * like.std()


def change_weights(trainer: Any) -> None:
    """Routers prefer other experts, and weigh them otherwise."""
    for router in trainer._routers.each:
        router.weight.data += noise(router.weight.data, router.layer_number)


def change_biases(trainer: Any) -> None:
    """Routers prefer other experts, and weigh each as before."""
    for router in trainer._routers.each:
        router.expert_bias += torch.arange(len(router.expert_bias)) % 3


def scored_twice(trainer: Any, batch: list[Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Logprobs with the experts from before the routers changed, and with new ones; gradients of
    the former."""
    flat = FlatSequences.of([s.tokens for s in batch], [s.loss_mask for s in batch])
    routes = trainer.routes(flat.num_tokens)
    trainer.score(replace(flat, routes=routes), 1.0)
    change_weights(trainer)
    replayed = trainer.score(replace(flat, routes=routes), 1.0)
    return replayed, trainer.score(flat, 1.0), gradients(trainer, batch, routes)


def taking(gate: Any, chosen: Iterator[torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    """The forward pass of a router of Qwen3 that takes these experts, one call after the other."""

    def forward(hidden: torch.Tensor) -> Any:
        logits, experts = torch.nn.functional.linear(hidden, gate.weight), next(chosen)
        return logits, logits.gather(1, experts).softmax(-1), experts

    return forward


def test_replay_gives_logprobs_and_gradients_of_transformers_with_the_same_experts(
    ranks: Ranks, models: dict[str, tuple[Path, Any]]
) -> None:
    folder, reference = models["qwen3_moe"]
    reference, batch = deepcopy(reference), sequences(LENGTHS)
    replayed, free, found = ranks.run(scored_twice, TrainerArgs(folder), batch)
    gates = [m for name, m in reference.named_modules() if name.endswith(".mlp.gate")]
    chosen: dict[Any, list[torch.Tensor]] = {gate: [] for gate in gates}
    hooks = [g.register_forward_hook(lambda of, _, said: chosen[of].append(said[2])) for g in gates]
    for s in batch:
        logprobs_of(reference, s.tokens)
    for layer, (gate, hook) in enumerate(zip(gates, hooks, strict=True), 1):
        hook.remove()
        gate.weight.data += noise(gate.weight.data, layer)
        gate.forward = taking(gate, cycle(chosen[gate]))
    expected = np.concatenate([[0.0, *logprobs_of(reference, s.tokens)] for s in batch])
    expected *= np.concatenate([[0, *s.loss_mask[1:]] for s in batch])
    assert replayed == pytest.approx(expected, abs=1e-5)
    assert np.abs(free - expected).max() > 0.1
    wanted = gradients_of(reference, nll_of(reference, batch))
    assert_gradients(found, wanted)
    of_gates = [value for name, value in found.items() if name.endswith(".mlp.gate.weight")]
    assert len(of_gates) == len(gates)
    assert all(np.abs(value).max() > 1e-4 for value in of_gates)


def updated(
    trainer: Any, batch: list[Any], algorithm: Algorithm, change: Callable[[Any], None]
) -> dict[str, float]:
    """Metrics of an RL step between whose passes the routers change."""
    made = samples(batch, trainer.logprobs([s.tokens for s in batch]))
    score = trainer.score

    def score_and_change(*given: Any) -> Any:
        said = score(*given)
        change(trainer)
        return said

    trainer.score = score_and_change
    return trainer.rl_step(StepInputs(made, algorithm)).metrics


def algorithm_of(replay: str, mini_batches: int) -> Algorithm:
    written = {"old_logprobs": "trainer", "routing_replay": replay, "mini_batches": mini_batches}
    return Algorithm.model_validate(written)


@pytest.mark.parametrize("family", ["glm4_moe", "deepseek_v3"])
def test_the_ratio_of_an_update_starts_at_one_exactly_though_routers_now_prefer_others(
    family: str, ranks: Ranks, models: dict[str, tuple[Path, Any]]
) -> None:
    args, batch = TrainerArgs(models[family][0]), sequences(LENGTHS, 3)
    replayed, free = (
        ranks.run(updated, args, batch, algorithm_of(replay, 1), change_biases)
        for replay in ("trainer", "none")
    )
    assert (replayed["ratio_max"], replayed["kl_k3"]) == (1.0, 0.0)
    assert free["ratio_max"] > 1.1
    assert free["kl_k3"] > 1e-3


# Packs differ in a step's passes. In ep2 tokens change their ranks between these; tp2 pads; pp2 has
# several packs under way at once, whose layers are computed again.
TELLING = [
    ("qwen3_moe", "ep2", "kept"),
    ("glm4_moe", "tp2-ep2", "kept"),
    ("gpt_oss", "tp2-ep2", "layers"),
    ("deepseek_v3", "pp2", "layers"),
]
EACH = [
    (family, layout, again)
    for family in MIXTURES
    for layout in PLACES
    for again in ("kept", "layers")
    if (family, layout) not in REFUSED
]


@pytest.mark.parametrize(("family", "layout", "again"), EACH if EACH_LAYOUT else TELLING)
def test_every_layout_replays_what_one_process_does(
    family: str, layout: str, again: str, ranks: Ranks, models: dict[str, tuple[Path, Any]]
) -> None:
    folder, batch, names = models[family][0], sequences(LENGTHS, 3), ("loss", "grad_norm")

    def run(args: TrainerArgs, replay: str) -> dict[str, float]:
        metrics = ranks.run(updated, args, batch, algorithm_of(replay, 2), change_weights)
        return {name: metrics[name] for name in (*names, "entropy", "ratio_mean", "kl_k3")}

    alone = run(TrainerArgs(folder), "trainer")
    spec = TrainerSettings(micro_batch_tokens=SPEC.most_tokens // 2, megatron=RECOMPUTE[again])
    shared = run(TrainerArgs(folder, PLACES[layout], spec), "trainer")
    assert shared == pytest.approx(alone, rel=2e-5, abs=1e-6)
    free = run(TrainerArgs(folder), "none")
    assert abs(free["ratio_mean"] - alone["ratio_mean"]) > 5e-4


@pytest.mark.parametrize(("experts", "size"), [(256, 1), (257, 2)])
def test_an_expert_takes_the_fewest_bytes_that_hold_its_number(experts: int, size: int) -> None:
    assert Routes(5, [1, 2, 3], 4, Mixture(experts, 2, 8)).experts_TLK.nbytes == 5 * 3 * 2 * size


@pytest.mark.parametrize("said", [[[1, 2, 3]], [[1, 2, 3, 3]], [[1, 2, 0, 4]], [[1, 2, 5, 4]]])
def test_experts_that_no_router_can_have_chosen_stop_the_stage(said: list[list[int]]) -> None:
    routes = Routes(3, [1], 2, Mixture(4, 2, 8))
    with pytest.raises(TrainingStopped, match="an engine"):
        routes.take(0, np.array(said, np.uint8))
    routes.take(1, np.array([[0, 0, 4, 1]], np.uint8))
    assert routes.experts_TLK.tolist() == [[[0, 0]], [[0, 3]], [[0, 0]]]
    assert routes.known_T.tolist() == [False, True, False]


def compared(trainer: Any, made: list[Sample]) -> tuple[float, float, dict[str, float]]:
    """The share of places that the trainer routes as the engine did; the mean distance of logprobs
    with the engine's experts; metrics of a step in which these are others."""
    flat = FlatSequences.of([s.tokens for s in made], [s.loss_mask for s in made])
    own, of_engine = trainer.routes(flat.num_tokens), trainer.routes(flat.num_tokens)
    trainer.score(replace(flat, routes=own), 1.0)
    for first, sample in zip(flat.starts.tolist(), made, strict=True):
        of_engine.take(first, sample.experts)
    known = of_engine.known_T.copy()
    alike = np.sort(own.experts_TLK[known]) == of_engine.experts_TLK[known]
    replayed = trainer.score(replace(flat, routes=of_engine), 1.0)
    engine = np.concatenate([s.logprobs for s in made])
    apart = float(np.abs(replayed - engine)[flat.trained].mean())
    number = trainer.shape.mixture.num_experts
    for sample in made:
        is_known = sample.experts.any(1)
        sample.experts[is_known] = sample.experts[is_known] % number + 1
    algorithm = Algorithm.model_validate({"routing_replay": "engine", "mini_batches": 1})
    return float(alike.mean()), apart, trainer.rl_step(StepInputs(made, algorithm)).metrics


@pytest.mark.parametrize("family", MIXTURES if EACH_LAYOUT else ["glm4_moe", "gpt_oss"])
def test_experts_that_a_server_chose_are_those_of_the_update(
    family: str, ranks: Ranks, tmp_path: Path
) -> None:
    folder = tiny_model(tmp_path / "model", family)
    (tmp_path / "servers").mkdir()
    slots = ServerSlots(HostAgent(tmp_path / "servers", 0))
    prompts = [[(11 * i + j) % 256 for j in range(3 + 5 * i)] for i in range(6)]
    try:
        slots.grow(1)
        router = slots.prepare({"server-0": Place(tp=1)}, FleetSpec().with_experts(), folder, 0)
        said, alone = (asyncio.run(asked(router.url, prompts, size)) for size in (6, 1))
    finally:
        slots.close()
    for one, other in zip(said, alone, strict=True):
        assert np.array_equal(one.experts, other.experts)
    made = [rollout(i, *pair) for i, pair in enumerate(zip(prompts, said, strict=True))]
    assert made[0].experts.dtype == np.uint8
    alike, apart, others = ranks.run(compared, TrainerArgs(folder, PLACES["ep2"]), made)
    assert alike > 0.99
    assert apart <= 1e-5
    assert others["mismatch_mean"] > 1e-2


async def asked(url: str, prompts: list[list[int]], max_batch: int) -> list[Generation]:
    async with GenerationClient(url, max_batch=max_batch, with_experts=True) as client:
        turns = [(ids, Sampling(24, seed=i)) for i, ids in enumerate(prompts)]
        return await asyncio.gather(*(client.generate(ids, how) for ids, how in turns))


def rollout(index: int, prompt: list[int], said: Generation) -> Sample:
    count, length = len(said.token_ids), len(prompt)
    experts = np.pad(said.experts, ((0, 1), (0, 0)))
    return sample_of(
        *("p", "test", "g", f"r{index}", index),
        [*prompt, *said.token_ids.tolist()],
        [0] * length + [1] * count,
        [0.0] * length + said.logprobs.tolist(),
        [-1] * length + [0] * count,
        Status.COMPLETED,
        float(index % 2),
        experts=experts,
    )
