"""`distill`: sample from experts, verify, filter, and write a dataset with provenance."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from engines.chat import Chat
from engines.draws import draw_problems
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.metrics import most_frequent_reason, way_out
from engines.rollout.records.dataset import DATA_FILE, DatasetWriter, DistilledRow
from engines.rollout.records.sifting import sift
from engines.rollout.sample_only import KeptRollouts, sample_rollouts
from engines.types import Rollout, Sample
from infra.errors import TrainingStopped
from infra.store.manifest import StageWarning
from tasks.admitted import only_admitted
from tasks.distill.spec import COUNTS_FILE, DistillSpec
from tasks.nothink import in_both_modes
from tasks.resources import unless_stopped
from tasks.sampling import Fit, SamplingParts, open_sampling
from tasks.stage import StageContext, require_inputs

_FEW = 0.02
"""share of a domain's rollouts that are kept, below which it is a warning"""


async def run(spec: DistillSpec, context: StageContext) -> dict[str, float]:
    """Sample each domain from its expert, filter, and write what is left.

    Raises EngineError, TrainingStopped, Stopped.
    """
    require_inputs(context, [d.name for d in spec.domains])
    counts: dict[str, dict[str, int]] = {}
    chats = {domain.name: Chat.load(context.inputs[domain.name]) for domain in spec.domains}
    formats = {name: chat.format_checksum for name, chat in chats.items()}
    dataset = DatasetWriter(context.out / DATA_FILE, formats)
    failures: dict[str, str] = {}
    tokens = recovered = 0
    async with AsyncExitStack() as stack:
        fleet, experts = spec.settings.fleet, [context.inputs[d.name] for d in spec.domains]
        fit = await Fit.of(fleet, spec.domains, experts)
        parts = await open_sampling(stack, context, fleet, spec.domains, experts[0], spec.seed, fit)
        share, admitted = spec.settings.nothink_share, await only_admitted(context, parts.domains)
        domains = await asyncio.to_thread(
            in_both_modes, share, "distill", spec.seed, parts.chat, admitted
        )
        began = time.monotonic()
        keeping: list[asyncio.Task[dict[str, int]]] = []
        for position, domain in enumerate(domains):
            kept = await KeptRollouts.open(parts.journal, position)
            recovered += len(kept.known)
            work = _sample(spec, context, parts, domain, kept, chats[domain.name])
            rollouts = await unless_stopped(context, work)
            failures[domain.name] = most_frequent_reason([r.samples[0] for r in rollouts])
            tokens += sum(r.num_trained_tokens for r in rollouts)
            # threads filter and write while the next expert generates
            work = _keep(spec, context, domain.name, rollouts, keeping[-1:], dataset)
            keeping.append(asyncio.create_task(work))
            context.reporter.progress(position + 1, len(domains), f"sampled {domain.name}")
        worked = time.monotonic() - began
        for domain, task in zip(domains, keeping, strict=True):
            counts[domain.name] = await task
    dataset.close()
    check_counts(context, counts, {name: why for name, why in failures.items() if why})
    (context.out / COUNTS_FILE).write_text(json.dumps(counts, indent=1))
    return {
        "rows": float(dataset.num_rows),
        **{f"{d}/{name}": float(n) for d, c in counts.items() for name, n in c.items()},
        "generated_tokens": float(tokens),
        "generate_tokens_per_s": tokens / max(worked, 1e-9),
        "rollouts_recovered": float(recovered),
        "work_seconds": worked,
    }


async def _sample(
    spec: DistillSpec,
    context: StageContext,
    parts: SamplingParts,
    domain: LiveDomain,
    kept: KeptRollouts,
    chat: Chat,
) -> list[Rollout]:
    """All rollouts of a domain from its expert, whose weights become the fleet's `kept.version`."""
    model: Path = context.inputs[domain.name]
    settings = spec.settings
    if kept.version > 0:
        await parts.fleet.load(model, kept.version)
    roller = await parts.rollers.of(model, chat)
    groups = await sample_rollouts(
        roller,
        domain,
        draw_problems(domain.curriculum, "distill", settings.problems, spec.seed, spec.start),
        samples=settings.samples,
        temperature=settings.temperature,
        kept=kept,
    )
    await kept.journal.flush()
    return [rollout for group in groups for rollout in group]


async def _keep(
    spec: DistillSpec,
    context: StageContext,
    role: str,
    rollouts: list[Rollout],
    before: Sequence[asyncio.Task[dict[str, int]]],
    dataset: DatasetWriter,
) -> dict[str, int]:
    """Filter an expert's rollouts, and write what is left once those `before` it are written. ->
    how many each filter dropped."""
    settings = spec.settings
    kept, counts = await asyncio.to_thread(
        sift,
        rollouts,
        min_tokens=settings.min_tokens,
        min_outcome=settings.min_outcome,
        near_duplicate=settings.near_duplicate,
    )
    await asyncio.gather(*before)
    rows = (_row(context, role, rollout, sample) for rollout in kept for sample in rollout.samples)
    await asyncio.to_thread(dataset.add, rows)
    return counts


def _row(context: StageContext, role: str, rollout: Rollout, sample: Sample) -> DistilledRow:
    origin = context.input_records.get(role, {})
    return DistilledRow(
        tokens=sample.tokens,
        loss_mask=sample.loss_mask.view("int8"),
        # the recipe's name of the domain: its curriculum may serve another one as well
        problem=replace(rollout.transcript.problem, domain=role),
        turns=rollout.transcript.messages,
        expert=role,
        artifact_digest=str(origin.get("digest", "")),
        sample_index=sample.sample_index,
        weight_version=sample.weight_versions.oldest,
        rewards=sample.rewards,
    )


def check_counts(
    context: StageContext, counts: dict[str, dict[str, int]], failures: dict[str, str]
) -> None:
    """Raises TrainingStopped if no domain has a row left; warns of each that has none. `failures`:
    why verdicts failed, by domain."""
    empty = {name: count for name, count in counts.items() if not count["kept"]}
    if len(empty) == len(counts):
        why = f" Verdicts failed: {'; '.join(failures.values())}." if failures else ""
        raise TrainingStopped(
            f"distill: no rollout passed the filters, so there is nothing to learn from: {counts}."
            f"{why} Train the experts longer, or lower `min_outcome`"
        )
    for name, count in counts.items():
        if count["kept"] < _FEW * count["sampled"]:
            context.reporter.keep_warning(_few_kept(name, count, failures.get(name, "")))
    for name, why in failures.items():
        if name not in empty:
            context.reporter.keep_warning(
                StageWarning(
                    what=f"verdicts on {name} failed; what has none is not in the dataset",
                    cause=why,
                    advice=way_out(why).lower(),
                )
            )


def _few_kept(name: str, count: dict[str, int], failure: str) -> StageWarning:
    """`failure`: why verdicts failed, if any did."""
    reasons = ((reason, n) for reason, n in count.items() if reason not in ("sampled", "kept"))
    dropped = ", ".join(f"{n} as {reason}" for reason, n in reasons if n)
    kept = count["kept"]
    left = {0: "no rollout", 1: "only 1 rollout"}.get(kept, f"only {kept} rollouts")
    failed = f"; verdicts failed: {failure}" if failure else ""
    advice = "train its expert longer, or lower `min_outcome`"
    return StageWarning(
        what=f"{left} of {name} {'are' if kept > 1 else 'is'} in the dataset, of"
        f" {count['sampled']} sampled",
        cause=f"the filters dropped {'the others' if kept else 'all of them'}: {dropped}{failed}",
        advice=way_out(failure).lower() if failure else advice,
        figures=dict(count),
    )
