"""Which compositions are refused, and why. Each sentence says what to change."""

from __future__ import annotations

from collections.abc import Iterator

from engines.algorithms.advantages import (
    DistillationAdvantage,
    GaeAdvantage,
    GdpoAdvantage,
    GroupAdvantage,
    PairsAdvantage,
    ReinforcePlusPlusAdvantage,
)
from engines.algorithms.aggregation import RolloutMean
from engines.algorithms.divergences import DivergenceLoss
from engines.algorithms.losses import DisLoss, GspoLoss, Kl, PairLoss, ReinforceLoss
from engines.algorithms.preference_losses import has_reference
from engines.algorithms.spec import Algorithm


def refusals(algorithm: Algorithm, group_size: int, *, has_teachers: bool = False) -> Iterator[str]:
    """Everything wrong with the composition, as `field: reason; way out`.

    `has_teachers` says whether the stage is one of on-policy distillation.
    """
    yield from _teachers(algorithm, has_teachers)
    yield from _group(algorithm, group_size)
    yield from _advantage(algorithm)
    yield from _components(algorithm)
    yield from _pairs(algorithm)
    yield from _old_logprobs(algorithm)
    yield from _routing(algorithm)
    yield from _terms(algorithm)


def _teachers(algorithm: Algorithm, has_teachers: bool) -> Iterator[str]:
    needs, kind = algorithm.needs, algorithm.advantage.kind
    if "teachers" in needs and not has_teachers:
        yield (f"advantage: {kind} needs teachers, which `rl` does not have; use an `opd` stage")
    if "teachers" not in needs and has_teachers:
        way_out = "write `algorithm: {preset: opd}` and the fields that should differ from it"
        if kind == "custom":
            way_out = "write `needs: [teachers]` beside its path if it reads them"
        yield (
            f"advantage: {kind} does not use the teachers that an `opd` stage learns from;"
            f" {way_out}"
        )
    if isinstance(algorithm.loss, DivergenceLoss):
        yield from _divergence(algorithm)
    if "teachers" in needs and algorithm.keep is not None:
        yield "keep: a teacher's logprobs are over all tokens; leave it out"
    if "critic" in needs and has_teachers:
        yield f"advantage: {kind} needs a critic, which `opd` does not have; use an `rl` stage"


def _divergence(algorithm: Algorithm) -> Iterator[str]:
    if not isinstance(algorithm.advantage, DistillationAdvantage):
        yield (
            "loss: divergence compares the student with a teacher, and no advantage counts; write"
            " `advantage: distillation` beside it, in an `opd` stage"
        )
    elif algorithm.advantage != DistillationAdvantage(kind="distillation"):
        yield (
            "advantage: clip and whiten are of an estimate, and the loss divergence computes the KL"
            " itself; write `advantage: distillation` alone"
        )
    if algorithm.correction.weight is not None or algorithm.correction.reject:
        yield (
            "correction: divergence is the KL at the places that were sampled, whose tokens it does"
            " not weigh; leave it out"
        )


def _group(algorithm: Algorithm, group_size: int) -> Iterator[str]:
    advantage = algorithm.advantage
    if group_size > 1 or not {"spread", "components"} & algorithm.needs:
        return
    way_out = "set group_size to 2 or more"
    if advantage.kind == "custom":
        way_out += ", or write `needs: []` beside its path if yours does not"
    yield (
        f"advantage: {advantage.kind} compares the rollouts of a group, and a group of one"
        f" gives no gradient; {way_out}"
    )


def _advantage(algorithm: Algorithm) -> Iterator[str]:
    advantage = algorithm.advantage
    if isinstance(advantage, ReinforcePlusPlusAdvantage) and not advantage.whiten:
        yield (
            "advantage.whiten: reinforce++ has no baseline except the batch's mean; leave it on, or"
            " choose reinforce++-baseline"
        )
    if isinstance(advantage, GroupAdvantage) and advantage.std and advantage.whiten:
        yield (
            "advantage: std and whiten both set the scale, and the second undoes the first; keep"
            " one"
        )
    if (
        isinstance(advantage, GaeAdvantage)
        and advantage.alpha is not None
        and advantage.lam != GaeAdvantage.model_fields["lam"].default
    ):
        yield (
            "advantage.lam: with alpha, lambda is that of each answer's length, so that `lam` has"
            " no effect; leave it out, or write `advantage: {kind: gae, lam: ...}` without a preset"
            " that sets alpha"
        )
    if isinstance(advantage, DistillationAdvantage) and algorithm.overlong is not None:
        yield "overlong: distillation uses no reward, so a penalty has no effect; leave it out"


def _components(algorithm: Algorithm) -> Iterator[str]:
    """Yield what is no reward of the rubric."""
    if not isinstance(algorithm.advantage, GdpoAdvantage):
        return
    if algorithm.overlong is not None:
        yield "overlong: gdpo compares the rubric's rewards alone; use the reward `length` instead"
    if algorithm.kl.coef and algorithm.kl.place == "reward":
        yield "kl.place: gdpo compares the rubric's rewards alone; set it to loss"


def _pairs(algorithm: Algorithm) -> Iterator[str]:
    loss, names_pairs = algorithm.loss.kind, isinstance(algorithm.advantage, PairsAdvantage)
    if algorithm.compares_pairs and names_pairs:
        yield from _beside_pairs(algorithm, loss)
    elif algorithm.compares_pairs:
        yield (
            f"loss: {loss} compares the best rollout of a group with its worst; write `advantage:"
            " pairs` beside it, or start from `preset: online-dpo`"
        )
    elif names_pairs:
        yield (
            f"advantage: pairs says which rollouts of a group are compared, and the loss {loss}"
            " compares none; write `loss: dpo` or `loss: ipo` beside it"
        )


def _beside_pairs(algorithm: Algorithm, loss: str) -> Iterator[str]:
    """Yield what a loss of pairs does not read."""
    if not isinstance(algorithm.aggregation, RolloutMean):
        yield (
            f"aggregation: {loss} has one loss for both rollouts of a pair, and only `rollout_mean`"
            " makes the mean over pairs of it; write `aggregation: rollout_mean`"
        )
    if algorithm.correction.weight is not None or algorithm.correction.reject:
        yield f"correction: {loss} compares whole rollouts and weighs no token; leave it out"
    if algorithm.old_logprobs == "trainer":
        yield f"old_logprobs: {loss} has no ratio to an old policy; leave it out"
    if algorithm.kl.coef and isinstance(algorithm.loss, PairLoss) and has_reference(algorithm.loss):
        yield f"kl: {loss} keeps to the reference by itself; raise `loss.beta`, and leave `kl` out"
    elif algorithm.kl.coef and algorithm.kl.place == "reward":
        yield "kl.place: pairs are made by the domain's rewards alone; set it to loss"


def _old_logprobs(algorithm: Algorithm) -> Iterator[str]:
    compares = algorithm.compares_engines
    if isinstance(algorithm.loss, DisLoss):
        if algorithm.old_logprobs == "trainer":
            yield (
                "old_logprobs: dis takes its ratio to the engine itself, without an old policy's"
                " pass; set it to engine"
            )
        if compares:
            yield (
                "correction: dis already weighs and masks by the ratio to the engine; a second"
                " one would count it twice; leave it out"
            )
    elif compares and algorithm.old_logprobs == "engine":
        yield (
            "correction: weighs the trainer's old logprobs against the engine's, and with"
            " old_logprobs: engine they are the same; set old_logprobs to trainer"
        )
    if isinstance(algorithm.loss, ReinforceLoss) and algorithm.mini_batches > 1:
        yield (
            "loss: reinforce has no ratio, so a second mini-batch would follow an old policy's"
            " samples as if they were new; set mini_batches to 1, or choose clip"
        )


def _routing(algorithm: Algorithm) -> Iterator[str]:
    if algorithm.routing_replay == "trainer" and algorithm.old_logprobs == "engine":
        yield (
            "routing_replay: trainer takes the experts of the pass for the old logprobs, and with"
            " old_logprobs: engine there is no such pass; set old_logprobs to trainer, or"
            " routing_replay to engine"
        )


def _terms(algorithm: Algorithm) -> Iterator[str]:
    kl = algorithm.kl
    if not kl.coef:
        if kl != Kl():
            yield "kl: coef is 0, so the other fields have no effect; set coef, e.g. 0.001"
        return
    if kl.place == "reward" and kl.unbiased:
        yield (
            "kl.unbiased: changes the loss term's gradient, and a reward has no gradient; set"
            " place to"
            " loss, or leave it out"
        )
    if kl.place == "reward" and isinstance(algorithm.advantage, DistillationAdvantage):
        yield "kl.place: distillation uses no reward; set it to loss"
    if kl.place == "loss" and kl.estimator == "k1" and not kl.unbiased:
        yield (
            "kl.estimator: the gradient of k1 as a loss is zero on average; choose k2 or k3, set"
            " unbiased, or set place to reward"
        )
    if kl.place == "loss" and kl.estimator == "k2" and kl.unbiased:
        yield (
            "kl.unbiased: the gradient of k2 times the ratio is not the KL's; set estimator to k1"
            " or k3, or leave unbiased out"
        )


def stale_doubts(algorithm: Algorithm) -> Iterator[str]:
    """Why the composition would make poor use of data that older weights sampled."""
    correction, of_trainer = algorithm.correction, algorithm.old_logprobs == "trainer"
    if algorithm.compares_pairs:
        yield (
            f"loss: {algorithm.loss.kind} weighs no pair by its age, so those of older weights"
            " count like fresh ones; lower `max_staleness`"
        )
        return
    is_bare = correction.weight is None and not correction.reject
    if is_bare and (of_trainer or isinstance(algorithm.loss, ReinforceLoss)):
        why = "its ratio starts at 1 for data of any age" if of_trainer else "it has no ratio"
        ways = (
            ""
            if isinstance(algorithm.loss, GspoLoss | ReinforceLoss)
            else (", or `old_logprobs: engine`")
        )
        yield (
            f"loss: {algorithm.loss.kind} treats stale data as fresh: {why}; add"
            f" `correction: {{weight: {{}}}}` with `old_logprobs: trainer`{ways}"
        )
    if isinstance(algorithm.loss, GspoLoss) and not of_trainer:
        yield (
            f"loss: gspo clips sequences beyond {algorithm.loss.clip_high:g} of the weights that"
            " sampled them, which stale ones are nearly always; write `old_logprobs: trainer` with"
            " `correction: {weight: {level: geometric}}`"
        )


def describe(algorithm: Algorithm) -> str:
    """The whole composition in one line, as `check` prints it."""
    a = algorithm
    parts = [
        _part("advantage", a.advantage.model_dump(mode="json")),
        _part("loss", a.loss.model_dump(mode="json")),
        _correction(a),
        _part("aggregation", a.aggregation.model_dump(mode="json")),
        f"kl {a.kl.coef:g} {a.kl.estimator} in {a.kl.place}" if a.kl.coef else "no kl",
    ]
    if a.overlong is not None:
        parts.append(f"overlong margin {a.overlong.margin:g} weight {a.overlong.weight:g}")
    if a.keep is not None:
        parts.append(f"tokens within {a.keep.model_dump()}")
    if a.entropy_bonus:
        parts.append(f"entropy bonus {a.entropy_bonus:g}")
    if a.routing_replay != "none":
        parts.append(f"experts of the {a.routing_replay}")
    rest = f"old logprobs of the {a.old_logprobs}, truncated: {a.truncated}"
    return " x ".join(parts) + f"; {rest}, {a.mini_batches} mini-batches"


def _part(name: str, dumped: dict[str, object]) -> str:
    kind = dumped.pop("kind")
    knobs = ", ".join(f"{key} {value}" for key, value in dumped.items() if value is not None)
    return f"{name} {kind} ({knobs})" if knobs else f"{name} {kind}"


def _correction(algorithm: Algorithm) -> str:
    correction = algorithm.correction
    parts: list[str] = []
    if (weight := correction.weight) is not None:
        bounds = f"[{weight.low:g}, {'inf' if weight.high is None else f'{weight.high:g}'}]"
        normal = ", normalised" if weight.normalize else ""
        parts.append(f"weight by {weight.level} {bounds}{normal}")
    parts += [_part("reject", r.model_dump(mode="json")) for r in correction.reject]
    return "correction " + " + ".join(parts) if parts else "no correction"
