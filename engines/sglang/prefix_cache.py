"""What a server computes once and keeps in its prefix cache, beside what SGLang does by itself.

The samples of one prompt come together, and SGLang would prefill the prompt for each of them, as
the cache has it only once a prefill is over. Here one goes first, and the others wait for it: of a
group of eight the prompt is read once instead of eight times.

A finished request's keys and values stay in the cache for later requests with the same beginning.
After a last turn no such request follows, and inserting and evicting the entries costs a small
model as much as several tokens. Such a request is marked in its sampling parameters.
"""

from __future__ import annotations

from array import array
from typing import Any

_LAST_TURN = "tributary_last_turn"
_ADD = "sglang.srt.managers.schedule_policy.PrefillAdder.add_one_req"
_WORTH_WAITING = 8
"""tokens that a request does not read again, if it waits for one of the same prompt; a whole pass
of the model comes between the two"""


def mark_last_turn(sampling: dict[str, Any]) -> None:
    """Mark these sampling parameters: no further turn will follow the answer."""
    sampling["custom_params"] = {_LAST_TURN: True}


def install_last_turns() -> None:
    """Let SGLang's scheduler free such a request's cache entries when it ends; CPU only so far."""
    from sglang.srt.managers.scheduler_components import batch_result_processor

    stock = batch_result_processor.release_kv_cache

    def release(req: Any, tree_cache: Any, *, checkpoint: bool) -> None:
        is_last = _LAST_TURN in (req.sampling_params.custom_params or {})
        stock(req, tree_cache, checkpoint=checkpoint and not is_last)

    batch_result_processor.release_kv_cache = release


def install_shared_prompts() -> None:
    """Let SGLang's scheduler leave a request waiting while another one prefills its prompt."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_ADD, _added, HookType.AROUND)


def _added(stock: Any, adder: Any, req: Any, *given: Any, **named: Any) -> Any:
    """Return what the scheduler does after this request, which joins the pass or waits."""
    if _gains_by_waiting(adder, req):
        from sglang.srt.managers.schedule_policy import AddReqResult

        return AddReqResult.CONTINUE
    result = stock(adder, req, *given, **named)
    if adder.can_run_list and adder.can_run_list[-1] is req:
        _prompts(adder).setdefault(_prompt(req), req.rid)
    return result


def _gains_by_waiting(adder: Any, req: Any) -> bool:
    """Return whether its prompt is being prefilled for another request, and not in the cache yet.

    It waits for one other at most, so that whatever keeps a prompt out of the cache costs a pass.
    """
    unread = len(req.origin_input_ids) - req.prefix_len
    cache = adder.tree_cache
    is_off = getattr(cache, "disable", True) or cache.supports_mamba()
    if is_off or unread < adder.page_size + _WORTH_WAITING:
        return False
    other = _prompts(adder).get(_prompt(req))
    if other is None or getattr(req, "tributary_waited_for", other) != other:
        return False
    req.tributary_waited_for = other
    return True


def _prompts(adder: Any) -> dict[Any, str]:
    """Return the prompts that are being prefilled, with one request's name: in this pass, and in
    the one before if its first tokens are not there yet."""
    if not hasattr(adder, "tributary_prompts"):
        running = adder.running_batch.reqs if adder.running_batch is not None else ()
        under_way = (*adder.can_run_list, *(req for req in running if not req.output_ids))
        adder.tributary_prompts = {_prompt(req): req.rid for req in under_way}
    return adder.tributary_prompts


def _prompt(req: Any) -> tuple[Any, ...]:
    """Return what two requests with one entry of the cache have in common."""
    if not hasattr(req, "tributary_prompt"):
        ids = array("q", req.origin_input_ids).tobytes()
        req.tributary_prompt = req.extra_key, req.cache_salt, ids
    return req.tributary_prompt
