"""What a server of others does with our requests: whether it takes batches, and repeats a seed."""

from __future__ import annotations

import json
from typing import Any

from engines.sglang.http import Refused, read_text
from engines.sglang.routed_batch import pack
from engines.types import TokenIds
from infra.errors import EngineError, InputError

_PROBE_S = 60.0
_TOKENS = 8
_PROMPT = [1, 2, 3, 4]
_SAMPLING: dict[str, Any] = {
    "max_new_tokens": _TOKENS,
    "temperature": 1.0,
    "sampling_seed": 17,
    "ignore_eos": True,
}


def takes_batches(url: str, *, repeats_seeds: bool) -> bool:
    """Whether a batch may carry a seed for each of its sequences, which needs our plugin there.

    With `repeats_seeds` it has to sample the same tokens again for the same seed, else InputError.
    """
    try:
        both = _sampled(url, 2)
        is_batch = True
    except Refused:
        both = _sampled(url, 1) + _sampled(url, 1)
        is_batch = False
    if repeats_seeds and both[0] != both[1]:
        raise InputError(
            f"fleet.external: {url} samples other tokens when it gets the same seed again, and this"
            " stage needs equal ones: start it with --enable-deterministic-inference; on a CPU it"
            " also needs Tributary's plugin (install tributary beside SGLang there)"
        )
    return is_batch


def _sampled(url: str, count: int) -> list[list[int]]:
    """Tokens of each of `count` equal sequences of one request."""
    prompts: list[TokenIds] = [_PROMPT] * count
    text = read_text(url, "/generate", pack(prompts, [_SAMPLING] * count), timeout=_PROBE_S)
    try:
        return [list(reply["output_ids"]) for reply in json.loads(text)]
    except (ValueError, LookupError, TypeError) as error:
        raise EngineError(f"{url} answered no sequences ({error!r}): {text[:300]}") from error
