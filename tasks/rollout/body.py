"""`rollout`: sample and judge groups with one model, and keep all of them. Nothing is trained."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import replace

from engines.draws import draw_problems
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.metrics import first_samples, judged, mean, outcome
from engines.rollout.records.gallery import Gallery
from engines.rollout.records.packing import save_groups
from engines.rollout.roller import RollsGroups
from engines.rollout.sample_only import KeptRollouts, sample_rollouts
from engines.types import Group
from tasks.domain_verdicts import Verdicts
from tasks.resources import unless_stopped
from tasks.rollout.spec import RolloutSpec
from tasks.sampling import open_model_sampling
from tasks.stage import Reporter, StageContext

_SHOWN = 32
"""groups of a domain of which rollouts are kept to browse"""


async def run(spec: RolloutSpec, context: StageContext) -> dict[str, float]:
    """Fill `context.out` with `groups/` and `rollouts.parquet`. Raises EngineError, Stopped."""
    async with AsyncExitStack() as stack:
        parts = await open_model_sampling(
            stack, context, spec.settings.fleet, spec.domains, spec.seed
        )
        began = time.monotonic()
        of_domain: list[list[Group]] = []
        for position, domain in enumerate(parts.domains):
            sampling = _sample(spec, parts.roller, domain, parts.kept)
            of_domain.append(await unless_stopped(context, sampling))
            context.reporter.progress(position + 1, len(parts.domains), f"sampled {domain.name}")
        worked = time.monotonic() - began
    groups = _in_turns(of_domain)
    _conclude(groups, context.reporter)
    save_groups(context.out, groups)
    gallery = Gallery(parts.chat)
    for domain, made in zip(parts.domains, of_domain, strict=True):
        gallery.add_step(domain.name, made, _SHOWN)
    gallery.write(context.out)
    return {**_summary(groups), "work_seconds": worked}


async def _sample(
    spec: RolloutSpec, roller: RollsGroups, domain: LiveDomain, kept: KeptRollouts
) -> list[Group]:
    settings = spec.settings
    problems = draw_problems(domain.curriculum, "rl", settings.problems, spec.seed, spec.start)
    rolled = await sample_rollouts(
        roller,
        domain,
        problems,
        samples=settings.group_size,
        temperature=settings.temperature,
        kept=kept,
        label=domain.name,
    )
    await kept.journal.flush()
    return [
        Group(problem, [sample for rollout in rollouts for sample in rollout.samples])
        for problem, rollouts in zip(problems, rolled, strict=True)
    ]


def _conclude(groups: list[Group], reporter: Reporter) -> None:
    """Keep what a person must know of them: failed rollouts are kept like the others."""
    verdicts = Verdicts()
    verdicts.observe(groups)
    for warning in verdicts.warnings(["spread"]):
        reporter.keep_warning(warning)


def _in_turns(of_domain: list[list[Group]]) -> list[Group]:
    """One group of each domain in turn, with tickets in this order."""
    groups = [group for turn in zip(*of_domain, strict=True) for group in turn]
    return [replace(group, ticket=ticket) for ticket, group in enumerate(groups)]


def _summary(groups: list[Group]) -> dict[str, float]:
    rollouts = first_samples(groups)
    verdicts = judged(rollouts)
    scores: dict[str, float] = {}
    if verdicts:  # without a verdict there is no score, not one of 0
        scores["outcome_mean"] = mean(map(outcome, verdicts))
        scores["reward_mean"] = mean(s.reward for s in verdicts)
    return {
        **scores,
        "groups": float(len(groups)),
        "rollouts": float(len(rollouts)),
        "failed_share": 1 - len(verdicts) / len(rollouts),
        "zero_variance_share": mean(float(not g.has_signal) for g in groups),
        "generated_tokens": float(sum(s.num_trained_tokens for g in groups for s in g.samples)),
    }
