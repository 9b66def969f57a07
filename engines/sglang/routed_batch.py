"""One sampling per sequence in a batched request, through sglang-router.

SGLang takes a list of sampling parameters for a batch, but the router's schema knows one for all
of it, which would give every sequence the same seed. `session_params` is the one field of the
request that the router hands on unread: the list travels there and our plugin puts it back. So do
the names of the sequences, by which each can be aborted, and the wish to hear of their experts.
Where a sequence has a `top_k`, the answer says which tokens were kept at each place.

Whoever asks for `stream` there gets each sequence when it is done, in one event with all that are
done in the same moment. SGLang alone would send all that there is of each with every token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from engines.types import TokenIds

FIELD = "sampling_of_each"
_NAMES = "name_of_each"
_EXPERTS = "experts_from_of_each"
_REQUEST = "sglang.srt.managers.io_struct.GenerateReqInput"
_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_BY_SEQUENCE = "is_answered_by_sequence"
"""attribute of a request that came with `FIELD`, and of its sequences"""


def names_of(request: str, count: int) -> list[str]:
    """Return what the engine calls the sequences of a request of that name. None begins as another
    one does: SGLang aborts whatever begins with a name. Example: ["3f_0"]; ["3f_00", ..., "3f_15"]
    """
    digits = len(str(count - 1))
    return [f"{request}_{number:0{digits}}" for number in range(count)]


def pack(
    input_ids: Sequence[TokenIds],
    sampling: list[dict[str, Any]],
    request: str = "",
    *,
    for_plugin: bool = True,
    stream: bool = False,
    experts_from: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Body of a `/generate` request for several sequences; both lists have one entry for each.

    `request`: its name, which no other has; without one its sequences have no name that is known.
    `for_plugin`: the server has our plugin. One without it takes batches of one, and hears of a
    name if no router is before it, which would leave the name out. `stream`: a batch is answered
    with events, lists of the sequences that are done, with their `index`; else with all at once.
    `experts_from`: a server with our plugin says which experts it chose for each sequence's tokens
    from this place on, but not for the last, which it does not read."""
    named: dict[str, Any] = {_NAMES: names_of(request, len(sampling))} if request else {}
    if experts_from is not None:
        named[_EXPERTS] = experts_from
    carried: dict[str, Any] = {}
    if len(sampling) > 1 or experts_from is not None or (named and for_plugin):
        carried = {"session_params": {FIELD: sampling} | named}
    elif named:
        carried = {"rid": request}  # to which SGLang adds _0 by itself
    return {
        "input_ids": input_ids,
        "sampling_params": sampling[0],
        **carried,
        "return_logprob": True,
        "return_text_in_logprobs": False,
        "stream": stream,
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
    request.return_sampling_mask = ["top_k" in each for each in carried[FIELD]]
    request.return_routed_experts = _EXPERTS in carried
    request.session_params = None
    setattr(request, _BY_SEQUENCE, True)
    setattr(request, _EXPERTS, carried.get(_EXPERTS))


def whole(sequence: Any, request: Any, index: int) -> Any:
    """Let a sequence of such a request have one answer, at its end, with the experts that were
    asked for."""
    if getattr(request, _BY_SEQUENCE, False):
        setattr(sequence, _BY_SEQUENCE, True)
        sequence.stream = False
        if sequence.return_routed_experts:
            sequence.routed_experts_start_len = getattr(request, _EXPERTS)[index]
    return sequence


def answered(stock: Any, manager: Any, generators: Sequence[Any], names: Sequence[str]) -> Any:
    """The answers of a batch as they come: lists, where the request came with `FIELD`."""
    state = manager.rid_to_state.get(names[0])
    if not getattr(state and state.obj, _BY_SEQUENCE, False):
        return stock(manager, generators, names)
    return together(generators, names)


async def together(generators: Sequence[Any], names: Sequence[str]) -> AsyncGenerator[list[Any]]:
    """Lists of what is there in the same moment, each generator's first and only answer: an event
    costs a server more than what it says of one more sequence."""
    index_of = {name: index for index, name in enumerate(names)}
    waiting = {asyncio.create_task(generator.__anext__()) for generator in generators}
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            answers = [task.result() for task in done]
            for answer in answers:
                answer["index"] = index_of[answer["meta_info"]["id"]]
            yield answers
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*(each.aclose() for each in generators), return_exceptions=True)


def install() -> None:
    """Hook SGLang's request normalisation; for any host, with or without CUDA."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def refused(stock: Any, manager: Any, out: Any, state: Any, is_stream: bool) -> Any:
        """Return an answer like others: an exception would end the stream without a word."""
        by_sequence = getattr(state.obj, _BY_SEQUENCE, False)
        return stock(manager, out, state, is_stream or by_sequence)

    before = f"{_REQUEST}.normalize_batch_and_arguments"
    HookRegistry.register(before, unpack, HookType.BEFORE)
    HookRegistry.register(f"{_REQUEST}.__getitem__", whole, HookType.AFTER)
    HookRegistry.register(f"{_MANAGER}._handle_abort_finish_reason", refused, HookType.AROUND)
    HookRegistry.register(f"{_MANAGER}._stream_batch_responses", answered, HookType.AROUND)
