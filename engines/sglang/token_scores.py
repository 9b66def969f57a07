"""What one prompt gets from servers: log-probabilities of its own tokens, or some more tokens.

For programs that ask from threads, such as an evaluation harness; rollouts use `client.py`, which
packs many turns into a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import stamina

from engines.sglang.http import NoAnswerInTime, NoConnection, Refused, call, require_whole
from engines.sglang.turn_queue import LANE_HEADER
from infra.errors import EngineError

_PATIENCE_S = 120.0
"""a lost server is back within seconds; its weights may take longer"""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token of a prompt after those before it."""

    logprob: float
    is_likeliest: bool
    """whether no other token is more likely there"""


class TokenScorer:
    """Asks one router; calls block, and may come from several threads."""

    def __init__(self, router_url: str, timeout_s: float = 600.0) -> None:
        """`timeout_s`: what one request may take."""
        self._url, self._timeout_s = router_url, timeout_s

    def scores(self, ids: Sequence[int], last: int) -> list[TokenScore]:
        """Of the `last` tokens of a prompt, which is longer than that. Raises EngineError."""
        body = {
            "input_ids": list(ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": len(ids) - last - 1,
            "top_logprobs_num": 1,
        }
        meta = self._ask(body)["meta_info"]
        entries = list(zip(meta["input_token_logprobs"], meta["input_top_logprobs"], strict=True))
        scored = [
            TokenScore(float(own[0]), own[1] == best[0][1])
            for own, best in entries[-last:]
            if own[0] is not None
        ]
        if [own[1] for own, _ in entries[-last:]] != list(ids[-last:]) or len(scored) != last:
            raise EngineError(f"asked for {last} log-probabilities, got {str(entries)[:300]}")
        return scored

    def continued(
        self, ids: Sequence[int], count: int, temperature: float, seed: int, stops: Sequence[int]
    ) -> tuple[list[int], bool]:
        """Up to `count` further ids, and whether one of the ids `stops`, which is left out, ended
        them. Raises EngineError."""
        sampling = {"max_new_tokens": count, "temperature": temperature, "sampling_seed": seed}
        body = {"input_ids": list(ids), "sampling_params": {**sampling, "stop_token_ids": [*stops]}}
        made: list[int] = self._ask(body)["output_ids"]
        ended = bool(made) and made[-1] in stops
        return (made[:-1] if ended else made), ended

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        for attempt in stamina.retry_context(_may_pass, attempts=None, timeout=_PATIENCE_S):
            with attempt:
                key = {LANE_HEADER: uuid4().hex}  # any server may take it
                said = call(self._url, "/generate", body, timeout=self._timeout_s, headers=key)
                require_whole(said, self._url)
                return said
        raise AssertionError("stamina raises what the last try raised")


def _may_pass(error: Exception) -> bool:
    """Whether another try may help: a server that was lost is started again."""
    if isinstance(error, Refused):
        return error.status >= 500 or error.status in (408, 429)
    return isinstance(error, NoConnection | NoAnswerInTime)
