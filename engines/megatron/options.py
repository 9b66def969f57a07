"""Whether a layout and the options passed through to Megatron can work. No torch, no Megatron.

`tributary check` calls `check_layout` on a laptop, the trainer on every rank: a wrong name, a
layout that does not divide the model, and combinations that would silently train wrongly all end
here, before anything starts.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.families.common.family import ModelShape
from engines.families.common.registry import model_shape
from engines.families.common.tensors import linear_layers
from engines.megatron.options_table import why_refused
from engines.megatron.spec import Lora, Parallel
from infra.config import check_kind, unknown_option
from infra.errors import InputError

RESULT_NEUTRAL = frozenset(
    {
        "bias_activation_fusion",
        "bucket_size",
        "deallocate_pipeline_outputs",
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
        "optimizer_cpu_offload",
        "optimizer_offload_fraction",
        "overlap_cpu_optimizer_d2h_h2d",
        "overlap_grad_reduce",
        "pad_buckets_for_high_nccl_busbw",
        "pin_cpu_grads",
        "pin_cpu_params",
        "recompute_granularity",
        "recompute_method",
        "recompute_modules",
        "recompute_num_layers",
        "use_precision_aware_optimizer",
    }
)
"""Options that change speed and memory but not results, beyond floating-point order: they stay out
of a stage's digest."""
AUX_LOSS, BIAS_RATE = "moe_aux_loss_coeff", "moe_router_bias_update_rate"
OF_ROUTERS = frozenset({AUX_LOSS, BIAS_RATE, "moe_z_loss_coeff"})
"""Options by which tokens spread over the experts; each is off by default."""
ALLOWED = RESULT_NEUTRAL | OF_ROUTERS | {"grad_reduce_in_fp32"}
"""Options that are passed on. A test shows what each changes, and that none changes the model: its
logprobs are those of the folder's weights. All others are refused, a newer Megatron's too."""

_OF_OFFLOAD = (
    "optimizer_offload_fraction",
    "overlap_cpu_optimizer_d2h_h2d",
    "pin_cpu_grads",
    "pin_cpu_params",
    "use_precision_aware_optimizer",
)
_OFFLOAD_DEFAULTS: Mapping[str, object] = {
    "optimizer_offload_fraction": 0.0,
    "pin_cpu_grads": True,
    "pin_cpu_params": True,
}
"""what Megatron-core takes without them; of the others False"""
OFFLOAD_NEEDS_GPU = (
    "trainer.megatron.optimizer_cpu_offload needs a GPU: on a CPU the optimizer's state is in host"
    " memory already; leave it out"
)
REPLAY_NEEDS_EXPERTS = (
    "algorithm.routing_replay needs a mixture of experts, and this model is dense; leave it out"
)
_BIAS = "moe_router_enable_expert_bias"
STAGES = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
_RECOMPUTED = ("core_attn", "mlp")
"""modules that can be computed again; others need experts, or Transformer Engine"""


def check_layout(
    hf_config: Mapping[str, Any],
    parallel: Parallel,
    megatron_options: Mapping[str, Any],
    precision: str | None = None,
) -> None:
    """Raise InputError if the model (its config.json) cannot train in this layout.

    `precision` as in the trainer's settings; None: any.
    """
    shape = model_shape(hf_config)
    for name, value in megatron_options.items():
        _check_option(name, value)
    _check_recompute(megatron_options)
    _check_together(megatron_options, precision)
    _check_router_terms(shape, megatron_options)
    _check_sizes(shape, parallel, megatron_options)


def check_replay(hf_config: Mapping[str, Any], replay: str) -> None:
    """Raise InputError if no router of the model has an expert to take again."""
    if replay != "none" and model_shape(hf_config).mixture is None:
        raise InputError(REPLAY_NEEDS_EXPERTS)


_REDUCING = ("overlap_grad_reduce", "pad_buckets_for_high_nccl_busbw")


def check_effects(parallel: Parallel, megatron_options: Mapping[str, Any]) -> None:
    """Raise InputError for an option that does nothing in this layout."""
    for name in _REDUCING:
        if megatron_options.get(name) and parallel.dp * parallel.cp == 1:
            raise InputError(
                f"trainer.megatron.{name} has no effect with dp 1 and cp 1, where no ranks add"
                " gradients up; raise dp in resources, or leave it out"
            )
    if megatron_options.get("deallocate_pipeline_outputs") and parallel.pp == 1:
        raise InputError(
            "trainer.megatron.deallocate_pipeline_outputs has no effect with pp 1, where no stage"
            " hands outputs on; raise pp in resources, or leave it out"
        )
    offloads = megatron_options.get("optimizer_cpu_offload")
    if offloads and not megatron_options.get("optimizer_offload_fraction"):
        raise InputError(
            "trainer.megatron.optimizer_cpu_offload moves the share optimizer_offload_fraction of"
            " the state, which is 0 unless it is written; write e.g. 1.0"
        )


def check_lora(
    hf_config: Mapping[str, Any],
    lora: Lora | None,
    megatron_options: Mapping[str, Any],
    *,
    has_value_head: bool = False,
) -> None:
    """Raise InputError if the model (its config.json) cannot be trained with these adapters."""
    if lora is None:
        return
    shape = model_shape(hf_config)
    if has_value_head:
        raise InputError(
            "trainer.lora is for policies: the head of a critic or reward model is new, and trains"
            " with all weights; leave it out (a critic's settings are the policy's unless"
            " critic.trainer is written)"
        )
    if megatron_options.get(BIAS_RATE):
        raise InputError(
            f"trainer.megatron.{BIAS_RATE} would change routers, and with trainer.lora they stay as"
            " they are; leave it out"
        )
    table = shape.family.tensors
    kinds = (*(part for _, part in shape.kinds), table.expert if shape.mixture else {})
    allowed = dict.fromkeys(name for kind in kinds for name, _ in linear_layers(kind))
    unknown = sorted(set(lora.targets or ()) - allowed.keys())
    if unknown:
        raise InputError(
            f"trainer.lora.targets: this model has no {', '.join(unknown)} that can be adapted;"
            f" allowed are {', '.join(allowed)}"
        )
    feed_forward = {name for name, _ in linear_layers(table.expert)} if shape.mixture else set()
    if lora.targets and feed_forward.difference(lora.targets) not in (set(), feed_forward):
        raise InputError(
            f"trainer.lora.targets: write all of {', '.join(sorted(feed_forward))}, or none of"
            " them: `peft` holds a mixture's experts in one module"
        )
    if lora.rank > shape.hidden:
        raise InputError(
            f"trainer.lora.rank is {lora.rank}; write {shape.hidden} or less, the hidden size"
        )


def _check_option(name: str, value: Any) -> None:
    kinds = _table().get(name)
    where = f"trainer.megatron.{name}"
    if kinds is None:
        of_what = (
            "a field of Megatron-core's TransformerConfig, OptimizerConfig or"
            " DistributedDataParallelConfig"
        )
        raise unknown_option(where, name, _table(), of_what)
    if name not in ALLOWED:
        raise InputError(f"{where} cannot be used: {why_refused(name)}; leave it out")
    check_kind(where, value, kinds)
    is_size = name == "bucket_size" or name.startswith(("recompute_num", "num_layers"))
    if is_size and value is not None and value < 1:
        raise InputError(f"{where} is {value}; write 1 or more, or leave it out")
    if name == "optimizer_offload_fraction" and value is not None and not 0 <= value <= 1:
        raise InputError(f"{where} is {value}; write a share from 0 to 1")


def _check_recompute(options: Mapping[str, Any]) -> None:
    """Which of Megatron's fields of recomputation go together."""
    where, granularity = "trainer.megatron: recompute", options.get("recompute_granularity")
    written = {name for name, value in options.items() if value is not None}
    if granularity == "full":
        for name in ("recompute_method", "recompute_num_layers"):
            if name not in written:
                raise InputError(
                    f"{where}_granularity: full needs {name}; write recompute_method: uniform and"
                    " recompute_num_layers: 1"
                )
    of_full = {"recompute_method", "recompute_num_layers"} & written
    if granularity != "full" and of_full:
        raise InputError(
            f"trainer.megatron: {min(of_full)} has an effect with"
            " recompute_granularity: full only; write that, or leave it out"
        )
    if granularity != "selective" and "recompute_modules" in written:
        raise InputError(
            f"{where}_modules has an effect with recompute_granularity: selective only; write that,"
            " or leave it out"
        )
    modules = options.get("recompute_modules")
    if modules is not None and (not modules or any(m not in _RECOMPUTED for m in modules)):
        raise InputError(
            f"{where}_modules is {modules!r}; allowed are {' and '.join(_RECOMPUTED)}: others need"
            " experts, or Transformer Engine, which is not in our locks; recompute_granularity:"
            " full computes whole layers again"
        )


def _check_together(options: Mapping[str, Any], precision: str | None) -> None:
    """Options that have an effect only with others."""
    where = "trainer.megatron"
    if options.get("bucket_size") is not None and not options.get("overlap_grad_reduce"):
        raise InputError(
            f"{where}: bucket_size has no effect without overlap_grad_reduce: true; write both"
        )
    if options.get("grad_reduce_in_fp32") is False and precision == "fp32":
        raise InputError(
            f"{where}: grad_reduce_in_fp32: false has no effect with trainer.precision: fp32;"
            " leave it out"
        )
    if options.get("optimizer_cpu_offload") and not options.get("use_precision_aware_optimizer"):
        raise InputError(
            f"{where}: optimizer_cpu_offload needs use_precision_aware_optimizer: true;"
            " the state stays in fp32 all the same"
        )
    if options.get("optimizer_cpu_offload") and precision == "fp32":
        raise InputError(
            f"{where}: optimizer_cpu_offload needs trainer.precision: bf16; in fp32 Megatron-core"
            " cannot build it"
        )
    if not options.get("optimizer_cpu_offload"):
        for name in _OF_OFFLOAD:
            usual = _OFFLOAD_DEFAULTS.get(name, False)
            if options.get(name, usual) not in (usual, None):
                raise InputError(
                    f"{where}: {name} needs optimizer_cpu_offload: true (without it there is"
                    " nothing that is offloaded, and Transformer Engine is not in our locks)"
                )


def _check_router_terms(shape: ModelShape, options: Mapping[str, Any]) -> None:
    """Check whether there are routers that these options could teach."""
    for name in sorted(OF_ROUTERS & options.keys()):
        where, value = f"trainer.megatron.{name}", options[name]
        if value is None:
            continue
        if isinstance(value, list) or not 0 <= value < math.inf:
            raise InputError(f"{where} is {value}; write a finite number, 0 or more")
        if value and shape.mixture is None:
            raise InputError(
                f"{where} needs a mixture of experts; this model is dense: leave it out"
            )
        if value and name == BIAS_RATE and _BIAS not in shape.family.megatron:
            raise InputError(
                f"{where} needs a router with a bias, and this model's has none; write {AUX_LOSS}"
            )


def _check_sizes(shape: ModelShape, parallel: Parallel, options: Mapping[str, Any]) -> None:
    split_by_tp = {
        "attention heads": shape.heads,
        "KV groups": shape.kv_groups,
        "feed-forward size": shape.ffn,
        "vocabulary": shape.vocab,
    }
    if shape.delta is not None:
        split_by_tp["key heads of delta nets"] = shape.delta.key_heads
    for what, size in split_by_tp.items():
        if size % parallel.tp:
            raise InputError(f"tp {parallel.tp} does not divide the model's {what} ({size})")
    if shape.delta is not None and parallel.cp > 1:
        raise InputError(
            f"cp {parallel.cp}: ranks cannot share out a sequence's tokens in gated delta nets,"
            " whose state goes from token to token; write cp 1, and dp or tp"
        )
    _check_stages(shape.num_layers, parallel.pp, options)
    _check_experts(shape, parallel)


def _check_experts(shape: ModelShape, parallel: Parallel) -> None:
    """Check whether the ranks can share out the routed experts."""
    mixture, ep, etp = shape.mixture, parallel.ep, parallel.expert_tp
    if mixture is None:
        if ep > 1 or parallel.etp is not None:
            named = f"ep {ep}" if ep > 1 else f"etp {parallel.etp}"
            raise InputError(
                f"{named} needs a mixture-of-experts model; this one is dense: leave ep and etp out"
                " of the layout, and write dp"
            )
        return
    if etp not in (1, parallel.tp):
        raise InputError(f"etp is {etp} and tp {parallel.tp}; write 1, or as much as tp")
    if etp > 1 and shape.family.megatron.get("add_bias_linear"):
        raise InputError(
            f"etp {etp} would share out experts that have biases, which Megatron-core cannot; write"
            " etp 1 and share the experts out with ep, or leave tp out"
        )
    if etp != parallel.tp and ep == 1:
        raise InputError(
            f"etp 1 with tp {parallel.tp} and ep 1 would train the experts with wrong gradients in"
            " Megatron-core 0.16; leave etp out, or share the experts out with ep"
        )
    divided = {
        f"ep {ep} does not divide the model's experts": (mixture.num_experts, ep),
        f"etp {etp} does not divide the feed-forward size of an expert": (mixture.ffn, etp),
        f"tp {parallel.tp} does not divide that of the shared experts": (
            mixture.shared_ffn,
            parallel.tp,
        ),
        f"ep {ep} with etp {etp} does not divide the ranks of a pipeline stage": (
            parallel.world_size // parallel.pp,
            ep * etp,
        ),
    }
    for what, (size, by) in divided.items():
        if size % by:
            raise InputError(f"{what} ({size})")


def _check_stages(layers: int, pp: int, options: Mapping[str, Any]) -> None:
    """Check whether every pipeline stage gets a layer or more."""
    uneven = [options[name] for name in STAGES if options.get(name) is not None]
    if not uneven:
        if layers % pp:
            raise InputError(
                f"pp {pp} does not divide the model's layers ({layers}); change pp,"
                " or set num_layers_in_first_pipeline_stage in trainer.megatron"
            )
        return
    if pp == 1:
        raise InputError(
            f"trainer.megatron: {' and '.join(name for name in STAGES if options.get(name))}"
            " divides the layers of a pipeline, and pp is 1; raise pp in resources, or leave it out"
        )
    rest, stages = layers - sum(uneven), pp - len(uneven)
    if rest < stages or rest % max(stages, 1) or (rest and not stages):
        raise InputError(
            f"trainer.megatron: of {layers} layers, {rest} are left for the other {stages} of {pp}"
            " pipeline stages, which all have equally many; change"
            f" {' or '.join(name for name in STAGES if options.get(name))}"
        )


@functools.cache
def _table() -> dict[str, list[str]]:
    return json.loads(Path(__file__).with_name("options.json").read_text())
