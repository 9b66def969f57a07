"""One sampling per sequence in a batched request, through sglang-router.

SGLang takes a list of sampling parameters for a batch, but the router's schema knows one for all
of it, which would give every sequence the same seed. `session_params` is the one field of the
request that the router hands on unread: the list travels there and our plugin puts it back. So do
the names of the sequences, by which each can be aborted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.types import TokenIds

FIELD = "sampling_of_each"
_NAMES = "name_of_each"
_TARGET = "sglang.srt.managers.io_struct.GenerateReqInput.normalize_batch_and_arguments"


def names_of(request: str, count: int) -> list[str]:
    """What the engine calls the sequences of a request of that name. None begins as another one
    does: SGLang aborts whatever begins with a name. Example: ["3f_0"]; ["3f_00", ..., "3f_15"]"""
    digits = len(str(count - 1))
    return [f"{request}_{number:0{digits}}" for number in range(count)]


def pack(
    input_ids: Sequence[TokenIds],
    sampling: list[dict[str, Any]],
    request: str = "",
    *,
    for_plugin: bool = True,
) -> dict[str, Any]:
    """Body of a `/generate` request for several sequences; both lists have one entry for each.

    `request`: its name, which no other has; without one its sequences have no name that is known.
    `for_plugin`: the server has our plugin. One without it takes batches of one, and hears of a
    name if no router is before it, which would leave the name out."""
    named = {_NAMES: names_of(request, len(sampling))} if request else {}
    carried: dict[str, Any] = {}
    if len(sampling) > 1 or (named and for_plugin):
        carried = {"session_params": {FIELD: sampling} | named}
    elif named:
        carried = {"rid": request}  # to which SGLang adds _0 by itself
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
    request.rid = carried.get(_NAMES)
    request.session_params = None


def install() -> None:
    """Hook SGLang's request normalisation; for any host, with or without CUDA."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, lambda request: unpack(request), HookType.BEFORE)
