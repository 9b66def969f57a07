"""The soft penalty on replies that come near their token budget (DAPO, arXiv 2503.14476)."""

from __future__ import annotations

from torch import Tensor


def overlong_penalty(lengths_N: Tensor, budgets_N: Tensor, *, margin: float) -> Tensor:
    """[N] float64: 0 up to budget x (1 - margin) tokens, then falling evenly to -1 at the budget.

    Example: budget 100, margin 0.2: 80 tokens -> 0, 90 -> -0.5, 100 and more -> -1.
    """
    width_N = budgets_N.double() * margin
    excess_N = lengths_N - (budgets_N - width_N)
    return -(excess_N / width_N).clamp(0, 1)
