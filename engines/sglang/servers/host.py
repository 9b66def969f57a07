"""The environment SGLang needs on this host."""

from __future__ import annotations

import os

from engines.rendezvous import use_interface_of
from infra.access import is_loopback, listening_host, reachable
from infra.cuda import has_cuda, nccl_environment
from infra.cuda_toolkit import let_hooks_find_the_runtime, use_toolkit
from infra.proxies import bypass

_ENVIRONMENT = {
    # GET /health answers at once instead of generating: a router asks every 2 s, and such a
    # request would make a weight update's flush fail. Our own probe generates.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    # SGLang imports its two hundred model files only where a model is none of ours
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "engines.sglang.models",
}
_CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # some samplers are compiled on first use, which needs a C++ compiler at run time
    "TORCHDYNAMO_DISABLE": "1",
    # two spinning thread pools on two cores slow each other down many times
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    # AMX adds up a bf16 row of 512 or more numbers in an order that depends on the other rows
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16",
}


_CORES_OF_RANKS = "SGLANG_CPU_OMP_THREADS_BIND"


def share_cores(ranks: int) -> None:
    """Give each rank of a server on a CPU its share of this process's cores: by itself SGLang gives
    out whole NUMA nodes, and refuses more ranks than there are."""
    if ranks > 1 and not has_cuda():
        cores = sorted(os.sched_getaffinity(0))
        shares = [cores[rank::ranks] or [cores[rank % len(cores)]] for rank in range(ranks)]
        os.environ.setdefault(_CORES_OF_RANKS, "|".join(",".join(map(str, s)) for s in shares))


def prepare_environment() -> None:
    """Set what SGLang reads at import; a value that a person set stays."""
    wanted = _ENVIRONMENT | (nccl_environment() if has_cuda() else _CPU_ENVIRONMENT)
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    if has_cuda():
        use_toolkit()
    bypass(reachable(listening_host()))  # SGLang asks its own server whether it is up
    if not is_loopback(address := reachable(listening_host())):
        use_interface_of(address)  # a trainer on another host broadcasts weights


def prepare_memory_saver() -> None:
    """Let a server give its device's memory back: before its processes start."""
    # Without it CUDA graphs keep their memory; SGLang keeps a copy of them on the host.
    os.environ.setdefault("SGLANG_MEMORY_SAVER_CUDA_GRAPH", "1")
    let_hooks_find_the_runtime()  # schedulers are spawned with the saver's hook preloaded
