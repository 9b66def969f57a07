"""Every family keeps the contract with the real engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engines.families.common.model_config import read_config
from engines.families.common.registry import family_names, model_shape, served_families
from engines.megatron.hf.folder import HfWeights
from engines.megatron.hf.layout import served_weights
from engines.megatron.spec import TrainerSettings
from engines.megatron.train.objectives import SftObjective
from engines.megatron.train.pack import FlatSequences
from engines.megatron.train.routes import Routes
from engines.sglang.client import GenerationClient
from engines.sglang.servers.server import Place
from engines.sglang.servers.slots import ServerSlots
from engines.sglang.spec import FleetSpec
from engines.types import Generation, Sampling
from engines.weights.disk import load_folder
from engines.weights.transport import ServerWeights, find_targets, server_weights
from tests.integration.conftest import SglangPair
from tests.integration.megatron.megatron_models import WINDOWED, make_model, sequences
from tests.integration.megatron.megatron_ranks import (
    ALONE,
    EACH_LAYOUT,
    EXPERTS,
    LAYOUTS,
    LENGTHS,
    Ranks,
    TrainerArgs,
)
from tests.parts.families import EXAMPLES
from tests.parts.tiny import tiny_model
from tests.parts.whole_weights import TRANSPORTS, whole_weights

pytestmark = pytest.mark.integration
FAMILIES = family_names()
MIXTURES = [name for name in FAMILIES if EXAMPLES[name].experts]
SMALL = 100_000
"""bytes of a bucket: a tiny model needs many"""
PLACES = {"alone": ALONE, **LAYOUTS, **EXPERTS}
TEXTS = [[(7 * i + 3 * j) % 96 for j in range(4 + 9 * i)] for i in range(4)]


@dataclass(frozen=True, slots=True)
class Expected:
    """What transformers computes."""

    logprobs: list[list[float]]
    loss: float
    gradients: dict[str, Any]


@pytest.fixture(scope="module")
def expected_of(models: dict[str, tuple[Path, Any]]) -> Callable[[str], Expected]:
    """Each family's, worked out once for all layouts."""

    @cache
    def found(family: str) -> Expected:
        _, reference = models[family]
        loss = nll_of(reference, sequences(LENGTHS))
        logprobs = [logprobs_of(reference, tokens) for tokens in TEXTS]
        return Expected(logprobs, loss.item(), gradients_of(reference, loss))

    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """Folder and transformers model of each family."""
    root = tmp_path_factory.mktemp("models")
    return {name: (root / name, make_model(name, root / name)) for name in FAMILIES}


def exported(trainer: Any) -> dict[str, Any]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in trainer.hf_tensors()}


@pytest.mark.parametrize(
    ("family", "is_tied"),
    [
        *[(name, False) for name in FAMILIES if name not in WINDOWED],
        *[(name, True) for name in FAMILIES if name not in MIXTURES],
    ],
)
def test_the_tensors_we_expect_are_those_transformers_writes(
    family: str, is_tied: bool, tmp_path: Path
) -> None:
    folder = tiny_model(tmp_path, family, tie_word_embeddings=is_tied)
    weights = HfWeights(folder)
    written = {name: tuple(weights.read(name).shape) for name in weights.file_of}
    shape = model_shape(read_config(folder))
    assert {t.name: t.size(shape.axes) for t in shape.expected_tensors()} == written
    assert shape.family.architecture in read_config(folder)["architectures"]


REFUSED = {("gpt_oss", "tp2"), ("gpt_oss", "tp2-dp2-ep2")}  # an expert's biases forbid it
CASES = [(family, layout) for family in FAMILIES for layout in ("alone", "tp2", "pp2")]
CASES += [(family, layout) for family in MIXTURES for layout in EXPERTS]
CASES = [case for case in CASES if case not in REFUSED]
TELLING = [
    *[case for case in CASES if case[1] in ("alone", "tp2")],
    *[("qwen3", "pp2"), ("glm4_moe", "pp2"), ("qwen3_moe", "tp2-ep2"), ("gpt_oss", "tp2-ep2")],
    *[("glm4_moe", "ep2"), ("glm4_moe", "tp2-dp2-ep2")],
]
"""families differ in the tensors that ranks share; layers and sequences are cut alike in all"""
SPLIT_SHOWN = ("qwen3", "glm4_moe", "gemma3_text")
# Delta nets are refused with cp: their state goes from token to token.
SPLITTABLE = [name for name in FAMILIES if not EXAMPLES[name].delta]
SPLIT = [(family, "cp2") for family in (SPLITTABLE if EACH_LAYOUT else SPLIT_SHOWN)]


def worked(
    trainer: Any, texts: list[list[int]], batch: list[Any]
) -> tuple[dict[str, Any], list[list[float]], dict[str, Any], dict[str, float]]:
    """Weights and logprobs; gradients, of one process; metrics of a step."""
    weights, logprobs = exported(trainer), trainer.logprobs(texts)
    found = gradients(trainer, batch) if trainer.layout.parallel == ALONE else {}
    (metrics,) = trainer.sft_steps([batch])
    return weights, logprobs, found, metrics


@pytest.mark.parametrize(("family", "layout"), [*(CASES if EACH_LAYOUT else TELLING), *SPLIT])
def test_weights_come_back_to_the_bit_and_give_the_numbers_of_transformers(
    family: str,
    layout: str,
    ranks: Ranks,
    models: dict[str, tuple[Path, Any]],
    expected_of: Callable[[str], Expected],
) -> None:
    folder, expected = models[family][0], expected_of(family)
    args = TrainerArgs(folder, PLACES[layout])
    weights, logprobs, found, metrics = ranks.run(worked, args, TEXTS, sequences(LENGTHS))
    source = HfWeights(folder)
    assert set(weights) == set(source.file_of)
    for name, tensor in weights.items():
        assert torch.equal(torch.from_numpy(tensor), source.read(name)), name
    for values, wanted in zip(logprobs, expected.logprobs, strict=True):
        assert values[-len(wanted) :] == pytest.approx(wanted, abs=5e-6)
    squares = [float(gradient.square().sum()) for gradient in expected.gradients.values()]
    assert metrics["loss"] == pytest.approx(expected.loss, rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(sum(squares) ** 0.5, rel=1e-5)
    if layout == "alone":
        assert_gradients(found, expected.gradients)


def gradients(trainer: Any, batch: list[Any], routes: Routes | None = None) -> dict[str, Any]:
    """By HF name, after the forward and backward pass of a supervised step in one process."""
    flat = FlatSequences.of([s.tokens for s in batch], [s.loss_mask for s in batch])
    flat = replace(flat, routes=routes)
    trainer.forward_backward(flat, np.arange(len(batch)), SftObjective())
    found: dict[str, Any] = {}
    for served in served_weights(trainer.network, trainer.shape, trainer.layout):
        if (summed := getattr(served.weight.param, "main_grad", None)) is None:
            continue  # a router's bias
        whole = [torch.empty(size) for _, size in served.tensors]
        served.place(summed, 0, whole)
        names = [name for name, _ in served.tensors]
        found |= {name: tensor.numpy() for name, tensor in zip(names, whole, strict=True)}
    return found


def gradients_of(reference: Any, loss: Any) -> dict[str, Any]:
    """Those of this loss of a transformers model, by the names in its folder."""
    named = dict(reference.named_parameters())
    grads = torch.autograd.grad(loss, list(named.values()))
    return dict(stored_as(dict(zip(named, grads, strict=True))))


def assert_gradients(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        apart = float((torch.from_numpy(found[name]) - gradient).abs().max())
        assert apart <= 1e-4 * float(gradient.abs().max()), name


def nll_of(reference: Any, batch: list[Any]) -> Any:
    """The mean negative log-likelihood of the trained tokens."""
    loss: Any = 0
    for s in batch:
        logprobs = reference(torch.tensor([s.tokens])).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(1, torch.tensor(s.tokens[1:])[:, None])[:, 0]
        loss = loss - (chosen * torch.tensor(s.loss_mask[1:])).sum()
    return loss / sum(sum(s.loss_mask[1:]) for s in batch)


TERMS = {"moe_aux_loss_coeff": 0.3, "moe_z_loss_coeff": 0.05}
WHOLE = 1024
"""tokens of a micro-batch that holds the whole batch: a term of its own in every micro-batch"""


def with_terms(trainer: Any, batch: list[Any]) -> tuple[Any, Any, dict[str, float]]:
    """Gradients, biases of the routers after them, and how even the experts' load was."""
    found = gradients(trainer, batch)
    biases = {k: v for k, v in exported(trainer).items() if k.endswith("correction_bias")}
    return found, biases, trainer._routers.load(trainer.layout)


@pytest.mark.parametrize("family", MIXTURES)
def test_terms_of_the_routers_are_those_worked_out_from_their_scores(
    family: str, ranks: Ranks, models: dict[str, tuple[Path, Any]]
) -> None:
    """Each is the mean over tokens, though fewer tokens are trained; the bias of an expert with
    fewer tokens than the mean rises by the rate, that of one with more falls."""
    folder, reference = models[family]
    batch, rate = sequences(LENGTHS), 0.01
    has_bias = family in ("deepseek_v3", "glm4_moe")
    options = TERMS | ({"moe_router_bias_update_rate": rate} if has_bias else {})
    spec = TrainerSettings(micro_batch_tokens=WHOLE, megatron=options)
    found, biases, load = ranks.run(with_terms, TrainerArgs(folder, spec=spec), batch)

    gates = {n: m for n, m in reference.named_modules() if n.endswith((".mlp.gate", ".mlp.router"))}
    inputs: dict[Any, list[Any]] = {gate: [] for gate in gates.values()}
    hooks = [
        gate.register_forward_pre_hook(lambda of, given: inputs[of].append(given[0].flatten(0, -2)))
        for gate in inputs
    ]
    loss, highest, idle = nll_of(reference, batch), 0.0, 0
    groups: int = getattr(reference.config, "n_group", 1)
    for hook in hooks:
        hook.remove()
    for name, gate in gates.items():
        logits = torch.cat(inputs[gate]) @ gate.weight.T + getattr(gate, "bias", 0)
        scores, number = logits.sigmoid() if has_bias else logits.softmax(-1), len(gate.weight)
        bias = getattr(gate, "e_score_correction_bias", torch.zeros(number))
        sent = torch.bincount(two_best(scores + bias, groups), minlength=number)
        scores = scores / scores.sum(-1, keepdim=True)
        best = torch.bincount(two_best(scores), minlength=number)
        balance = number * (best / best.sum() * scores.mean(0)).sum()
        loss = loss + 0.3 * balance + 0.05 * logits.logsumexp(-1).square().mean()
        mean = sent.float().mean()
        highest = max(highest, float(sent.max() / mean))
        idle = max(idle, int((sent == 0).sum()))
        if biases:
            expected = bias + rate * (mean - sent).sign()
            stored = torch.from_numpy(biases[f"{name}.e_score_correction_bias"])
            assert torch.allclose(stored, expected, rtol=0, atol=1e-7), name
    assert len(gates) == (3 if has_bias else 4)
    assert load == {"expert_load_max": pytest.approx(highest, rel=1e-6), "experts_idle_max": idle}
    assert_gradients(found, gradients_of(reference, loss))


def two_best(scores: Any, groups: int = 1) -> Any:
    """Each token's experts, of the group whose two best ones have most."""
    by_group = scores.unflatten(-1, (groups, -1))
    chosen = by_group.topk(2).values.sum(-1).argmax(-1, keepdim=True)
    others = torch.ones_like(by_group[..., 0]).scatter(-1, chosen, 0).bool()
    limited = by_group.masked_fill(others[..., None], -torch.inf)
    return limited.flatten(-2).topk(2).indices.flatten()


def counted(trainer: Any) -> list[float]:
    """Tokens of the first router's experts, one of which gets 256 and then one more."""
    router = trainer._routers.each[0]
    sent = torch.zeros(256, router.config.num_moe_experts, dtype=torch.bool)
    sent[:, 0] = True
    router._apply_expert_bias(sent)
    router._apply_expert_bias(sent[:1])
    return router.local_tokens_per_expert.tolist()


def test_tokens_of_experts_are_counted_exactly_in_half_precision(
    ranks: Ranks, models: dict[str, tuple[Path, Any]]
) -> None:
    """To bf16 256 + 1 is 256, and biases would follow a wrong load."""
    spec = TrainerSettings(precision="bf16")
    assert ranks.run(counted, TrainerArgs(models["glm4_moe"][0], spec=spec)) == [257, 0, 0, 0]


def one_step(trainer: Any, batch: list[Any]) -> dict[str, float]:
    (metrics,) = trainer.sft_steps([batch])
    return {name: metrics[name] for name in ("loss", "grad_norm", "expert_load_max")}


@pytest.mark.parametrize("layout", ["pp2", "cp2", "tp2-ep2"])
def test_ranks_that_share_a_micro_batch_add_the_same_terms(
    layout: str, ranks: Ranks, models: dict[str, tuple[Path, Any]]
) -> None:
    folder, _ = models["glm4_moe"]
    batch = sequences([40, 8, 24, 12])  # nothing is padded
    spec = TrainerSettings(micro_batch_tokens=WHOLE, megatron=TERMS)
    alone = ranks.run(one_step, TrainerArgs(folder, spec=spec), batch)
    shared = ranks.run(one_step, TrainerArgs(folder, PLACES[layout], spec), batch)
    assert shared == pytest.approx(alone, rel=1e-5)
    plain = ranks.run(one_step, TrainerArgs(folder), batch)
    assert abs(plain["grad_norm"] - alone["grad_norm"]) > 1e-3 * plain["grad_norm"]


def stored_as(tensors: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """As a folder stores them: transformers, and gpt-oss, have a layer's experts in one tensor."""
    for name, tensor in tensors.items():
        place, _, kind = name.partition(".experts.")
        if not kind or any(each.endswith(".sinks") for each in tensors):
            yield name, tensor
            continue
        for number, expert in enumerate(tensor):
            parts = {"gate_up_proj": ("gate_proj", "up_proj")}.get(kind, (kind,))
            for part, own in zip(parts, expert.chunk(len(parts)), strict=True):
                yield f"{place}.experts.{number}.{part}.weight", own


def logprobs_of(reference: Any, tokens: list[int]) -> list[float]:
    """Of each token but the first, given those before it."""
    with torch.no_grad():
        logits = reference(torch.tensor([tokens])).logits[0, :-1].float()
    chosen = torch.tensor(tokens[1:])[:, None]
    return logits.log_softmax(-1).gather(1, chosen)[:, 0].tolist()


@pytest.fixture(scope="module")
def slots(running_pair: SglangPair) -> ServerSlots:
    """Of the shared servers: whoever needs these next resets them."""
    return running_pair.slots


# The others are dense, as that of the servers that other tests share.
UNLIKE = ("glm4", "gemma3_text", "glm4_moe", "gpt_oss", "deepseek_v3", "phi3-longrope")
LONG_ROPE: dict[str, Any] = {
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 128,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "long_factor": [9.0] * 12,
        "short_factor": [1 + 0.2 * n for n in range(12)],
    },
}  # fmt: skip
BEYOND = {"factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = {"linear": {"factor": 4.0}, "yarn": BEYOND, "llama3": BEYOND | BANDS}
SCALED = {"phi3-longrope": LONG_ROPE} | {
    f"{family}-{kind}": {"rope_parameters": {"rope_type": kind, **more}}
    for family in FAMILIES
    if family not in ("phi3", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_5_text")
    for kind, more in SCALINGS.items()
}
"""by family and type of rotary angles, what its config needs"""


@pytest.mark.parametrize("name", [*served_families(), *SCALED] if EACH_LAYOUT else UNLIKE)
def test_logprobs_of_sglang_are_those_of_transformers(
    name: str, slots: ServerSlots, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    fields = SCALED.get(name, {}) | {"dtype": "bfloat16"}  # of the folder; the server's is float32
    folder = tiny_model(tmp_path / name, name.partition("-")[0], **fields)
    model_shape(read_config(folder))
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    router = slots.prepare({"server-0": Place(tp=1)}, FleetSpec(), folder, 0)
    prompts = [[(11 * i + j) % 256 for j in range(3 + 5 * i)] for i in range(6)]
    for prompt, said in zip(prompts, asyncio.run(generate(router.url, prompts)), strict=True):
        expected = logprobs_of(reference, [*prompt, *said.token_ids.tolist()])[len(prompt) - 1 :]
        assert said.logprobs == pytest.approx(expected, abs=2e-4)
        assert len(said.token_ids) > 0


# GLM's routers score as DeepSeek's do, and it attends as Qwen3's.
MIXED = ("deepseek_v3", "gpt_oss", "qwen3_moe")


@pytest.mark.parametrize("family", [*MIXTURES, *WINDOWED] if EACH_LAYOUT else MIXED)
def test_answers_have_the_same_bits_in_any_batch_and_by_each_transport(
    family: str, slots: ServerSlots, tmp_path: Path
) -> None:
    folders = [tiny_model(tmp_path / str(seed), family, seed) for seed in range(2)]
    router = slots.prepare({"server-0": Place(tp=1)}, FleetSpec(), folders[0], 0)
    prompts = [[(11 * i + j) % 256 for j in range(3 + 5 * i)] for i in range(6)]

    def bits(max_batch: int) -> list[tuple[bytes, bytes]]:
        said = asyncio.run(generate(router.url, prompts, max_batch))
        return [(each.token_ids.tobytes(), each.logprobs.tobytes()) for each in said]

    urls, before = [slots["server-0"].url], bits(6)
    load_folder(folders[1], urls, 1)
    loaded, held = bits(6), server_weights(urls[0]).checksum
    assert loaded != before
    assert bits(1) == loaded
    for version, (name, make) in enumerate(TRANSPORTS.items(), 2):
        load_folder(folders[0], urls, 1)
        transport = make(tmp_path / "shared")
        transport.push(whole_weights(folders[1], SMALL), find_targets(urls), version)
        transport.close()
        assert server_weights(urls[0]) == ServerWeights(str(version), held), name
        assert bits(6) == loaded, name


async def generate(url: str, prompts: list[list[int]], max_batch: int = 6) -> list[Generation]:
    async with GenerationClient(url, max_batch=max_batch) as client:
        asked = (client.generate(ids, Sampling(12, seed=i)) for i, ids in enumerate(prompts))
        return await asyncio.gather(*asked)
