"""Tributary's plugin for SGLang (entry point group `sglang.srt.plugins`).

SGLang calls `register` in each of its processes. Where CUDA is, nothing of its CPU part applies.
"""

from __future__ import annotations

from typing import Any

from infra.cuda import has_cuda

_registered = False


def register() -> None:
    """Let routed batches carry their seeds, a prompt be read once for all its samples, requests for
    another model be refused, ranks meet on loopback, shared memory bear its server's name, what
    weights came in stay mapped, and folders be served in FP8; on CPU also batch attention, sample
    by seed, spend less between two products, multiply by FP8, and let no request feel what shares
    its batch."""
    global _registered
    from engines.sglang import prefix_cache, routed_batch
    from engines.sglang.servers import server_hooks

    routed_batch.install()
    prefix_cache.install_shared_prompts()
    server_hooks.install_model_names()
    server_hooks.install_rendezvous()
    server_hooks.install_shared_names()
    server_hooks.install_mapped_weights()
    server_hooks.install_fp8_folders()
    if not has_cuda():
        from engines.sglang.cpu import cpu_attention, row_invariant, seeded_sampling

        cpu_attention.install()
        row_invariant.install_trunk()
        prefix_cache.install_last_turns()
        row_invariant.install()
        seeded_sampling.install()
        cpu_attention.install_latent()
        _pin_no_memory()
        row_invariant.install_fp8()
    _registered = True


def is_registered() -> bool:
    """SGLang logs a plugin's exception and continues without it; our launcher checks here."""
    return _registered


def _pin_no_memory() -> None:
    """Leave the host memory in which a server notes experts unpinned: it is copied to no GPU."""
    from sglang.srt.mem_cache.pool_host import common

    def not_pinned(*_given: Any, **_named: Any) -> None: ...

    common._cuda_host_register = not_pinned  # noqa: SLF001
