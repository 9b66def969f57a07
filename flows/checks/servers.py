"""Checks servers: models that rewards ask, devices shared with a trainer, and stages that cannot
promise the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from math import ceil
from typing import Any

from engines.algorithms.divergences import DivergenceLoss
from engines.algorithms.losses import DisLoss
from engines.algorithms.spec import Algorithm, Keep
from engines.families.common.registry import check_servable, model_shape
from engines.sglang.server_options import check_options, check_parallel
from engines.sglang.spec import FleetSpec
from engines.weights.fp8_blocks import check_fp8
from flows.checks.contexts import context_problems
from flows.checks.engines import model_config
from flows.explain import nearest
from flows.plan import PlannedStage
from flows.recipe import Recipe
from infra.cuda import has_cuda
from infra.errors import InputError
from rewards.judges.external_judge import EXTERNAL_JUDGE, ExternalJudgeSettings
from tasks.domain import RewardSpec, RewardTerm
from tasks.policy import PolicySettings
from tasks.served.served_roles import ServedRole, rewards_of
from tasks.stage import RoleResources

# The only values with which a request's bits were measured to be independent of its batch.
_MEASURED = {
    "attention_backend": ("torch_native",),
    "device": ("cpu",),
    "dtype": ("float32", "bfloat16"),
    "enable_deterministic_inference": (True,),
    "sampling_backend": ("pytorch",),
}
_NEVER_MEASURED = ("speculative_", "quantization", "kv_cache_dtype", "enable_torch_compile")
NOT_HERE = (
    "determinism: auto is `close` here: this host has a GPU, and no GPU kernel was tested to give"
    " the same bits again"
)


def served_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    for stage in plan:
        for name, role in stage.roles.items():
            yield from _of_role(recipe, stage, role, stage.resources.of_role(name))
        yield from _alike(stage, {each.name: each for each in plan})
    yield from _unknown_roles(recipe, plan)
    yield from context_problems(recipe, plan)


def _alike(stage: PlannedStage, plan: Mapping[str, PlannedStage]) -> Iterator[str]:
    """Reward models that count as several and are the same one."""
    for reward in (r for domain in stage.spec.sampled_domains for r in rewards_of(domain)):
        made = [plan[model] for model in reward.served_models.values() if model in plan]
        for one, other in combinations(made, 2):
            if (one.spec, one.inputs) == (other.spec, other.inputs):
                yield (
                    f"stage {stage.name}: {reward.title} asks {one.name} and {other.name}, which"
                    " learn the same from the same rows and seed; put both into one path, where"
                    " their seeds differ"
                )


def inexact_roles(stage: PlannedStage) -> Iterator[str]:
    """Why a stage's served rewards may not give the same bits in any batch."""
    for name, role in stage.roles.items():
        if role.reads_outputs:
            yield (
                f"stage {stage.name}: what role {name} computes of a prompt (logprobs, or a head's"
                " outputs) was not tested to be batch-invariant"
            )
    for domain, teacher in stage.spec.served_teachers.items():
        if teacher.url:
            yield f"stage {stage.name}: nobody knows how exact the teacher of {domain} is"
    for domain in stage.spec.sampled_domains:
        if domain.user is not None and domain.user.api is not None:
            yield f"stage {stage.name}: the user of {domain.name} may say something else next time"
        if any(reward.name == EXTERNAL_JUDGE for reward in rewards_of(domain)):
            yield (
                f"stage {stage.name}: an external judge of {domain.name} may say something else the"
                " next time"
            )


def judge_cautions(stage: PlannedStage) -> Iterator[str]:
    """External judges whose bound on calls is too low for the answers that a stage trains on and
    scores."""
    policy, domains = stage.spec.policy, stage.spec.sampled_domains
    if policy is None:
        return
    for domain in domains:
        a_step = policy.problems_per_step * max(policy.group_sizes)
        trained = policy.steps * a_step // len(domains)
        for reward in rewards_of(domain):
            if reward.name != EXTERNAL_JUDGE or reward.judges_some_only:
                continue
            settings = ExternalJudgeSettings.model_validate(reward.options)
            calls = (trained + _scored(policy, reward)) * settings.votes
            if calls > settings.max_calls:
                yield (
                    f"stage {stage.name}: {reward.title} of {domain.name} has {calls} verdicts to"
                    f" give, where answers differ, and its `max_calls` is {settings.max_calls}:"
                    " every one after that fails; raise it"
                )


def _scored(policy: PolicySettings, reward: RewardSpec) -> int:
    """Answers to held-out problems that it judges while the stage trains."""
    schedule = policy.evaluate
    if schedule is None or not (isinstance(reward, RewardTerm) and reward.outcome):
        return 0
    return (ceil(policy.steps / schedule.every) + 1) * schedule.problems * schedule.samples


def _of_role(
    recipe: Recipe, stage: PlannedStage, role: ServedRole, resources: RoleResources
) -> Iterator[str]:
    where = f"stage {stage.name}: role {role.name}: served."
    try:
        check_options(role.fleet.sglang, is_role=True)
        check_parallel(role.fleet.sglang, resources.tp_per_server)
    except InputError as error:
        yield f"{where}{error}"
    if role.fleet.external:
        yield (
            f"{where}fleet.external: servers that are not ours would get the weights of `model`;"
            " leave it out: servers of its own are started"
        )
    if role.fleet.quantization is not None:
        yield (
            f"{where}fleet.quantization: is for servers that a trainer gives its weights; leave it"
            " out, or write `fleet: {sglang: {quantization: fp8}}`"
        )
    stated = recipe.resources.devices
    if resources.device and stated is not None:
        kinds = [each.kind for each in (stated, *recipe.resources.other_devices) if each.kind]
        if resources.device not in kinds:
            yield (
                f"stage {stage.name}: resources: roles.{role.name}.device is {resources.device!r},"
                f" and resources name {', '.join(kinds) or 'no kind'}: write `kind` in"
                " resources.devices or other_devices, or change it"
            )


def _unknown_roles(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Resources of roles that nothing has; those of `default` may be of any stage."""
    every = dict.fromkeys(name for stage in plan for name in stage.roles)
    for name in recipe.resources.default.roles:
        if name not in every:
            yield f"resources.default.roles.{name}: {_no_role(name, list(every))}"
    for stage in plan:
        named = recipe.resources.stages.get(stage.name)
        for name in named.roles if named is not None else ():
            if name not in stage.roles:
                at = f"resources.stages.{stage.name}.roles.{name}"
                yield f"{at}: {_no_role(name, list(stage.roles))}"


def _no_role(name: str, roles: list[str]) -> str:
    known = f"roles are {', '.join(roles)}" if roles else "no reward asks a served model"
    return f"no such role; {known}{nearest(name, roles)}"


def replay_problems(stage: PlannedStage) -> Iterator[str]:
    """Yield whether what the servers chose can reach the updates: experts, and the tokens they
    kept.
    """
    policy = stage.spec.policy
    if policy is None:
        return
    if (keep := policy.algorithm.keep) is not None:
        yield from _keep_problems(f"stage {stage.name}: algorithm.keep", keep, policy.fleet)
    if policy.algorithm.routing_replay != "engine":
        return
    where = f"stage {stage.name}: algorithm.routing_replay: engine"
    if policy.fleet.external:
        yield (
            f"{where} needs servers that say which experts they chose, and those of fleet.external"
            " are not asked; set old_logprobs and routing_replay to trainer"
        )
    if policy.fleet.sglang.get("chunked_prefill_size") == -1:
        yield (
            f"{where} has SGLang note experts in a buffer of fleet.sglang.chunked_prefill_size"
            " tokens, and -1 gives it no room; leave that out"
        )


def _keep_problems(where: str, keep: Keep, fleet: FleetSpec) -> Iterator[str]:
    if fleet.external:
        yield (
            f"{where}: needs servers that say which tokens they kept, and those of fleet.external"
            " are not asked; leave it out"
        )
    if keep.min_p and fleet.sglang.get("enable_deterministic_inference"):
        yield (
            f"{where}.min_p: SGLang's deterministic mode has none on a GPU; leave it out, or"
            " fleet.sglang.enable_deterministic_inference"
        )


def serving_problems(recipe: Recipe, stage: PlannedStage) -> Iterator[str]:
    """Yield why this host cannot serve the model that a stage samples from."""
    fleet = stage.spec.fleet
    if fleet is None or fleet.external or recipe.resources.devices is not None:
        return
    try:
        check_servable(model_config(recipe.base) or {})
    except InputError as error:
        yield f"stage {stage.name}: {error}"


def fp8_problems(recipe: Recipe, stage: PlannedStage) -> Iterator[str]:
    """Yield whether servers can have the stage's model in FP8, and its algorithm bears that."""
    fleet, trainer, policy = stage.spec.fleet, stage.spec.trainer, stage.spec.policy
    if fleet is None or fleet.quantization is None:
        return
    where = f"stage {stage.name}: fleet.quantization: {fleet.quantization}:"
    try:
        if config := model_config(recipe.base):
            check_fp8(model_shape(config), stage.resources.tp_per_server)
    except InputError as error:
        yield f"{where} {error}"
    on_gpu = has_cuda() or recipe.resources.devices is not None
    if trainer is not None and trainer.precision == "fp32" and on_gpu:
        yield f"{where} on a GPU the other weights are bf16; set trainer.precision: bf16"
    if policy is not None and not _bears_rounding(policy.algorithm):
        yield (
            f"{where} servers sample from other probabilities than the trainer computes, and no"
            " correction weighs them; write `algorithm: {old_logprobs: trainer, correction:"
            " {weight: {}}}`, or choose the preset icepop or dis"
        )


def _bears_rounding(algorithm: Algorithm) -> bool:
    """Return whether it weighs tokens by the engine's probabilities, or compares none with them."""
    weighs = algorithm.compares_engines or isinstance(algorithm.loss, DisLoss | DivergenceLoss)
    return weighs or algorithm.compares_pairs


_FP8_GATE = 0.1


def fp8_cautions(stage: PlannedStage) -> Iterator[str]:
    """Yield a gate that FP8 would not pass."""
    policy = stage.spec.policy
    if policy is None or policy.fleet.quantization is None:
        return
    gate = policy.algorithm.agreement_gate
    if gate < _FP8_GATE:
        yield (
            f"stage {stage.name}: algorithm.agreement_gate: trainer and engine differ by 0.01 to"
            f" 0.3 nats per token if one of them has FP8; above {gate:g} the stage stops; set it"
            " to 0.3"
        )


def sharing_problems(stage: PlannedStage) -> Iterator[str]:
    """Yield the problems of a stage that both trains and generates; `share` says nothing to
    others."""
    resources, policy = stage.resources, stage.spec.policy
    if not resources.share or policy is None:
        return
    where = f"stage {stage.name}: `share: true` in its resources"
    if stage.spec.samples_beside_training:
        yield (
            f"{where} has trainer and servers take turns, and with max_staleness above 0 they work"
            " at the same time: set `max_staleness: 0` or `partial_rollout_tokens`, or"
            " `share: false`"
        )
    if policy.fleet.external:
        yield (
            f"{where} puts servers to sleep, and fleet.external names servers that are not ours:"
            " leave it out, or set `share: false`"
        )
    if policy.fleet.sglang.get("enable_memory_saver") is False:
        yield (
            f"{where} needs fleet.sglang.enable_memory_saver on GPUs: leave it out, or set"
            " `share: false`"
        )
    if resources.weights.transport == "disk_delta":
        yield (
            f"{where} has servers forget their weights, and weights.transport `disk_delta` sends"
            " what changed: set it to `auto`, as both are on one host, or set `share: false`"
        )
    ranks = resources.trainer.world_size + (stage.critic.world_size if stage.critic else 0)
    needed = resources.servers * resources.tp_per_server
    if needed > ranks:
        yield (
            f"{where} puts its servers on the devices of its ranks, which are {ranks}; servers x"
            f" tp_per_server may be at most that and is {needed}: lower one of them, raise the"
            " trainer's layout, or set `share: false`"
        )


def determinism_problems(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Why the recipe cannot promise the bits that it does promise."""
    is_exact = recipe.determinism == "exact" or (recipe.determinism == "auto" and not has_cuda())
    if is_exact:
        yield from (f"{line}; set `determinism: close`" for line in inexact(recipe, plan))


def determinism_notes(recipe: Recipe) -> Iterator[str]:
    if recipe.determinism == "auto" and has_cuda():
        yield NOT_HERE


def inexact(recipe: Recipe, plan: list[PlannedStage]) -> Iterator[str]:
    """Yield a line for each reason why a stage that was killed may not end bit-identical.

    The promise is for stages that run where there is no GPU: no kernel of one was measured.
    """
    if has_cuda():
        yield (
            "this host has a GPU, and no GPU kernel was tested (an empty CUDA_VISIBLE_DEVICES"
            " keeps everything on the CPU)"
        )
    for stage in plan:
        if stage.spec.fleet is None:
            continue
        if stage.spec.samples_beside_training:
            yield (
                f"stage {stage.name}: with max_staleness above 0 the clock decides which rollouts a"
                " step takes"
            )
        if stage.spec.fleet.quantization is not None:
            yield f"stage {stage.name}: fleet.quantization was not tested to be batch-invariant"
        for fleet in (stage.spec.fleet, *(role.fleet for role in stage.roles.values())):
            for name in _unproven(fleet.sglang):
                yield (
                    f"stage {stage.name}: fleet.sglang.{name} was not tested to be batch-invariant"
                )
        yield from inexact_roles(stage)


def _unproven(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        is_other = name in _MEASURED and value not in _MEASURED[name]
        is_lossy = name.startswith(_NEVER_MEASURED) and value not in (None, False, "auto")
        if is_other or is_lossy:
            yield name
