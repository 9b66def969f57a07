"""What a conversation's last turn leaves in a server's cache: its prompt, not its answer.

A finished request's keys and values go into SGLang's prefix tree, for a request that begins with
them. None does after a last turn, and putting them there and evicting them later costs a small
model as much as several tokens. A request says so in its sampling parameters.
"""

from __future__ import annotations

from typing import Any

FIELD = "tributary_last_turn"


def mark(sampling: dict[str, Any]) -> None:
    """Say of these sampling parameters that nothing will follow the answer."""
    sampling["custom_params"] = {FIELD: True}


def install() -> None:
    """Let SGLang's scheduler free such a request's cache entries when it ends; CPU only so far."""
    from sglang.srt.managers.scheduler_components import batch_result_processor

    stock = batch_result_processor.release_kv_cache

    def release(req: Any, tree_cache: Any, *, checkpoint: bool) -> None:
        is_last = FIELD in (req.sampling_params.custom_params or {})
        stock(req, tree_cache, checkpoint=checkpoint and not is_last)

    batch_result_processor.release_kv_cache = release
