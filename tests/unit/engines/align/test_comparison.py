"""Where two programs differ on one model is found at its layer and module."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from engines.align.compared_programs import Alignment, compare, relative_difference
from engines.align.points import (
    AS_STORED,
    EXPERTS,
    OF_TRAINER,
    QUERY_KEY_VALUE,
    Recorded,
    Seen,
    listening,
    recorded,
)
from engines.families.common.family import ModelShape
from engines.families.common.registry import model_shape
from flows.command.app import CommandConsole
from flows.command.models.export import show
from infra.errors import EngineError
from tests.parts.families import hf_config

pytestmark = pytest.mark.unit

TOKENS = list(range(7))


def shape_of(family: str) -> ModelShape:
    return model_shape(hf_config(family).to_dict())


@pytest.fixture(scope="module")
def network() -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(hf_config("llama")).float().eval()


def run(network: Any) -> Recorded:
    shape = shape_of("llama")
    with torch.no_grad(), listening(network, AS_STORED, shape.num_layers) as seen:
        logits = network(torch.tensor([TOKENS])).logits
    return recorded(seen, AS_STORED, shape, logits[0, -1], len(TOKENS))


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ([[3.0, 4.0], [1.0, 0.0]], [[3.0, 4.0], [0.5, 0.0]], 0.5),
        ([[3.0, 4.0], [0.0, 0.0]], [[0.0, 4.0], [0.0, 0.0]], 0.6),  # 3 of 5
        ([[1.0], [math.nan]], [[1.0], [1.0]], math.inf),
        ([[True, False], [True, False]], [[True, False], [False, True]], 0.5),
    ],
)
def test_a_difference_is_relative_to_its_token(one: Any, other: Any, wanted: float) -> None:
    assert relative_difference(torch.tensor(one), torch.tensor(other)) == pytest.approx(wanted)


def test_the_fused_product_is_taken_apart_as_each_program_lays_it_out() -> None:
    """Two groups of two queries: Megatron's order is q q k v q q k v."""
    shape = replace(shape_of("llama"), num_layers=1, head_dim=1)
    assert (shape.heads, shape.kv_groups) == (4, 2)
    by_group = torch.tensor([[[0.0, 1.0, 4.0, 6.0, 2.0, 3.0, 5.0, 7.0]]]).expand(3, 1, 8)
    in_row = torch.arange(8.0).expand(3, 8)
    wanted = [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]
    for names, product in ((OF_TRAINER, by_group), (AS_STORED, in_row)):
        layer = names.layer.format(0)
        ones = torch.ones(3, 2)
        ran = {names.embedding: Seen((), (ones,)), names.norm: Seen((ones, ones), (ones, 2 * ones))}
        ran |= {layer + names.fused[0]: Seen((), (product,))}
        found = recorded(ran, names, shape, torch.ones(9), 2)
        assert [found[0, name][1].tolist() for name in QUERY_KEY_VALUE] == wanted
        assert found[0, "layer output"].tolist() == [[2.0, 2.0]] * 2, "with the residual"
    with pytest.raises(EngineError, match=r"^model\.norm gave nothing"):
        recorded({AS_STORED.embedding: Seen((), (in_row,))}, AS_STORED, shape, in_row, 2)


def test_a_planted_weight_is_found_at_its_layer_and_module(network: Any) -> None:
    exact = run(network)
    weight = network.model.layers[1].self_attn.o_proj.weight
    with torch.no_grad():
        weight[3, 5] += 1e-2
        other = run(network)
        weight[3, 5] -= 1e-2
    assert compare({"trainer": exact, "engine": exact, "transformers": exact}, 1e-5).first is None
    found = compare({"trainer": exact, "engine": other, "transformers": exact}, 1e-5)
    assert found.first is not None
    assert (found.first.layer, found.first.point) == (1, "self_attn.o_proj")
    assert found.sentence() == (
        "The first output that differs by more than 1e-05: layer 1, self_attn.o_proj: trainer and"
        " transformers agree, engine differs."
    )
    assert found.as_json()["odd"] == "engine"
    before = [each for each in found.differences if not each.is_beyond(1e-5)]
    assert {each.layer for each in before} == {None, 0, 1}, "the embedding, and layers up to it"


def test_tokens_that_go_to_other_experts_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    shape = replace(shape_of("qwen3_moe"), num_layers=1)
    assert shape.mixture is not None
    assert shape.mixture.num_experts == 4

    def routed(chosen: Any) -> Recorded:
        ones = [torch.ones(2, 2)]
        ran = {name: Seen(ones, ones) for name in ("model.embed_tokens", "model.norm")}
        ran |= {"model.layers.0.mlp.gate": Seen((), (torch.ones(2, 4), torch.tensor(chosen)))}
        return recorded(ran, AS_STORED, shape, torch.ones(9), 2)

    # The number behind the last is of an expert for all tokens.
    programs = {"trainer": routed([[1, 2], [0, 3]]), "engine": routed([[2, 1, 4], [1, 3, 4]])}
    assert programs["engine"][0, EXPERTS].tolist() == [[0, 1, 1, 0], [0, 1, 0, 1]]
    found = compare(programs, 0.9)
    assert found.first is not None, "whatever the bound of numbers"
    assert found.first.between == {("trainer", "engine"): 0.5}
    show(found, "a model", CommandConsole())
    said = capsys.readouterr().out
    assert "layer 0       5.0e-01           mlp.gate" in said
    assert "they differ." in said
    assert "token 1: trainer [0, 3], engine [1, 3]" in said


def test_no_difference_is_said_so() -> None:
    assert Alignment(0.05, (), ()).sentence() == "No module's output differs by more than 0.05."
