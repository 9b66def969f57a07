"""What has to be proven: every choice of the product's own unions, and every function beside them.

A new choice is a row at once, without proofs, so that `make proof` fails until it has them. A new
public function of `engines.algorithms` has to be named here: `unnamed` finds it.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import FunctionType
from typing import Any, get_args

import engines.algorithms
from engines.algorithms import contract
from engines.algorithms.advantages import Advantage
from engines.algorithms.aggregation import Aggregation
from engines.algorithms.corrections import Level, Rejection
from engines.algorithms.losses import Estimator, Loss

UNIONS: dict[str, Any] = {
    "advantage": Advantage,
    "loss": Loss,
    "reject": Rejection,
    "aggregation": Aggregation,
}
OF_UNIONS = {
    "group_advantages",
    "leave_one_out_advantages",
    "discounted_returns",
    "gae",
    "terminal_rewards",
    "distillation_advantages",
    "clip_loss",
    "gspo_loss",
    "cispo_loss",
    "dis_loss",
    "reinforce_loss",
    "divergence_loss",
    "pair_formula",
    "pair_dpo_loss",
    "pair_ipo_loss",
    "lumped_kl",
    "importance_ratio",
    "importance_weights",
    "kept",
    "off_policy_sequences",
    "corrected",
    "shares",
    "kl_estimate",
    "sequence_sums",
    "sequence_lengths",
    "bounded",
    # From a spec to the functions above, and to the user's own.
    "advantages",
    "with_settings",
    "grpo_advantages",
    "rloo_advantages",
    "opo_advantages",
    "gigpo_advantages",
    "gdpo_advantages",
    "reinforce_plus_plus_advantages",
    "reinforce_plus_plus_baseline_advantages",
    "gae_advantages",
    "opd_advantages",
    "pair_advantages",
    "best_and_worst",
    "critic_targets",
    "our_part",
    "of_rollouts",
    "over_rollouts",
    "totals",
    "lengths",
    "per_rollout",
    "deviations",
    "per_group",
    "policy_loss",
    "custom",
}
"""functions that the choices of the unions lead to"""
FUNCTIONS = {
    "unbiased_kl": "kl unbiased",
    "whitened": "whitening",
    "overlong_penalty": "overlong",
    "length_adaptive_lambda": "lambda by length",
    "value_loss": "value loss",
    "supervised_loss": "supervised loss",
    "linear_logprobs": "logprobs and entropy",
    "among_kept": "logprobs and entropy",
    "top_logprobs": "logprobs and entropy",
    "mismatch_metrics": "mismatch metrics",
    "effective_share": "mismatch metrics",
    "quantiles": "mismatch metrics",
    "weight_metrics": "mismatch metrics",
}
"""the row of each other function"""
OF_PREFERENCES = {
    "dpo_loss",
    "ipo_loss",
    "kto_loss",
    "orpo_loss",
    "simpo_loss",
    "bradley_terry",
    "plackett_luce",
    "binary",
    "regression",
    "compares",
    "loss_function",
    "is_paired",
    "has_reference",
}
"""losses of pairs, lists and verdicts, which are no part of RL: `test_preference_losses.py` and
`test_trl_preferences.py` prove them"""
NO_ESTIMATORS = {
    "composed",
    "refusals",
    "stale_doubts",
    "describe",
    "counts",
    "trains",
    # What a form submits of an algorithm that nobody wrote.
    "is_unwritten",
    "nullable",
    "without_defaults",
}
"""public functions that compute no numbers"""


def estimators() -> list[str]:
    """The rows of the proof table."""
    rows: list[str] = []
    for part, union in UNIONS.items():
        rows += [f"{part} {kind}" for kind in kinds(union) if kind != "custom"]
    rows += [f"weight {level}" for level in get_args(Level)]
    rows += [f"kl {name}" for name in get_args(Estimator)]
    return rows + list(dict.fromkeys(FUNCTIONS.values()))


def kinds(union: Any) -> list[str]:
    """The `kind` of each member of a discriminated union."""
    members = get_args(get_args(union)[0])
    return [get_args(member.model_fields["kind"].annotation)[0] for member in members]


def unnamed() -> set[str]:
    """Public functions that no row accounts for."""
    accounted_for = OF_UNIONS | set(FUNCTIONS) | OF_PREFERENCES | NO_ESTIMATORS
    return set(public_functions()) - accounted_for


def public_functions() -> Iterator[str]:
    """Names of the functions that the modules of `engines.algorithms` define; not those by which
    the contract is tried."""
    for info in pkgutil.walk_packages(engines.algorithms.__path__, "engines.algorithms."):
        module = importlib.import_module(info.name)
        if module is contract:
            continue
        for name, value in inspect.getmembers(module, lambda v: isinstance(v, FunctionType)):
            if value.__module__ == module.__name__ and not name.startswith("_"):
                yield name
