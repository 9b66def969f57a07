"""Every estimator written anew in float64 numpy and plain loops; shares no code with the product.

A step is a list of replies. Results are lists of numbers, one a reply and trained token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Rows = list[list[float]]
"""numbers of each reply's tokens"""


@dataclass(frozen=True, slots=True)
class Reply:
    """One sample: what the estimators may look at."""

    reward: float
    group: int
    rollout: int
    logprobs: list[float]
    token_rewards: list[float]
    values: list[float]
    """of every step; `trained` says which are the model's own tokens"""
    trained: list[bool]
    teachers: list[list[float]]
    """one list a teacher; NaN where it did not score"""
    listens: list[float]


# Advantages


def group_advantage(replies: Sequence[Reply], *, std: bool) -> Rows:
    totals = _totals(replies)
    return [
        [_normalised(reply, totals, replies, std=std)] * len(reply.logprobs) for reply in replies
    ]


def _normalised(
    reply: Reply, totals: dict[int, float], replies: Sequence[Reply], *, std: bool
) -> float:
    mates = {r.rollout: totals[r.rollout] for r in replies if r.group == reply.group}
    values = np.array(list(mates.values()))
    if len(values) < 2:
        return 0.0
    centred = totals[reply.rollout] - float(np.mean(values))
    return centred / (float(np.std(values, ddof=1)) + 1e-6) if std else centred


def leave_one_out(replies: Sequence[Reply]) -> Rows:
    totals = _totals(replies)
    rows: Rows = []
    for reply in replies:
        rollouts = {r.rollout for r in replies if r.group == reply.group} - {reply.rollout}
        others = [totals[r] for r in rollouts]
        mine = totals[reply.rollout] - sum(others) / len(others) if others else 0.0
        rows.append([mine] * len(reply.logprobs))
    return rows


def reinforce_plus_plus(replies: Sequence[Reply], *, gamma: float) -> Rows:
    rows: Rows = []
    for reply in replies:
        rewards = list(reply.token_rewards)
        rewards[-1] += reply.reward
        num = len(rewards)
        rows.append([sum(gamma ** (k - t) * rewards[k] for k in range(t, num)) for t in range(num)])
    return rows


def reinforce_plus_plus_baseline(replies: Sequence[Reply]) -> Rows:
    rows: Rows = []
    for reply in replies:
        mates = {r.rollout: r.reward for r in replies if r.group == reply.group}
        centred = reply.reward - float(np.mean(list(mates.values())))
        rows.append([centred + extra for extra in reply.token_rewards])
    return rows


def generalised(
    replies: Sequence[Reply], *, gamma: float, lam: Callable[[int], float], skip: bool
) -> Rows:
    """`lam` of the number of trained tokens; the double sum of the paper, not its recursion."""
    rows: Rows = []
    for reply in replies:
        extras = iter(reply.token_rewards)
        steps = [
            (value, next(extras) if own else 0.0, own)
            for value, own in zip(reply.values, reply.trained, strict=True)
            if own or not skip
        ]
        values = [value for value, _, _ in steps] + [0.0]
        rewards = [reward for _, reward, _ in steps]
        rewards[-1] += reply.reward
        num, decay = len(steps), gamma * lam(len(reply.logprobs))
        delta = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(num)]
        whole = [sum(decay ** (k - t) * delta[k] for k in range(t, num)) for t in range(num)]
        rows.append([a for a, (_, _, own) in zip(whole, steps, strict=True) if own])
    return rows


def distillation(replies: Sequence[Reply], *, clip: float | None) -> Rows:
    rows: Rows = []
    for reply in replies:
        row: list[float] = []
        for t, mine in enumerate(reply.logprobs):
            heard = [(w, k) for k, w in enumerate(reply.listens) if w > 0]
            gap = sum(w * (reply.teachers[k][t] - mine) for w, k in heard)
            row.append(gap if clip is None else min(max(gap, -clip), clip))
        rows.append(row)
    return rows


def whiten(rows: Rows) -> Rows:
    values = np.array([value for row in rows for value in row])
    spread = math.sqrt(float(np.var(values, ddof=1)) + 1e-8) if len(values) > 1 else 1.0
    mean = float(np.mean(values))
    return [[(value - mean) / spread for value in row] for row in rows]


def overlong(length: int, budget: int, margin: float) -> float:
    begin = budget * (1 - margin)
    if length <= begin:
        return 0.0
    return -1.0 if length >= budget else -(length - begin) / (budget - begin)


def _totals(replies: Sequence[Reply]) -> dict[int, float]:
    """Reward of each rollout, all of its tokens' own rewards with it."""
    totals = {reply.rollout: reply.reward for reply in replies}
    for reply in replies:
        totals[reply.rollout] += sum(reply.token_rewards)
    return totals


# Losses: of one sequence; `held` are the logprobs at which a constant weight is taken


def clip(new: list[float], old: list[float], a: list[float], *, low: float, high: float,
         dual: float | None, held: list[float]) -> list[float]:  # fmt: skip
    del held
    return [
        _clipped(math.exp(n - o), x, low, high, dual) for n, o, x in zip(new, old, a, strict=True)
    ]


def gspo(new: list[float], old: list[float], a: list[float], *, low: float, high: float,
         held: list[float]) -> list[float]:  # fmt: skip
    del held
    ratio = math.exp(float(np.mean(np.array(new) - np.array(old))))
    return [_clipped(ratio, x, low, high, None) for x in a]


def cispo(new: list[float], old: list[float], a: list[float], *, low: float, high: float,
          held: list[float]) -> list[float]:  # fmt: skip
    weights = [min(max(math.exp(h - o), 1 - low), 1 + high) for h, o in zip(held, old, strict=True)]
    return [-w * x * n for w, x, n in zip(weights, a, new, strict=True)]


def dis(new: list[float], old: list[float], a: list[float], *, low: float, high: float,
        held: list[float]) -> list[float]:  # fmt: skip
    ratios = [math.exp(h - o) for h, o in zip(held, old, strict=True)]
    weights = [r if 1 - low < r < 1 + high else 0.0 for r in ratios]
    return [-w * x * n for w, x, n in zip(weights, a, new, strict=True)]


def reinforce(
    new: list[float], old: list[float], a: list[float], *, held: list[float]
) -> list[float]:
    del old, held
    return [-x * n for x, n in zip(a, new, strict=True)]


def _clipped(ratio: float, a: float, low: float, high: float, dual: float | None) -> float:
    bounded = 1 - low if ratio < 1 - low else 1 + high if ratio > 1 + high else ratio
    gain = min(ratio * a, bounded * a)
    if dual is not None and a < 0:
        gain = max(gain, dual * a)
    return -gain


def kl(new: float, reference: float, estimator: str) -> float:
    """By the ratio r = reference / policy: -log r, (log r)^2 / 2, r - 1 - log r."""
    log_r = reference - new
    named = {"k1": -log_r, "k2": 0.5 * log_r**2, "k3": math.exp(log_r) - 1 - log_r}
    return named[estimator]


def unbiased_kl(new: float, old: float, reference: float, estimator: str) -> float:
    return math.exp(new) / math.exp(old) * kl(new, reference, estimator)


def value(new: float, old: float, target: float, bound: float | None) -> float:
    if bound is None:
        return 0.5 * (new - target) ** 2
    near = min(max(new, old - bound), old + bound)
    return max(0.5 * (new - target) ** 2, 0.5 * (near - target) ** 2)


# Corrections, by sequences of log ratios


def ratios(logs: Rows, level: str) -> Rows:
    def of(row: list[float]) -> list[float]:
        if level == "token":
            return [math.exp(x) for x in row]
        product = math.exp(sum(row))
        return [product if level == "sequence" else product ** (1 / len(row))] * len(row)

    return [of(row) for row in logs]


def weights(logs: Rows, level: str, low: float, high: float | None, *, normalize: bool) -> Rows:
    top = math.inf if high is None else high
    made = [[min(max(r, low), top) for r in row] for row in ratios(logs, level)]
    if not normalize:
        return made
    counted = [w for row in made for w in (row if level == "token" else row[:1])]
    mean = sum(counted) / len(counted)
    return [[w / mean for w in row] for row in made]


def in_band(logs: Rows, level: str, low: float, high: float) -> list[list[bool]]:
    return [[low <= r <= high for r in row] for row in ratios(logs, level)]


def not_vetoed(logs: Rows, floor: float) -> list[list[bool]]:
    return [[min(map(math.exp, row)) >= floor] * len(row) for row in logs]


def drifted(new: Rows, engine: Rows, a: Rows, delta: float) -> list[list[bool]]:
    found: list[list[bool]] = []
    for n, e, x in zip(new, engine, a, strict=True):
        left = sum(e) / len(e) - sum(n) / len(n) > delta
        found.append([left and one < 0 for one in x])
    return found


# Aggregation


def mean(kind: str, losses: Rows, rollouts: list[int], lengths: list[float]) -> float:
    if kind == "token_mean":
        return float(np.mean([x for row in losses for x in row]))
    if kind == "sequence_mean":
        of_rollout: dict[int, list[float]] = {}
        for row, rollout in zip(losses, rollouts, strict=True):
            of_rollout.setdefault(rollout, []).append(float(np.mean(row)))
        return float(np.mean([np.mean(means) for means in of_rollout.values()]))
    by_rollout: dict[int, list[float]] = {}
    for row, rollout, length in zip(losses, rollouts, lengths, strict=True):
        scaled = row if kind == "rollout_mean" else [sum(row) / length]
        by_rollout.setdefault(rollout, []).extend(scaled)
    take = np.mean if kind == "rollout_mean" else np.sum
    return float(np.mean([take(row) for row in by_rollout.values()]))
