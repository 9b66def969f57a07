"""Seeded sampling: the law, and independence of the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engines.sglang.cpu.seeded_sampling import pick, pick_filtered, uniforms

pytestmark = pytest.mark.unit


def test_a_row_draws_the_same_in_any_batch() -> None:
    weights = torch.rand(64, 512, generator=torch.Generator().manual_seed(0))
    seeds = torch.arange(64) * 7919
    positions = torch.arange(64) % 11
    together = pick(weights, seeds, positions)
    alone = [pick(weights[i : i + 1], seeds[i : i + 1], positions[i : i + 1]) for i in range(64)]
    assert torch.equal(together, torch.cat(alone))


def test_draws_follow_the_weights_over_seeds_and_over_positions() -> None:
    weights = torch.tensor([[1.0, 0.0, 2.0, 5.0]])
    many = torch.arange(40_000)
    fixed = torch.full_like(many, 5)
    for seeds, positions in ((many, fixed), (fixed, many)):
        drawn = pick(weights.expand(len(many), 4), seeds, positions).view(-1)
        shares = torch.bincount(drawn, minlength=4) / len(many)
        # 5 standard deviations of a share of one half over 40000 draws
        assert torch.allclose(shares, torch.tensor([0.125, 0.0, 0.25, 0.625]), atol=0.0125)


def test_neighbouring_seeds_and_positions_are_uncorrelated() -> None:
    seeds, positions = torch.arange(20_000), torch.zeros(20_000, dtype=torch.int64)
    one, next_seed = uniforms(seeds, positions), uniforms(seeds + 1, positions)
    next_position = uniforms(seeds, positions + 1)
    for other in (next_seed, next_position):
        correlation = torch.corrcoef(torch.stack([one, other]))[0, 1]
        assert abs(float(correlation)) < 5 / 20_000**0.5
    assert float(one.min()) >= 0
    assert float(one.max()) < 1


def test_a_column_of_weight_zero_is_never_drawn() -> None:
    weights = torch.tensor([[0.0, 3.0, 0.0]]).expand(1000, 3)
    drawn = pick(weights, torch.arange(1000), torch.arange(1000))
    assert set(drawn.view(-1).tolist()) == {1}


def kept_by_hand(row: np.ndarray, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The columns that may be drawn, likeliest first."""
    order, before, kept = np.argsort(-row, kind="stable"), 0.0, list[int]()
    for column in order[:top_k].tolist():
        if before > top_p or row[column] < min_p * row[order[0]]:
            break
        kept.append(column)
        before += row[column]
    return kept


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(5, 1.0, 0.0), (40, 0.7, 0.0), (40, 1.0, 0.2), (6, 0.9, 0.1), (2, 0.01, 0.0)],
)
def test_what_is_kept_and_drawn_is_within_all_three_bounds(
    top_k: int, top_p: float, min_p: float
) -> None:
    rows = 200
    logits = 2 * torch.randn(rows, 40, generator=torch.Generator().manual_seed(1))
    probs = logits.softmax(-1)
    ks, ps, least = (torch.full((rows,), value) for value in (top_k, top_p, min_p))
    seeds, best = torch.arange(rows), probs.argmax(-1)
    chosen, weights, columns = pick_filtered(probs, ks, ps, seeds, seeds, best, least)
    for row, token, weight, column in zip(probs, chosen, weights, columns, strict=True):
        wanted = kept_by_hand(row.double().numpy(), top_k, top_p, min_p)
        assert column[weight > 0].tolist() == wanted
        assert token in wanted
        assert torch.equal(weight[: len(wanted)], row[wanted])
