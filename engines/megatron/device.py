"""Megatron-core on whatever device is there: the only file that touches Megatron's globals.

Megatron-core 0.16 names CUDA literally in a few places. On a host without CUDA `prepare` replaces
exactly those, once per process; `cuda_means_cpu` covers the few calls that ask for a 'cuda' tensor
inside. Where CUDA is, both do nothing but two things that hold everywhere: Megatron gets our fused
Adam if it found neither Transformer Engine's nor apex's, and checkpoints are written without fork.
"""

# Replacing another package's internals is what this file is for.
# ruff: noqa: SLF001

from __future__ import annotations

import contextlib
import functools
import queue
import types
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from infra.cuda import has_cuda, torch_build
from infra.errors import EngineError

CPU = torch.device("cpu")


def device() -> torch.device:
    """Return where this process's parameters and activations live."""
    return torch.device("cuda", torch.cuda.current_device()) if has_cuda() else CPU


def backend() -> str:
    """The collective backend of that device."""
    return "nccl" if has_cuda() else "gloo"


def cuda_means_cpu() -> AbstractContextManager[Any]:
    """Wrap optimizer and checkpoint calls, which write `device='cuda'` literally."""
    return contextlib.nullcontext() if has_cuda() else _CudaMeansCpu()


@functools.cache
def prepare() -> None:
    """Make Megatron-core usable in this process; call before anything of it is built.

    Raises EngineError where there is a GPU that this torch cannot use.
    """
    if has_cuda() and not torch_build().sees_gpu:
        raise EngineError(
            f"this host has a GPU, but torch {torch.__version__} cannot use it: install with"
            " LOCK=locks/cuda.txt, or set CUDA_VISIBLE_DEVICES to nothing to train on the CPU"
        )
    _install_fused_adam()
    _add_norms_on_the_device()
    _write_checkpoints_in_process()
    _route_without_transformer_engine()
    if has_cuda():
        return
    torch.cuda.current_device = lambda: CPU  # pyrefly: ignore[bad-assignment]
    torch.cuda.synchronize = lambda device=None: None
    _use_cpu_random_states()
    _use_cpu_zeros_in_schedules()
    _dispatch_on_cpu()
    _gather_uneven_parts()


class _CudaMeansCpu(TorchFunctionMode):
    """Reads 'cuda' as 'cpu': device arguments, `.cuda()`, and the type names Megatron asserts."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs and _is_cuda(kwargs["device"]):
            kwargs = {**kwargs, "device": CPU}
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.", 1)
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*args, **kwargs)


def _is_cuda(place: Any) -> bool:
    return str(place).startswith("cuda") if isinstance(place, str | torch.device) else False


def _install_fused_adam() -> None:
    """Megatron's sharded optimizer state wants an apex-like Adam: the step in the param group."""
    from megatron.core import optimizer as factory
    from megatron.core.optimizer import distrib_optimizer

    from engines.megatron.train.adam import FusedAdam

    if not factory.USING_PYTORCH_OPTIMIZER:
        return
    factory.Adam = distrib_optimizer.Adam = FusedAdam
    factory.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = True
    distrib_optimizer.USING_APEX_OPTIMIZER = True


def _add_norms_on_the_device() -> None:
    """Without apex and Transformer Engine, Megatron fetches the norm of each parameter's gradient
    from the device by itself: hundreds of times a step, each of which waits for all kernels."""
    from megatron.core.optimizer import clip_grads
    from megatron.core.utils import local_multi_tensor_l2_norm

    def norm(_size: int, _overflow: Any, tensors: list[list[torch.Tensor]], *_: Any) -> Any:
        (gradients,) = tensors
        norms: Any = torch._foreach_norm(gradients)
        return torch.linalg.vector_norm(torch.stack(list(norms)).float()).reshape(1), None

    if getattr(clip_grads, "l2_norm_impl", None) is local_multi_tensor_l2_norm:
        clip_grads.l2_norm_impl = norm


def _write_checkpoints_in_process() -> None:
    """Megatron forks a writer for each file and starts a manager process that stays: neither is
    safe in a process with the threads of Ray and of collectives, nor faster for one file a rank.
    They write scratch, which goes to the store with its checksums: no need to wait for disks."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    writer: Any = filesystem_async.FileSystemWriterAsync

    def write(transforms: Any, _msc: bool, _rank: int, buckets: list[Any], results: Any) -> None:
        written: dict[int, Any] = {}
        for index, bucket in enumerate(buckets):
            outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()
            unfinished: queue.Queue[int] = queue.Queue()
            unfinished.put(index)
            writer.write_preloaded_data(
                transforms, index, bucket, outcomes, unfinished, use_fsync=False
            )
            _, written[index] = outcomes.get()
        failures = [outcome for outcome in written.values() if isinstance(outcome, Exception)]
        results.put(failures[0] if failures else written)

    writer.write_preloaded_data_multiproc = staticmethod(write)
    filesystem_async._get_write_results_queue = queue.SimpleQueue  # pyrefly: ignore[bad-assignment]


def _route_without_transformer_engine() -> None:
    """Without it Megatron's router asks for a name that nobody defined."""
    from megatron.core.transformer.moe import moe_utils

    router: Any = moe_utils
    router.te_general_gemm = getattr(moe_utils, "te_general_gemm", None)


def _dispatch_on_cpu() -> None:
    """Numbers of tokens are fetched from the device on a stream of its own."""
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    dispatcher: Any = MoEAlltoAllTokenDispatcher

    def fetched(self: Any, point: str, tokens_per_expert: Any = None) -> Any:
        if point == self.cuda_dtoh_point:
            for name in ("input_splits", "output_splits", "output_splits_tp"):
                if isinstance(found := getattr(self, name), torch.Tensor):
                    setattr(self, name, found.numpy())
        return tokens_per_expert

    dispatcher.cuda_dtoh_stream = "none"
    dispatcher._maybe_dtoh_and_synchronize = fetched


def _gather_uneven_parts() -> None:
    """Ranks that share an expert have unlike numbers of its tokens, and gloo gathers equal parts
    only: each rank's part is sent, or summed, by itself."""
    from megatron.core.tensor_parallel import mappings
    from torch import distributed as dist

    gather, scatter = mappings._gather_along_first_dim, mappings._reduce_scatter_along_first_dim

    def gather_parts(own: Any, group: Any, sizes: Any = None, *rest: Any) -> Any:
        if sizes is None or group.size() == 1:
            return gather(own, group, sizes, *rest)
        parts = [own.new_empty(size, *own.shape[1:]) for size in sizes]
        parts[group.rank()] = own.contiguous()
        for rank, part in enumerate(parts):
            dist.broadcast(part, group=group, group_src=rank)
        return torch.cat(parts)

    def scatter_parts(whole: Any, group: Any, sizes: Any = None, *rest: Any) -> Any:
        if sizes is None or group.size() == 1:
            return scatter(whole, group, sizes, *rest)
        parts = [part.clone() for part in whole.split(sizes)]
        for rank, part in enumerate(parts):
            dist.reduce(part, group=group, group_dst=rank)
        return parts[group.rank()]

    mappings._gather_along_first_dim = gather_parts  # pyrefly: ignore[bad-assignment]
    mappings._reduce_scatter_along_first_dim = scatter_parts  # pyrefly: ignore[bad-assignment]


def _use_cpu_random_states() -> None:
    """Dropout and recomputation fork the CPU generator instead of the CUDA one."""
    from megatron.core.tensor_parallel import random as mcore_random

    class CpuRngStatesTracker(mcore_random.CudaRNGStatesTracker):
        def add(self, name: str, seed: int) -> None:
            self._is_initialized = True
            if seed in self.seeds_ or name in self.states_:
                raise ValueError(f"random state {name!r} or its seed {seed} exists already")
            self.seeds_.add(seed)
            self.states_[name] = torch.Generator().manual_seed(seed).get_state()

        @contextlib.contextmanager
        def fork(
            self, name: str = mcore_random._MODEL_PARALLEL_RNG_TRACKER_NAME
        ) -> Generator[None]:
            outer = torch.get_rng_state()
            torch.set_rng_state(self.states_[name])
            try:
                yield
            finally:
                self.states_[name] = torch.get_rng_state()
                torch.set_rng_state(outer)

    mcore_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    mcore_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)  # pyrefly: ignore[bad-assignment]
    mcore_random.CudaRNGStatesTracker = CpuRngStatesTracker


def _use_cpu_zeros_in_schedules() -> None:
    """Every schedule starts with `torch.zeros([], device="cuda")` for its token count."""
    from megatron.core.pipeline_parallel import schedules

    cpu_torch = types.ModuleType("torch")
    cpu_torch.__dict__.update(torch.__dict__)
    cpu_torch.__dict__["zeros"] = lambda *size, **kw: torch.zeros(*size, **{**kw, "device": CPU})  # pyrefly: ignore[no-matching-overload]
    schedules.torch = cpu_torch  # pyrefly: ignore[bad-assignment]
