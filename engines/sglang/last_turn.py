"""Keep the prompt of a conversation's last turn in a server's cache, but not its answer.

SGLang puts a finished request's keys and values into its prefix tree, for later requests with the
same beginning. After a last turn no such request follows, and inserting and evicting the entries
costs a small model as much as several tokens. A request is marked in its sampling parameters.
"""

from __future__ import annotations

from typing import Any

FIELD = "tributary_last_turn"


def mark(sampling: dict[str, Any]) -> None:
    """Mark these sampling parameters: no further turn will follow the answer."""
    sampling["custom_params"] = {FIELD: True}


def install() -> None:
    """Let SGLang's scheduler free such a request's cache entries when it ends; CPU only so far."""
    from sglang.srt.managers.scheduler_components import batch_result_processor

    stock = batch_result_processor.release_kv_cache

    def release(req: Any, tree_cache: Any, *, checkpoint: bool) -> None:
        is_last = FIELD in (req.sampling_params.custom_params or {})
        stock(req, tree_cache, checkpoint=checkpoint and not is_last)

    batch_result_processor.release_kv_cache = release
