"""Hooks into SGLang for every server, with or without CUDA, and what it answers beside SGLang's own
requests: for weights that arrive while it generates, as deltas or by broadcast, and for the choice
of their transport.

Its sockets and shared memory bear names that identify the server: SGLang names them at random and
removes none of them, so a server that ended would leave files that nobody can tell from a living
one's.

Its ranks meet on loopback: they are all on one host, and the rendezvous knows no key.

Memory that a publish was read from stays mapped: to map it anew takes as long as to copy it, and a
trainer sends from the same memory each time. Memory of a GPU has been copied when a rank is done
with it.

A server in FP8 quantises what it reads from a folder, by the code that quantises what a trainer
publishes.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.rendezvous import tcp_store
from infra.access import LOOPBACK
from infra.processes.leftovers import claim_private_folder, trace_name

_NAMES_OF_SHARED_MEMORY = (
    "sglang.srt.distributed.device_communicators.shm_broadcast.make_shm_name",
    "sglang.srt.distributed.parallel_state.make_shm_name",
)
_UPDATE = (
    "sglang.srt.model_executor.model_runner_components.weight_updater"
    ".WeightUpdater._update_weights_from_flattened_bucket"
)
_MAPPED_BUCKETS = 2
"""buckets that a transport sends in turn"""
_mapped: deque[Any] = deque(maxlen=_MAPPED_BUCKETS)
_LOAD = "sglang.srt.model_loader.loader.DefaultModelLoader.load_weights_only"
_FP8_PRODUCTS = (8, 9)
_LLAMA_LOAD = "sglang.srt.models.llama.LlamaForCausalLM.load_weights"


def install_shared_names() -> None:
    """Have what ranks of a server with several devices share named after the server as well."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target in _NAMES_OF_SHARED_MEMORY:
        HookRegistry.register(target, _shared_memory_name, HookType.REPLACE)


def _shared_memory_name(kind: str) -> str:
    """Every process of a server keeps its temporary files in the folder that `adopt` claimed."""
    return f"{Path(tempfile.gettempdir()).name}_{kind}_{os.getpid()}_{secrets.token_hex(4)}"


def adopt() -> None:
    """Let this process, and those that it starts, leave traces under its own name only."""
    from sglang.srt.server_args import PortArgs

    claim_private_folder()
    name = trace_name(os.getpid())
    stock = PortArgs.init_new

    def init_new(*arguments: Any, **options: Any) -> PortArgs:
        ports = stock(*arguments, **options)
        ports.instance_id = name
        return ports

    PortArgs.init_new = staticmethod(init_new)


_REQUESTS = "sglang.srt.entrypoints.openai.serving_base.OpenAIServingBase.handle_request"
_UNNAMED = (None, "unknown", "default")
"""what sglang-router and SGLang write into a request that names no model"""


def install_model_names() -> None:
    """Have a server that was given a name refuse requests for another model: it has no other, and
    SGLang would answer as if it had."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_REQUESTS, _of_this_model, HookType.AROUND)


async def _of_this_model(stock: Callable[..., Any], api: Any, request: Any, raw: Any) -> Any:
    manager = api.tokenizer_manager
    own, asked = manager.served_model_name, getattr(request, "model", None)
    has_name = own != manager.server_args.model_path
    # `MODEL:ADAPTER` is SGLang's own way to name an adapter.
    is_other = asked not in (own, *_UNNAMED) and not str(asked).startswith(f"{own}:")
    if has_name and is_other:
        told = f"no model {asked!r}; there is {own}"
        return api.create_error_response(told, "model_not_found", status_code=404)
    return await stock(api, request, raw)


_RENDEZVOUS = "sglang.srt.distributed.bootstrap._resolve_dist_init_method"


def install_rendezvous() -> None:
    """Hook SGLang and this process's torch; for any host, with or without CUDA."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_RENDEZVOUS, _on_loopback, HookType.AROUND)
    # By name: the package has a function that is called as this module is.
    vars(import_module("torch.distributed.rendezvous"))["_create_c10d_store"] = _store


def _on_loopback(stock: Callable[..., str], *, dist_port: int) -> str:
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().nnodes > 1:
        return stock(dist_port=dist_port)
    return f"tcp://{LOOPBACK}:{dist_port}"


def _store(
    hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, use_libuv: bool = True
) -> Any:
    return tcp_store(hostname, port, rank, world_size, timeout)


def install_mapped_weights() -> None:
    """Hook SGLang; torch opens memory again only if nothing of this process has it open."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_UPDATE, _keeping, HookType.AROUND)


def _keeping(
    stock: Callable[..., Any], updater: Any, *, flattened_tensor_bucket_dict: dict[str, Any]
) -> Any:
    flat = flattened_tensor_bucket_dict["flattened_tensor"]
    storage = flat.untyped_storage()
    if flat.device.type == "cpu" and all(s.data_ptr() != storage.data_ptr() for s in _mapped):
        _mapped.append(storage)
    done = stock(updater, flattened_tensor_bucket_dict=flattened_tensor_bucket_dict)
    if flat.device.type == "cuda":
        import torch

        # Copies are only queued. Each rank waits for its own, then SGLang's ranks wait for each
        # other, and only then the first one answers: the bucket's memory may be used again.
        torch.cuda.current_stream().synchronize()
    return done


def install_fp8_folders() -> None:
    """Hook SGLang, for the start and for every folder after it."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_LOAD, _quantising, HookType.AROUND)
    HookRegistry.register(_LLAMA_LOAD, _loading_scales, HookType.AROUND)


def _quantising(stock: Callable[..., Any], model: Any, weights: Any, target_device: Any) -> Any:
    import torch

    from engines.weights.fp8_blocks import FROM_PLAIN_WORD, in_fp8

    described = getattr(model.config, "quantization_config", None)
    if isinstance(described, dict) and described.get(FROM_PLAIN_WORD):
        if target_device.type == "cuda" and torch.cuda.get_device_capability() < _FP8_PRODUCTS:
            raise ValueError(
                "fleet.quantization needs a GPU of compute capability 8.9 or more (Ada, Hopper):"
                " on others SGLang packs FP8 anew and takes no update of it; leave it out"
            )
        weights = in_fp8(weights, target_device, torch.get_default_dtype())
    return stock(model, weights, target_device)


def _loading_scales(stock: Callable[..., Any], model: Any, weights: Any) -> Any:
    """Llama's class takes every scale for that of a whole matrix, and drops those of blocks."""
    return stock(model, _others_than_scales(model, weights))


def _others_than_scales(model: Any, weights: Any) -> Any:
    from sglang.srt.model_loader.auto_loader import STANDARD_STACKED_MAPPING

    parameters = dict(model.named_parameters())
    for name, tensor in weights:
        if not name.endswith(".weight_scale_inv"):
            yield name, tensor
        elif name in parameters:
            parameters[name].weight_loader(parameters[name], tensor)
        else:
            STANDARD_STACKED_MAPPING.try_load(name, tensor, parameters)


def answer_for_weights(gpus: Sequence[int], num_hosts: int = 1) -> None:
    """Add them to SGLang's application, under the same key as its requests that change weights.
    They are plain functions, which the application runs in threads: it generates on meanwhile.

    `gpus`: the numbers of those that its ranks on this host have; `num_hosts`: over which its ranks
    are spread, for what arrives lies in the memory of this one.
    """
    from fastapi import Body
    from sglang.srt.entrypoints.http_server import app
    from sglang.srt.utils.auth import AuthLevel, auth_level

    from engines.weights.broadcast import arrivals
    from engines.weights.broadcast.arrivals import Arrivals
    from engines.weights.disk_delta import weight_copy
    from engines.weights.disk_delta.weight_copy import ServedCopy
    from engines.weights.reach import REACH, answer_gpus, answer_reach

    copy, arriving = ServedCopy(), Arrivals()

    def prepare(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return weight_copy.answer_prepare(copy, body)

    def confirm(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return weight_copy.answer_confirm(copy, body)

    def forget(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return weight_copy.answer_forget(copy)

    def reach(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return answer_gpus(gpus) if "gpu" in body else answer_reach(body)

    def join(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return arriving.join(body)

    def receive(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return arriving.receive(body)

    def open_arrived(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return arriving.open(body)

    def leave(body: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        return arriving.leave(body)

    answers = {
        weight_copy.PREPARE: prepare,
        weight_copy.CONFIRM: confirm,
        weight_copy.FORGET: forget,
        REACH: reach,
    }
    if num_hosts == 1:
        answers |= {
            arrivals.JOIN: join,
            arrivals.RECEIVE: receive,
            arrivals.OPEN: open_arrived,
            arrivals.LEAVE: leave,
        }
    for path, answer in answers.items():
        app.post(path)(auth_level(AuthLevel.ADMIN_OPTIONAL)(answer))
