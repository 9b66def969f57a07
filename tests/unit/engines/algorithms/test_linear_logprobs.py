"""Logprobs from hidden states: worked by hand, and against float64 whatever the tiles are."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engines.algorithms import linear_logprobs as module
from engines.algorithms.linear_logprobs import among_kept, linear_logprobs
from engines.memory import activations as tiling

pytestmark = pytest.mark.unit

ROWS, HIDDEN, VOCAB = 7, 6, 23
TILES = {
    "one tile": (2**25, 2**29),
    "many tiles, all kept": (4 * ROWS * 5, 2**29),
    "many tiles, two kept": (4 * ROWS * 5, 2 * 4 * ROWS * 5),
    "many tiles, none kept": (4 * ROWS * 5, 0),
    "a tile for each column": (1, 0),
}
"""bytes of a tile, bytes kept"""


@pytest.fixture(params=list(TILES))
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    tile_bytes, kept_bytes = TILES[request.param]
    monkeypatch.setitem(tiling.TILE_BYTES, "cpu", tile_bytes)
    monkeypatch.setattr(tiling, "KEPT_BYTES", kept_bytes)
    monkeypatch.setattr(tiling, "MIN_COLUMNS", 1)


def inputs(rows: int = ROWS, vocab: int = VOCAB, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, weight and labels whose logits reach about 10."""
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, HIDDEN, generator=draw).requires_grad_()
    weight = (1.5 * torch.randn(vocab, HIDDEN, generator=draw)).requires_grad_()
    return hidden, weight, torch.randint(0, vocab, (rows,), generator=draw)


def plain(
    hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies by log_softmax of all logits."""
    logits = (hidden @ weight.t()).t() / temperature
    distribution = logits.t().log_softmax(-1)
    logprobs = distribution.gather(1, labels[:, None])[:, 0]
    return logprobs, -(distribution.exp() * distribution).sum(-1)


def doubled(*leaves: Tensor) -> list[Tensor]:
    return [leaf.detach().double().requires_grad_() for leaf in leaves]


def gradients(loss: Tensor, *leaves: Tensor) -> list[Tensor]:
    return [grad.double() for grad in torch.autograd.grad(loss, leaves)]


def close(mine: Tensor, theirs: Tensor, bound: float = 1e-5) -> bool:
    """To `bound`, or that much of the largest entry."""
    return bool((mine.double() - theirs).abs().max() <= bound * max(1.0, theirs.abs().max().item()))


# By hand


@pytest.mark.proof("logprobs and entropy", "hand", numbers=6)
def test_logprob_entropy_and_gradient_by_hand() -> None:
    # Logits ln 1, ln 2, ln 5: probabilities 1/8, 2/8, 5/8. Of the label 2: d logprob / d logits is
    # -1/8, -2/8, 3/8; the weight's gradient is that times the hidden state 1, hidden's is
    # 3/8 ln 5 - 2/8 ln 2.
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[0.0], [math.log(2)], [math.log(5)]], requires_grad=True)
    logprob, entropy = linear_logprobs(hidden, weight, torch.tensor([2]))
    assert logprob.item() == pytest.approx(math.log(5 / 8), abs=1e-6)
    wanted = -sum(p * math.log(p) for p in (1 / 8, 2 / 8, 5 / 8))
    assert entropy.item() == pytest.approx(wanted, abs=1e-6)
    by_hidden, by_weight = gradients(logprob.sum(), hidden, weight)
    assert by_weight[:, 0].tolist() == pytest.approx([-1 / 8, -2 / 8, 3 / 8], abs=1e-6)
    slope = 3 / 8 * math.log(5) - 2 / 8 * math.log(2)
    assert by_hidden.item() == pytest.approx(slope, abs=1e-6)


@pytest.mark.proof("logprobs and entropy", "hand", numbers=5)
def test_a_temperature_of_one_half_squares_the_odds() -> None:
    # Odds 1 : 4 : 25 of 30. d logprob / d weight = ([label] - p) / temperature.
    hidden = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[0.0], [math.log(2)], [math.log(5)]], requires_grad=True)
    logprob, entropy = linear_logprobs(hidden, weight, torch.tensor([1]), temperature=0.5)
    assert logprob.item() == pytest.approx(math.log(4 / 30), abs=1e-6)
    wanted = -sum(p * math.log(p) for p in (1 / 30, 4 / 30, 25 / 30))
    assert entropy.item() == pytest.approx(wanted, abs=1e-6)
    (by_weight,) = gradients(logprob.sum(), weight)
    wanted_grad = [-2 / 30, 2 * 26 / 30, -50 / 30]
    assert by_weight[:, 0].tolist() == pytest.approx(wanted_grad, abs=1e-6)


def test_the_gradient_of_entropy_by_hand() -> None:
    # d H / d logit = -p (ln p + H): two columns at odds 1 : 3, H = 0.562335.
    hidden = torch.ones(1, 1)
    weight = torch.tensor([[0.0], [math.log(3)]], requires_grad=True)
    _, entropy = linear_logprobs(hidden, weight, torch.tensor([0]))
    total = -(math.log(1 / 4) + 3 * math.log(3 / 4)) / 4
    assert entropy.item() == pytest.approx(total, abs=1e-6)
    (got,) = gradients(entropy.sum(), weight)
    wanted = [-1 / 4 * (math.log(1 / 4) + total), -3 / 4 * (math.log(3 / 4) + total)]
    assert got[:, 0].tolist() == pytest.approx(wanted, abs=1e-6)
    assert sum(wanted) == pytest.approx(0, abs=1e-12)


# Against float64

LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "logprobs": lambda logprobs, _, upstream: (logprobs * upstream).sum(),
    "entropies": lambda _, entropies, upstream: (entropies * upstream).sum(),
    "both": lambda logprobs, entropies, upstream: (
        (logprobs * upstream).sum() + (entropies * upstream.flip(0)).sum()
    ),
}


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.7, torch.linspace(0.5, 2, ROWS)])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.proof("logprobs and entropy", "reference")
def test_values_and_gradients_agree_with_float64(
    loss: str, temperature: float | Tensor, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fused is not compiled here; `test_passed_options.py` trains with it compiled."""
    monkeypatch.setattr(module, "_compiled", lambda function: function)
    hidden, weight, labels = inputs()
    upstream = torch.linspace(-2, 3, ROWS)
    mine = linear_logprobs(hidden, weight, labels, temperature=temperature, fused=fused)
    leaves = doubled(hidden, weight)
    theirs = plain(*leaves, labels, temperature)
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == torch.float32
        assert close(a, b)
    my_loss, their_loss = (LOSSES[loss](*pair, upstream) for pair in (mine, theirs))
    wanted = gradients(their_loss, *leaves)
    for a, b in zip(gradients(my_loss, hidden, weight), wanted, strict=True):
        assert close(a, b)


@pytest.mark.proof("logprobs and entropy", "gradient")
def test_gradients_agree_with_finite_differences() -> None:
    hidden, weight, labels = inputs()
    arrays = [t.detach().double().numpy() for t in (hidden, weight)]
    upstream = np.linspace(-2, 3, ROWS)

    def value(h: np.ndarray, w: np.ndarray) -> float:
        """Written anew in float64 and loops."""
        total = 0.0
        for row, label in enumerate(labels.tolist()):
            odds = np.exp((w @ h[row]) / 0.7)
            p = odds / odds.sum()
            total += upstream[row] * (math.log(p[label]) - 0.5 * float((p * np.log(p)).sum()))
        return total

    logprobs, entropies = linear_logprobs(hidden, weight, labels, temperature=0.7)
    loss = ((logprobs + 0.5 * entropies) * torch.from_numpy(upstream)).sum()
    found = gradients(loss, hidden, weight)
    assert loss.item() == pytest.approx(value(*arrays), abs=1e-4)
    draw = np.random.default_rng(0)
    for which, array in enumerate(arrays):
        for _ in range(20):
            place = tuple(int(draw.integers(size)) for size in array.shape)
            bumped = [[a.copy() for a in arrays] for _ in range(2)]
            bumped[0][which][place] += 1e-6
            bumped[1][which][place] -= 1e-6
            slope = (value(*bumped[0]) - value(*bumped[1])) / 2e-6
            assert found[which][place].item() == pytest.approx(slope, rel=1e-4, abs=1e-4)


@given(
    rows=st.integers(1, 9),
    vocab=st.integers(2, 40),
    columns=st.integers(1, 41),
    kept=st.integers(0, 2000),
    seed=st.integers(0, 999),
)
@pytest.mark.proof("logprobs and entropy", "invariance")
def test_neither_tiles_nor_orders_change_a_result(
    rows: int, vocab: int, columns: int, kept: int, seed: int
) -> None:
    hidden, weight, labels = inputs(rows, vocab, seed)
    wanted = linear_logprobs(hidden, weight, labels)
    wanted_grads = gradients(sum(wanted).sum(), hidden, weight)
    order, renaming = torch.randperm(rows), torch.randperm(vocab)
    place = torch.empty_like(renaming)
    place[renaming] = torch.arange(vocab)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiling.TILE_BYTES, "cpu", 4 * rows * columns)
        patch.setattr(tiling, "KEPT_BYTES", kept)
        patch.setattr(tiling, "MIN_COLUMNS", 1)
        leaves = [t.detach().clone().requires_grad_() for t in (hidden[order], weight[renaming])]
        got = linear_logprobs(*leaves, place[labels[order]])
        grads = gradients(sum(got).sum(), *leaves)
    for a, b in zip(got, wanted, strict=True):
        assert close(a, b[order])
    assert close(grads[0], wanted_grads[0][order])
    assert close(grads[1], wanted_grads[1][renaming])


@pytest.mark.usefixtures("tiles")
@pytest.mark.proof("logprobs and entropy", "edge")
def test_large_logits_do_not_overflow() -> None:
    hidden, weight, labels = inputs()
    leaves = doubled(100 * hidden, weight)
    mine, theirs = linear_logprobs(100 * hidden, weight, labels), plain(*leaves, labels)
    assert theirs[0].min() < -500
    for a, b in zip(mine, theirs, strict=True):
        assert close(a, b)


@pytest.mark.usefixtures("tiles")
def test_half_precision_rounds_the_logits_and_nothing_else() -> None:
    hidden, weight, labels = inputs()
    halves = [t.detach().bfloat16().requires_grad_() for t in (hidden, weight)]
    logprobs, entropies = linear_logprobs(*halves, labels)
    logits = (halves[0] @ halves[1].t()).detach().double().requires_grad_()
    distribution = logits.log_softmax(-1)
    chosen = distribution.gather(1, labels[:, None])[:, 0]
    assert close(logprobs, chosen)
    assert close(entropies, -(distribution.exp() * distribution).sum(-1))
    (by_logits,) = gradients(chosen.sum(), logits)
    found = gradients(logprobs.sum(), *halves)
    # The gradient of the logits is rounded before the products, and the results are after.
    assert close(found[0], by_logits @ halves[1].detach().double(), 1e-2)
    assert close(found[1], by_logits.t() @ halves[0].detach().double(), 1e-2)


# What is asked for


def test_half_precision_gradients_are_summed_over_tiles_in_fp32(monkeypatch) -> None:
    # 512 columns of logit 0, a tile each. Hidden's gradient is weight[label] - mean weight, that
    # is 0 - 511/512; a sum of 511 times -1/512 in bfloat16 would stop at -0.5.
    monkeypatch.setitem(tiling.TILE_BYTES, "cpu", 1)
    monkeypatch.setattr(tiling, "MIN_COLUMNS", 1)
    hidden = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(512, 1, dtype=torch.bfloat16)
    weight[7] = 0
    logprobs, _ = linear_logprobs(hidden, weight, torch.tensor([7]))
    (by_hidden,) = gradients(logprobs.sum(), hidden)
    assert by_hidden.item() == pytest.approx(-511 / 512, abs=0.01)


@pytest.mark.parametrize("wanted", ["hidden", "weight"])
def test_only_what_needs_a_gradient_gets_one(wanted: str) -> None:
    hidden, weight, labels = inputs()
    leaf, other = (hidden, weight) if wanted == "hidden" else (weight, hidden)
    other.requires_grad_(False)
    leaves = doubled(hidden, weight)
    theirs = gradients(plain(*leaves, labels)[0].sum(), *leaves)[wanted == "weight"]
    linear_logprobs(hidden, weight, labels)[0].sum().backward()
    assert other.grad is None
    assert leaf.grad is not None
    assert close(leaf.grad, theirs)


def test_scoring_leaves_no_graph() -> None:
    hidden, weight, labels = inputs()
    with torch.no_grad():
        scored = linear_logprobs(hidden, weight, labels)
    assert not any(values.requires_grad for values in scored)
    assert close(scored[0], plain(*doubled(hidden, weight), labels)[0])


def test_a_second_backward_computes_again_what_the_first_used_up() -> None:
    hidden, weight, labels = inputs()
    loss = linear_logprobs(hidden, weight, labels)[0].sum()
    first = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (hidden, weight))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.proof("logprobs and entropy", "edge")
def test_no_rows_give_empty_results_and_zero_gradients() -> None:
    hidden, weight, labels = inputs(rows=0)
    logprobs, entropies = linear_logprobs(hidden, weight, labels)
    assert logprobs.shape == entropies.shape == (0,)
    (logprobs.sum() + entropies.sum()).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert hidden.grad.shape == (0, HIDDEN)
    assert weight.grad.abs().sum() == 0


# Among the tokens that truncation kept


def test_among_kept_tokens_by_hand() -> None:
    # Probabilities 0.5 and 0.25 of two kept tokens: 2/3 and 1/3 among them; one alone has 1.
    logprobs = torch.tensor([[0.5, 0.25], [0.1, 0.9]]).log()
    own, entropy = among_kept(logprobs, torch.tensor([[True, True], [True, False]]))
    assert own.tolist() == pytest.approx([math.log(2 / 3), 0.0])
    assert entropy.tolist() == pytest.approx([math.log(3) - 2 / 3 * math.log(2), 0.0], abs=1e-6)


@pytest.mark.usefixtures("tiles")
def test_kept_tokens_have_the_values_and_gradients_of_float64() -> None:
    hidden, weight, labels = inputs()
    draw = np.random.default_rng(0)
    kept = torch.full((ROWS, 5), -1)
    for row, label in enumerate(labels.tolist()):
        others = draw.choice(np.delete(np.arange(VOCAB), label), row % 5, replace=False)
        kept[row, : row % 5 + 1] = torch.tensor([label, *others.tolist()])
    temperature = torch.linspace(0.5, 1.5, ROWS)
    found = among_kept(linear_logprobs(hidden, weight, kept, temperature=temperature)[0], kept >= 0)
    exact = doubled(hidden, weight)
    logits = (exact[0] @ exact[1].t()) / temperature.double()[:, None]
    is_kept = torch.zeros(ROWS, VOCAB, dtype=torch.bool)
    for row, ids in enumerate(kept.tolist()):
        is_kept[row, [each for each in ids if each >= 0]] = True
    whole = torch.where(is_kept, logits.exp(), 0.0)
    share = whole / whole.sum(1, keepdim=True)
    own = share.gather(1, labels[:, None])[:, 0].log()
    entropy = -torch.where(is_kept, share * share.clamp_min(1e-300).log(), 0.0).sum(1)
    for mine, theirs in zip(found, (own, entropy), strict=True):
        assert close(mine, theirs)
    factor = torch.linspace(-1, 2, ROWS)
    mine = gradients((found[0] * factor + found[1] * factor.flip(0)).sum(), hidden, weight)
    theirs = gradients((own * factor + entropy * factor.flip(0)).sum(), *exact)
    assert all(close(a, b) for a, b in zip(mine, theirs, strict=True))
