"""Points of a model at which programs are compared, each under one name in all of them.

Transformers and SGLang name a layer's modules alike; Megatron-core has other names. Programs differ
in what they fuse: a product of queries, keys and values may be one or three, and a sum of residuals
may wait for the next norm. So a point is what goes into a module, or what comes out of one, that
every program has. Axes: T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from engines.families.common.family import ModelShape
from engines.megatron.hf.qkv import ungrouped
from infra.errors import EngineError

EMBEDDING, NORM, LOGITS = "embed_tokens", "norm", "logits"
EXPERTS = "mlp.gate"
"""[T, E] whether a token goes to an expert; all other points are numbers, [T, ...]"""
LAYER = "layer output"
QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
LATENTS = ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa")
ATTENTION, MLP_INPUT, GATED = "attention", "mlp input", "gated product"
HINTS: Mapping[str, str] = {
    ATTENTION: "from queries, keys and values on: norms of heads, rotary angles, mask, softmax",
    MLP_INPUT: "the norms and the sum of residuals between attention and feed-forward",
    EXPERTS: "which experts tokens go to: the router's weights, its scores, its bias",
    GATED: "what goes into mlp.down_proj: the gate's and the up product, the activation",
    "mlp": "all of the feed-forward, or of the experts",
    LAYER: "with the residual: the norm behind the feed-forward, or the sum",
}
Recorded: TypeAlias = "dict[tuple[int | None, str], Tensor]"
"""by layer (None: outside of all) and point"""


@dataclass(frozen=True, slots=True)
class Seen:
    """Tensors that went into a module and came out of it, when it ran last."""

    given: Sequence[Tensor]
    made: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Site:
    """Says where a program has a point, by the module's name within its layer."""

    module: str
    is_input: bool = False

    def tensors(self, seen: Mapping[str, Seen], layer: str) -> Sequence[Tensor]:
        """Empty where the program has no such module, or runs it otherwise."""
        found = seen.get(layer + self.module)
        if found is None:
            return ()
        return found.given[:1] if self.is_input else found.made


@dataclass(frozen=True, slots=True)
class Names:
    """Says what a program calls the modules of a model."""

    embedding: str
    layer: str
    norm: str
    output: str
    """what makes logits; empty: they are the model's own output"""
    fused: tuple[str, ...]
    """products of queries, keys and values, or of latents, that may be one"""
    points: Mapping[str, tuple[Site, ...]]
    """by point, the sites of which the first that is there is taken"""

    def modules(self, layers: int) -> Iterator[str]:
        """All that is to be listened to; not every model has each."""
        yield from filter(None, (self.embedding, self.norm, self.output))
        sites = [site.module for each in self.points.values() for site in each]
        for layer in range(layers):
            begin = self.layer.format(layer)
            yield begin.removesuffix(".")
            yield from dict.fromkeys(begin + name for name in (*sites, *self.fused))


AS_STORED = Names(
    embedding="model.embed_tokens",
    layer="model.layers.{}.",
    norm="model.norm",
    output="lm_head",
    fused=("self_attn.qkv_proj", "self_attn.fused_qkv_a_proj_with_mqa"),
    points={
        "input_layernorm": (Site("input_layernorm"),),
        **{name: (Site(name),) for name in (*LATENTS, "self_attn.q_b_proj", *QUERY_KEY_VALUE)},
        ATTENTION: (Site("self_attn.o_proj", is_input=True),),
        "self_attn.o_proj": (Site("self_attn.o_proj"),),
        MLP_INPUT: tuple(
            Site(f"mlp.{name}", is_input=True) for name in ("gate", "gate_up_proj", "gate_proj")
        ),
        EXPERTS: (Site("mlp.topk"), Site("mlp.gate")),
        GATED: (Site("mlp.down_proj", is_input=True),),
        "mlp": (Site("mlp"),),
    },
)
"""as a folder names its tensors, and transformers its modules"""
OF_TRAINER = Names(
    embedding="embedding",
    layer="decoder.layers.{}.",
    norm="decoder.final_layernorm",
    output="",
    fused=("self_attention.linear_qkv",),
    points={
        "input_layernorm": (Site("input_layernorm"),),
        "self_attn.q_a_proj": (Site("self_attention.linear_q_down_proj"),),
        "self_attn.kv_a_proj_with_mqa": (Site("self_attention.linear_kv_down_proj"),),
        "self_attn.q_b_proj": (Site("self_attention.linear_q_up_proj"),),
        "self_attn.q_proj": (Site("self_attention.linear_q_proj"),),
        ATTENTION: (Site("self_attention.linear_proj", is_input=True),),
        "self_attn.o_proj": (
            Site("self_attention.linear_proj.norm", is_input=True),
            Site("self_attention.linear_proj"),
        ),
        MLP_INPUT: (Site("mlp.router", is_input=True), Site("mlp.linear_fc1", is_input=True)),
        EXPERTS: (Site("mlp.router"),),
        GATED: (Site("mlp.linear_fc2", is_input=True),),
        "mlp": (Site("mlp.linear_fc2.norm", is_input=True), Site("mlp")),
    },
)
ORDER = (*AS_STORED.points, LAYER)
"""of a layer's points, as they are computed"""


def seen_of(given: Any, made: Any) -> Seen:
    """Copies: programs reuse memory."""
    return Seen(list(_tensors(given)), list(_tensors(made)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value.detach().to("cpu", copy=True)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)
    else:
        yield from _tensors(getattr(value, "next_token_logits", ()))


@contextmanager
def listening(network: torch.nn.Module, names: Names, layers: int) -> Generator[dict[str, Seen]]:
    """What the named modules of a network of this process do until the block ends."""
    seen: dict[str, Seen] = {}
    wanted = set(names.modules(layers))
    handles = [
        module.register_forward_hook(partial(_note, seen, name))
        for name, module in network.named_modules()
        if name in wanted
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _note(seen: dict[str, Seen], name: str, _module: Any, given: Any, made: Any) -> None:
    seen[name] = seen_of(given, made)


def recorded(
    seen: Mapping[str, Seen], names: Names, shape: ModelShape, logits: Tensor, tokens: int
) -> Recorded:
    """The points of a pass over so many tokens; what comes behind them is left out. `logits`: of
    the last of them. Raises EngineError where a whole layer is missing."""
    found: Recorded = {}
    for name, module in ((EMBEDDING, names.embedding), (NORM, names.norm)):
        found[None, name] = _rows(_made(seen, module)[0], tokens)
    for layer in range(shape.num_layers):
        begin = names.layer.format(layer)
        is_last = layer + 1 == shape.num_layers
        following = names.layer.format(layer + 1) + "input_layernorm"
        whole = _layer_output(seen, begin, names.norm if is_last else following)
        found[layer, LAYER] = _rows(whole, tokens)
        for fused in names.fused:
            if (product := seen.get(begin + fused)) is not None:
                parts = _parts(fused, product.made[0], shape)
                for name, part in parts:
                    found[layer, name] = _rows(part, tokens)
        for name, sites in names.points.items():
            there = next((t for site in sites if (t := site.tensors(seen, begin))), ())
            if name != EXPERTS and there:
                found[layer, name] = _rows(there[0], tokens)
                if name == GATED:  # SGLang fills it up with zeros on a CPU
                    found[layer, name] = found[layer, name][:, : shape.ffn]
            elif (chosen := _chosen(there, shape)) is not None:
                found[layer, name] = chosen[:tokens]
    found[None, LOGITS] = logits.float().reshape(1, -1)[:, : shape.vocab]
    return found


def _made(seen: Mapping[str, Seen], module: str) -> Sequence[Tensor]:
    if module not in seen:
        raise EngineError(
            f"{module} gave nothing to compare: this version of the program does not have it, or"
            " runs it otherwise; engines/align/points.py says what modules are called"
        )
    return seen[module].made


def _layer_output(seen: Mapping[str, Seen], layer: str, following: str) -> Tensor:
    """With its residual, which SGLang adds in the norm that follows, if there is one."""
    norm = seen.get(following)
    if norm is None:
        return _made(seen, layer.removesuffix("."))[0]
    return norm.made[1] if len(norm.made) > 1 else norm.given[0]


def _rows(tensor: Tensor, tokens: int) -> Tensor:
    """[T, ...] of [T, 1, ...] or [1, T, ...], where more tokens may follow."""
    together = tensor.float().flatten(0, 1) if 1 in tensor.shape[:2] else tensor.float()
    return together.flatten(1)[:tokens]


def _parts(fused: str, product: Tensor, shape: ModelShape) -> Iterable[tuple[str, Tensor]]:
    """Yield the parts of a fused product: one behind the other, and in Megatron-core group by
    group."""
    if shape.latent is not None:
        sizes = [shape.latent.query_rank or 0, shape.latent.rank + shape.latent.rotated]
        return zip(LATENTS, product.split(sizes, -1), strict=True)
    if fused in OF_TRAINER.fused:
        by_group = product.flatten(0, 1).T.unflatten(0, (shape.kv_groups, -1))
        parts = [part.flatten(0, 1).T for part in ungrouped(by_group, shape)]
    else:
        parts = product.split([shape.axes[part] for part in (shape.query_axis, "keys", "keys")], -1)
    return zip(QUERY_KEY_VALUE, parts, strict=True)


def _chosen(made: Sequence[Tensor], shape: ModelShape) -> Tensor | None:
    """[T, E], from such a map or from the numbers of each token's experts; None if there is
    neither."""
    told = next((tensor for tensor in made if not tensor.is_floating_point()), None)
    if told is None or told.dtype is torch.bool or shape.mixture is None:
        return told
    count = shape.mixture.num_experts
    numbers = told.long().flatten(0, -2)
    # An expert for all tokens may be counted behind the others.
    numbers = torch.where((numbers >= 0) & (numbers < count), numbers, count)
    chosen = torch.zeros(len(numbers), count + 1, dtype=torch.bool)
    return chosen.scatter_(1, numbers, value=True)[:, :count]


def hook_of(module: str, folder: Path) -> dict[str, Any]:
    """One of the server's `forward_hooks`: record a module's last run in a file of its name."""
    return {
        "name": module,
        "target_modules": [module],
        "hook_factory": f"{__name__}:{record_to.__name__}",
        "config": {"file": str(folder / f"{module}.pt")},
    }


def record_to(config: dict[str, str]) -> Callable[[Any, Any, Any], None]:
    def record(_module: Any, given: Any, made: Any) -> None:
        seen = seen_of(given, made)
        torch.save((list(seen.given), list(seen.made)), config["file"])

    return record


def read_hooks(folder: Path) -> dict[str, Seen]:
    """By module; those that the server does not have, or runs otherwise, are missing."""
    return {file.stem: Seen(*torch.load(file)) for file in folder.glob("*.pt")}
