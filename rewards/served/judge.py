"""The `judge` reward: a served model grades a rollout through a prompt."""

from __future__ import annotations

import math
import zlib

from engines.types import Message, Problem, Transcript, Verdict
from rewards.served.asks import AsksModel
from rewards.served.judge_settings import JudgeSettings
from rewards.served.prompt import filled

_SEARCH_S = 1.0
"""what the search for a pattern may take"""
_SHOWN = 300
"""characters of the judge's answer that are kept with the sample"""


class Judge:
    """Raises where the judge does not answer, or where its answer holds no score."""

    def __init__(self, settings: JudgeSettings, model: AsksModel, timeout_s: float) -> None:
        self._settings, self._model, self._timeout_s = settings, model, timeout_s

    async def __call__(self, transcript: Transcript) -> Verdict:
        asked = question(self._settings, transcript)
        if self._settings.pattern is None:
            return await self._by_choice(asked)
        said = await self._model.answer(
            asked,
            max_new_tokens=self._settings.max_new_tokens,
            temperature=self._settings.temperature,
            seed=_seed(transcript),
            timeout_s=self._timeout_s,
        )
        return _read(self._settings, said)

    async def _by_choice(self, asked: Problem) -> Verdict:
        choices = self._settings.choices
        logprobs = await self._model.choice_logprobs(
            asked, list(choices), timeout_s=self._timeout_s
        )
        most = max(logprobs)
        weights = [math.exp(logprob - most) for logprob in logprobs]
        shares = {name: w / sum(weights) for name, w in zip(choices, weights, strict=True)}
        score = sum(share * choices[name] for name, share in shares.items())
        return Verdict(score, shares, f"the judge prefers {max(shares, key=shares.__getitem__)!r}")


def question(settings: JudgeSettings, transcript: Transcript) -> Problem:
    """What the judge is asked. Raises ValueError."""
    system = (Message("system", settings.system),) if settings.system else ()
    asked = Message("user", filled(settings.prompt, transcript))
    judged = transcript.problem
    return Problem(judged.id, judged.domain, (*system, asked), thinking=settings.thinking)


def _read(settings: JudgeSettings, said: str) -> Verdict:
    reason = f"the judge: {said.strip()[:_SHOWN]!r}"
    score = _score(settings, said)
    if score is None:
        score = settings.unreadable
        if score is None:
            raise ValueError(f"its answer holds no score: {said.strip()[:_SHOWN]!r}")
    return Verdict(score, reason=reason)


def _score(settings: JudgeSettings, said: str) -> float | None:
    """None where nothing is found, or nothing that is on the scale or among the choices."""
    import regex

    assert settings.pattern is not None
    found = list(regex.finditer(settings.pattern, said, timeout=_SEARCH_S))
    if not found:
        return None
    text = (found[-1].group(found[-1].re.groups) or "").strip()
    if settings.choices:
        return settings.choices.get(text)
    try:
        number = float(text)
    except ValueError:
        return None
    low, high = settings.scale
    score = (number - low) / (high - low)
    return score if 0 <= score <= 1 else None


def _seed(transcript: Transcript) -> int:
    """The same for the same rollout, whenever it is judged."""
    return zlib.crc32(f"{transcript.problem.id}\n{transcript.raw}".encode()) & 0x7FFF_FFFF
