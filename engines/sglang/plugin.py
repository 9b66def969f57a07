"""Tributary's plugin for SGLang (entry point group `sglang.srt.plugins`).

SGLang calls `register` in each of its processes. Where CUDA is, nothing of its CPU part applies.
"""

from __future__ import annotations

from infra.cuda import has_cuda

_registered = False


def register() -> None:
    """Let routed batches carry their seeds, ranks meet on loopback, shared memory bear its server's
    name, what weights came in stay mapped, and folders be served in FP8; on CPU also batch
    attention, sample by seed, spend less between two products, multiply by FP8, and let no request
    feel what shares its batch."""
    global _registered
    from engines.sglang import routed_batch
    from engines.sglang.servers import server_hooks

    routed_batch.install()
    server_hooks.install_rendezvous()
    server_hooks.install_shared_names()
    server_hooks.install_mapped_weights()
    server_hooks.install_fp8_folders()
    if not has_cuda():
        from engines.sglang import last_turn
        from engines.sglang.cpu import cpu_attention, fp8_products, host_memory, latent_attention
        from engines.sglang.cpu import row_invariant as rows
        from engines.sglang.cpu import seeded_sampling as seeded

        cpu_attention.install()
        rows.install_trunk()
        last_turn.install()
        rows.install()
        seeded.install()
        latent_attention.install()
        host_memory.install()
        fp8_products.install()
    _registered = True


def is_registered() -> bool:
    """SGLang logs a plugin's exception and continues without it; our launcher checks here."""
    return _registered
