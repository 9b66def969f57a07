"""Answers: what a server says to a request for turns, read as it comes, and checked.

A request for several turns is answered with events, each a list of those that are done in the same
moment, so no turn waits for a longer neighbour. A request for one turn is answered with a list of
one.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import orjson
from aiohttp import StreamReader

from engines.sglang.turn_queue import AskedTurn
from engines.types import Experts, Finish, Generation, Kept
from engines.weight_versions import BROKEN_WEIGHTS, WeightVersions
from infra.errors import EngineError

_FINISH: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}
MOST_OF_TURN = 1 << 30
"""bytes of one turn's answer: a million tokens, each with its experts and the likeliest others"""
_PREFIX, _LAST = b"data: ", b"data: [DONE]"
_NONSENSE = (ValueError, LookupError, TypeError, AttributeError)
_KEPT = "output_token_sampling"


class Retryable(EngineError):
    """Worth another try."""


class Refused(Retryable):
    """A server's own fault (5xx), a full queue, or an answer that no engine gives."""


class NoConnection(Retryable):
    """Nobody listens at the router's address, or the connection broke."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A turn, and what a server generated for it."""

    turn: AskedTurn
    generation: Generation
    cached_tokens: int
    """of its prompt"""


async def events_of(content: StreamReader) -> AsyncGenerator[bytes]:
    """The events of a stream, each as soon as it is here. Raises Refused without a last one, and
    EngineError for one that has no end."""
    parts, rest, event, size = list[bytes](), b"", b"", 0
    async for chunk in content.iter_any():
        parts.append(chunk)
        if (size := size + len(chunk)) > MOST_OF_TURN:
            raise EngineError(f"an engine's answer to a turn has more than {MOST_OF_TURN:,} bytes")
        # Joined at an end only: an event of megabytes comes in hundreds of chunks.
        if b"\n\n" not in rest[-1:] + chunk:
            rest = chunk
            continue
        *whole, rest = b"".join(parts).split(b"\n\n")
        parts, size = [rest], len(rest)
        for event in whole:
            if event != _LAST:
                yield event.removeprefix(_PREFIX)
    if event != _LAST:
        raise Refused(f"this is not a valid engine answer, or not all of it: {rest[:300]!r}")


def read_event(text: bytes, turns: Sequence[AskedTurn]) -> list[Answer]:
    """Read the answers to some of these turns out of an event. Raises EngineError."""
    said = _loaded(text)
    if isinstance(said, dict) and "error" in said:
        error = cast("dict[str, Any]", said["error"])
        raise refusal(int(error.get("code", 400)), f"{error.get('message')}")
    try:
        return [_answer(reply, turns[reply["index"]]) for reply in said]
    except _NONSENSE as error:
        raise _nonsense(error, text) from error


def read_list(text: bytes, turns: Sequence[AskedTurn]) -> list[Answer]:
    """Read the answers out of a reply that came whole. Raises EngineError."""
    replies = _loaded(text)
    try:
        if len(replies) != len(turns):
            raise EngineError(f"asked for {len(turns)} turns, got {str(replies)[:300]}")
        return [_answer(reply, turn) for reply, turn in zip(replies, turns, strict=True)]
    except _NONSENSE as error:
        raise _nonsense(error, text) from error


def refusal(status: int, why: str) -> EngineError:
    """Make the error for what a server said with this status instead of an answer."""
    kind = Refused if status >= 500 or status in (408, 429) else EngineError
    return kind(f"the engine refused ({status}): {why[:500]}")


def _loaded(text: bytes) -> Any:
    try:
        # [[p, id, null], [p, id, null]] -> [[p, id, p, id, null]]: a list for each token would
        # cost several times as much as its numbers.
        return orjson.loads(text.replace(b",null],[", b","))
    except ValueError as error:
        raise _nonsense(error, text) from error


def _nonsense(error: Exception, text: bytes) -> Refused:
    return Refused(f"this is not a valid engine answer ({error!r}): {text[:300]!r}")


def _answer(reply: dict[str, Any], turn: AskedTurn) -> Answer:
    generation = _parse(reply, turn)
    return Answer(turn, generation, reply["meta_info"].get("cached_tokens", 0))


def _parse(reply: dict[str, Any], turn: AskedTurn) -> Generation:
    """Read one sequence of a reply, and check it against what was asked for."""
    token_ids: list[int] = reply["output_ids"]
    most = turn.sampling.max_new_tokens
    meta = reply["meta_info"]
    finish = _FINISH.get(meta["finish_reason"]["type"])
    if finish is None:
        raise EngineError(f"unknown finish reason {meta['finish_reason']}")
    if finish == "abort" and (status := meta["finish_reason"].get("status_code")):
        raise refusal(status, f"a turn: {meta['finish_reason'].get('message')}")
    scored_ids, logprobs = _scored(meta.get("output_token_logprobs") or [])
    if scored_ids != token_ids or len(token_ids) > most:
        raise EngineError(
            f"the engine answered {len(token_ids)} tokens with {len(logprobs)} log-probabilities"
            f" for at most {most} tokens"
        )
    kept = None
    if turn.sampling.keep is not None and token_ids:
        kept, logprobs = _kept(meta, token_ids), meta.get(f"{_KEPT}_logprobs")
    versions = _versions(meta, len(token_ids))
    return Generation(
        token_ids=np.array(token_ids, np.int32),
        logprobs=np.array(logprobs, np.float32),
        weight_versions=versions,
        finish=finish,
        experts=_experts(meta, turn, versions),
        kept=kept,
    )


def _kept(meta: dict[str, Any], token_ids: list[int]) -> Kept:
    """Read what the engine kept at each place. Raises EngineError where it does not say."""
    said: list[list[int]] | None = meta.get(f"{_KEPT}_mask")
    if said is None:
        raise EngineError("a server answered tokens without those that it kept beside them")
    ids = list[int]()
    for token, row in zip(token_ids, said, strict=True):
        row.remove(token)
        ids += [~token, *sorted(row)]
    return np.array(ids, np.int32)


def _experts(meta: dict[str, Any], turn: AskedTurn, versions: WeightVersions) -> Experts | None:
    """Read the experts that the engine said, see `Generation.experts`, in the fewest bytes.

    An engine that takes new weights in the middle of a turn reads all its tokens again, and says
    the experts of that: where older weights sampled a token, they are not known."""
    said: str | None = meta.get("routed_experts")
    if said is None or not versions:
        return None
    before = len(turn.prompt_ids) - 1 - turn.sampling.experts_from
    numbers = np.frombuffer(b64decode(said), np.int32).reshape(before + len(versions), -1) + 1
    numbers[before : before + len(versions) - versions.runs[-1][1]] = 0
    return numbers.astype(np.uint8 if numbers.max() < 256 else np.int16)


def _scored(entries: list[list[Any]]) -> tuple[list[int], list[float]]:
    """Ids and log-probabilities of [[p, id, null], ...], whether `_loaded` joined the lists or not
    (an engine that writes spaces)."""
    if len(entries) == 1:
        return entries[0][1::2], entries[0][:-1:2]
    return [entry[1] for entry in entries], [entry[0] for entry in entries]


def _versions(meta: dict[str, Any], num_tokens: int) -> WeightVersions:
    """The weight version of each token; the engine reports spans when it changed on the way."""
    spans: list[dict[str, Any]] = meta.get("weight_versions") or [
        {"version": meta["weight_version"], "start": 0, "end": num_tokens}
    ]
    versions = WeightVersions.of_runs(
        (_version(span["version"]), span["end"] - span["start"]) for span in spans
    )
    if len(versions) != num_tokens:
        raise EngineError(f"weight versions {spans} do not cover {num_tokens} tokens")
    return versions


def _version(text: str) -> int:
    if text == BROKEN_WEIGHTS:
        raise Refused(f"its weights are {text}: they may be half new")
    try:
        return int(text)
    except ValueError:
        raise EngineError(
            f"the engine's weight version is {text!r}, not a number: its weights did not come"
            " from this fleet"
        ) from None
