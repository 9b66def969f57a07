"""Settings that are written and never read, because of what else the recipe says.

| setting | is read only |
|---|---|
| `demonstrations` of `sft` | without `data`, and without a `distill` before it |
| `critic` of `rl` and `offline` | with an advantage that has a critic |
| `most` of `screen` | if `keep` has a pool that more answers tell apart |
| `oversample`, `refill_rounds` of `rl` | if groups may be dropped |
| `overlong.budget`, `budget` of the reward `length` | if a rollout may be as long |
| `thought_tokens` of `evaluate.sampling` | if a rollout may be as long |
| `timeout_s` of a reward, a driver or a group filter | if it is the user's own, or asks a model |
| `timeout_s` of a domain | if the curriculum, with its environment, is the user's own |
| `fleet.max_total_tokens`, most of `fleet.sglang` | by servers of our own |
| options of GPUs in `fleet.sglang` | by a server on a GPU |
| `curriculum_options` beside a stage | if it draws problems, or a later one does |
| `shares.sft`, `shares.distill` of `files` | if a stage draws of that split |
| `decontaminate` of `files` | if rows are held out |
| `evaluate.samples_elsewhere` | with several domains |
| `lm_eval.*` | if `lm_eval.tasks` names some |
| `storage.credentials` | by a store elsewhere |
| `resources.other_devices` | beside `resources.devices` |
| what `resources.default` and `.stages` say | by a stage with such a part |
| `data` of the recipe | by `hooks` |

What contradicts itself is refused by the stage's own settings (`data` with `demonstrations`,
`critic`, `most`). The rest are cautions: several stages or recipes may share a block of settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import BaseModel

from curricula.built_in_curricula import BUILT_IN as CURRICULA
from curricula.prompt_files.spec import PromptFiles
from engines.rollout.protocols import DRIVERS, FILTERS
from engines.sglang.arguments import idle_at_external, idle_on_cpu
from engines.types import Split
from flows.path import PathStage
from flows.plan import PlannedStage
from flows.post_train import plan_post_train
from flows.recipe import Recipe
from infra.cuda import has_cuda
from rewards.built_in_rewards import QUICK
from tasks.domain import CurriculumSpec, Domain, ScoredDomain
from tasks.rl.spec import RlSettings
from tasks.sft.spec import SftSettings, SftSpec
from tasks.stage import StageSpec


def idle_settings(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Yield a sentence for each setting that nothing reads, as `field: why; what to do`."""
    for stage in plan:
        yield from _of_stage(recipe, stage)
    for key, expert in recipe.experts.items():
        if expert.domain is not None:
            yield from _of_domain(f"experts.{key}.domain", expert.domain)
            yield from _of_files(f"experts.{key}.domain.curriculum", expert.domain.curriculum, plan)
        yield from _of_path(f"experts.{key}.path", expert.path, plan)
        if recipe.unified is None and not expert.teaches:
            yield f"experts.{key}.teaches: is not used, as no model is unified; leave it out"
    if recipe.unified is not None:
        yield from _of_path("unified.path", recipe.unified.path, plan)
    yield from _of_recipe(recipe)
    yield from _of_resources(recipe, [*plan, *plan_post_train(recipe)])


def _is_written(settings: BaseModel, field: str) -> bool:
    """Return whether it differs from its default: a form and a recipe on record write that, too."""
    named = type(settings).model_fields[field]
    return getattr(settings, field) != named.get_default(call_default_factory=True)


def _of_stage(recipe: Recipe, stage: PlannedStage) -> Iterator[str]:
    fleet, settings = stage.spec.fleet, getattr(stage.spec, "settings", None)
    if isinstance(settings, RlSettings):
        # 1 is what it is then.
        is_more = settings.oversample != 1 and _is_written(settings, "oversample")
        if is_more and settings.started_beyond == 1:
            yield (
                f"{stage.where}.oversample: is not used, as every group is kept: the advantage"
                f" {settings.algorithm.advantage.kind} and the filter"
                f" {settings.group_filter.name} drop none; leave it out"
            )
        if settings.refill_rounds > 1 and not settings.drops_groups:
            yield (
                f"{stage.where}.refill_rounds: is hardly used, as no group is dropped for its"
                f" rewards: the advantage {settings.algorithm.advantage.kind} and the filter"
                f" {settings.group_filter.name} keep all; only one whose rollouts all failed is"
                " replaced; leave it out"
            )
        chosen = settings.group_filter
        if chosen.name in FILTERS and _is_written(chosen, "timeout_s"):
            yield f"{stage.where}.group_filter.{_no_limit(chosen.name)}"
    yield from _of_overlong(stage)
    if fleet is not None and fleet.external:
        named = ["max_total_tokens"] if fleet.max_total_tokens is not None else []
        for name in (*named, *(f"sglang.{name}" for name in idle_at_external(fleet.sglang))):
            yield (
                f"{stage.where}.fleet.{name}: is not used: fleet.external names servers that were"
                " started with options of their own; leave it out"
            )
    elif fleet is not None and not has_cuda() and recipe.resources.devices is None:
        for name in idle_on_cpu(fleet.sglang):
            yield (
                f"{stage.where}.fleet.sglang.{name}: has no effect on this machine: it is for"
                " GPUs; leave it out, or describe other hosts' GPUs in `resources.devices`"
            )


def _of_overlong(stage: PlannedStage) -> Iterator[str]:
    overlong = None if stage.spec.policy is None else stage.spec.policy.algorithm.overlong
    longest = _longest(stage.spec.sampled_domains)
    if overlong is None or overlong.budget is None or not longest:
        return
    if overlong.budget * (1 - overlong.margin) >= longest:
        yield (
            f"{stage.where}.algorithm.overlong.budget: {overlong.budget} has no effect, as its"
            f" penalty begins beyond the {longest} tokens that a rollout has at most"
            " (`max_new_tokens`); leave it out, or lower it"
        )


def _longest(domains: Iterable[Domain | ScoredDomain]) -> int:
    """Return how many tokens a rollout may have; 0 without a domain."""
    return max((domain.max_new_tokens for domain in domains), default=0)


def _no_limit(name: str) -> str:
    return f"timeout_s: is not used: {name} is built in, and has no time limit; leave it out"


def _of_domain(where: str, domain: Domain) -> Iterator[str]:
    if domain.driver.name in DRIVERS and _is_written(domain.driver, "timeout_s"):
        yield f"{where}.driver.{_no_limit(domain.driver.name)}"
    for index, term in enumerate(domain.rewards):
        if term.name in QUICK and _is_written(term, "timeout_s"):
            yield f"{where}.rewards.{index}.{_no_limit(term.name)}"
        budget, margin = (term.options.get(name) for name in ("budget", "margin"))
        are_known = isinstance(budget, int) and isinstance(margin, int)
        if term.name == "length" and are_known and budget - margin >= domain.max_new_tokens:
            yield (
                f"{where}.rewards.{index}.options.budget: {budget} has no effect, as its penalty"
                f" begins beyond the {domain.max_new_tokens} tokens that a rollout has at most"
                " (`max_new_tokens`); lower it"
            )
    if domain.curriculum.name in CURRICULA and _is_written(domain, "timeout_s"):
        yield (
            f"{where}.timeout_s: is not used: it is for an environment of your own, and that of"
            f" the curriculum {domain.curriculum.name} is built in; leave it out"
        )


_DRAWS: dict[str, Split] = {"sft": "sft", "distill": "distill"}
"""splits that the options of `files` give a share, by the share's name"""


def _of_files(
    where: str, curriculum: CurriculumSpec, plan: Sequence[PlannedStage]
) -> Iterator[str]:
    if curriculum.name != "files":
        return
    files = PromptFiles.model_validate(curriculum.options)
    drawn = {split for stage in plan for split in stage.spec.drawn}
    by_shares = any(source.split == "auto" for source in files.sources)
    for name, split in _DRAWS.items():
        if share := getattr(files.shares, name):
            if split not in drawn:
                yield (
                    f"{where}.options.shares.{name}: no stage draws problems of it, so {share:.0%}"
                    " of the rows are used by nothing; leave it out"
                )
            elif not by_shares:
                yield f"{where}.options.shares.{name}: no source has `split: auto`; leave it out"
    holds_out = (by_shares and files.shares.heldout) or any(
        source.split == "heldout" for source in files.sources
    )
    if files.decontaminate and not holds_out:
        yield (
            f"{where}.options.decontaminate: is not used, as no row is held out; write"
            " `shares: {heldout: 0.1}`, or leave it out"
        )


def _of_path(where: str, path: Sequence[PathStage], plan: Sequence[PlannedStage]) -> Iterator[str]:
    planned = {stage.where: stage for stage in plan}
    known = {SftSettings.model_fields["demonstrations"].default}
    for index, entry in enumerate(path):
        stage = planned.get(f"{where}.{index}.{entry.kind}")
        if isinstance(entry.settings, SftSettings) and stage is not None:
            written = entry.settings.demonstrations
            assert isinstance(stage.spec, SftSpec)
            # A stage that is written again as one before it may have what only that one reads.
            if stage.spec.curriculum is None and written not in known:
                yield (
                    f"{stage.where}.demonstrations: is not used, as the stage learns from the"
                    " dataset of the `distill` before it; leave it out"
                )
            known.add(written)
        if entry.curriculum_options and not _draws(where, path, index, planned):
            yield (
                f"{where}.{index}.curriculum_options: no stage draws problems with them; leave"
                " them out"
            )


def _draws(
    where: str, path: Sequence[PathStage], first: int, planned: dict[str, PlannedStage]
) -> bool:
    """Return whether a stage from `first` on draws problems, before the options change again."""
    for index in range(first, len(path)):
        if index > first and path[index].curriculum_options:
            return False
        stage = planned.get(f"{where}.{index}.{path[index].kind}")
        # Of a stage that is not planned, or of the user's own, it is not known.
        if stage is None or ":" in path[index].kind or stage.spec.drawn:
            return True
    return False


def _trains_and_generates(spec: StageSpec) -> bool:
    return bool(spec.trained_roles) and spec.fleet is not None


_NEEDS: Mapping[str, tuple[str, Callable[[StageSpec], bool]]] = {
    "trainer": ("trains", lambda spec: bool(spec.trained_roles)),
    "critic": ("trains a critic", lambda spec: len(spec.trained_roles) > 1),
    "servers": ("generates", lambda spec: spec.fleet is not None),
    "tp_per_server": ("generates", lambda spec: spec.fleet is not None),
    "share": ("both trains and generates", _trains_and_generates),
    "rollout_workers": (
        "generates answers to problems",
        lambda spec: spec.fleet is not None and bool(spec.sampled_domains),
    ),
    "weights": ("both trains and generates", _trains_and_generates),
    "checkpoints": ("trains", lambda spec: bool(spec.trained_roles)),
}
"""what a stage does that uses a field of its resources"""


def _of_resources(recipe: Recipe, plan: Sequence[PlannedStage]) -> Iterator[str]:
    """Blocks may be shared by stages: one that uses a value is enough."""
    pool = recipe.resources
    blocks = {"default": pool.default} | {f"stages.{name}": b for name, b in pool.stages.items()}
    for where, block in blocks.items():
        holds_for = [stage for stage in plan if stage.resources == block]
        # Of a stage that another flow would plan, and of the user's own kinds, it is not known.
        if not holds_for or any(":" in stage.kind for stage in holds_for):
            continue
        for field, (does, uses) in _NEEDS.items():
            if _is_written(block, field) and not any(uses(stage.spec) for stage in holds_for):
                yield (
                    f"resources.{where}.{field}: is not used, as no stage with these resources"
                    f" {does}; leave it out"
                )


def _of_recipe(recipe: Recipe) -> Iterator[str]:
    longest = _longest(recipe.domains)
    scored = recipe.evaluate
    for number, way in enumerate(scored.sampling if scored else ()):
        if way.thought_tokens is not None and 0 < longest <= way.thought_tokens:
            yield (
                f"evaluate.sampling.{number}.thought_tokens: {way.thought_tokens} ends no thought,"
                f" as a rollout has at most {longest} tokens (`max_new_tokens`); lower it"
            )
    if scored and len(recipe.domains) < 2 and _is_written(scored, "samples_elsewhere"):
        yield "evaluate.samples_elsewhere: is not used, as there is one domain only; leave it out"
    for field in type(recipe.lm_eval).model_fields:
        if not recipe.lm_eval.tasks and _is_written(recipe.lm_eval, field):
            yield f"lm_eval.{field}: is not used, as `lm_eval.tasks` names none; write some"
    is_here = recipe.storage.root.startswith(("file:", "/", "local:"))
    if recipe.storage.credentials and is_here:
        yield (
            f"storage.credentials: is not used by the folder {recipe.storage.root}; leave it out"
        )
    if recipe.resources.other_devices and recipe.resources.devices is None:
        yield "resources.other_devices: is not used without resources.devices; write both"
    if recipe.data and not recipe.hooks:
        yield "data: hooks alone read it, and `hooks` names none; write them, or leave it out"
