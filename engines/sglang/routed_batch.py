"""One sampling per sequence in a batched request, through sglang-router.

SGLang takes a list of sampling parameters for a batch, but the router's schema knows one for all
of it, which would give every sequence the same seed. `session_params` is the one field of the
request that the router hands on unread: the list travels there and our plugin puts it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.types import TokenIds

FIELD = "sampling_of_each"
_TARGET = "sglang.srt.managers.io_struct.GenerateReqInput.normalize_batch_and_arguments"


def pack(input_ids: Sequence[TokenIds], sampling: list[dict[str, Any]]) -> dict[str, Any]:
    """Body of a `/generate` request for several sequences; both lists have one entry for each.

    A batch of one needs no plugin at the server."""
    carried = {"session_params": {FIELD: sampling}} if len(sampling) > 1 else {}
    return {
        "input_ids": input_ids,
        "sampling_params": sampling[0],
        **carried,
        "return_logprob": True,
        "return_text_in_logprobs": False,
        "stream": False,
    }


def unpack(request: Any) -> None:
    """Give an SGLang `GenerateReqInput` made from `pack`'s body its list; leaves others alone."""
    carried = request.session_params
    if not isinstance(carried, dict) or FIELD not in carried:
        return
    if len(carried[FIELD]) != len(request.input_ids):
        raise ValueError(
            f"{FIELD} has {len(carried[FIELD])} entries for {len(request.input_ids)} sequences"
        )
    request.sampling_params = carried[FIELD]
    request.session_params = None


def install() -> None:
    """Hook SGLang's request normalisation; for any host, with or without CUDA."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, lambda request: unpack(request), HookType.BEFORE)
