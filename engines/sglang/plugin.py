"""Tributary's plugin for SGLang (entry point group `sglang.srt.plugins`).

SGLang calls `register` in each of its processes. Where CUDA is, nothing of its CPU part applies.
"""

from __future__ import annotations

from infra.cuda import has_cuda

_registered = False


def register() -> None:
    """Let routed batches carry their seeds, ranks meet on loopback, shared memory bear its server's
    name, and what weights came in stay mapped; on CPU also batch attention, sample by seed, spend
    less between two products, and let no request feel what shares its batch."""
    global _registered
    from engines.sglang import routed_batch
    from engines.sglang.servers import loopback_rendezvous as meeting
    from engines.sglang.servers import mapped_weights, server_files

    routed_batch.install()
    meeting.install()
    server_files.install()
    mapped_weights.install()
    if not has_cuda():
        from engines.sglang import last_turn
        from engines.sglang.cpu import attention, dense
        from engines.sglang.cpu import row_invariant as rows
        from engines.sglang.cpu import seeded_sampling as seeded

        attention.install()
        dense.install()
        last_turn.install()
        rows.install()
        seeded.install()
    _registered = True


def is_registered() -> bool:
    """SGLang logs a plugin's exception and continues without it; our launcher checks here."""
    return _registered
