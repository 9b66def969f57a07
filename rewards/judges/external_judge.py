"""`external-judge`: a reward that asks a model at an OpenAI-compatible address.

Whatever goes wrong raises, and so makes a failed verdict: what `ChatApi` raises, but for an outage,
and an answer that is no JSON or holds no score. It is never a score of 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, FiniteFloat, ValidationError

from engines.types import Transcript, Verdict
from infra.config import Count
from infra.json_text import parse_json
from rewards.judges.chat_api import ChatApi, ChatApiSettings
from rewards.judges.judge_prompt import (
    SHOWN,
    JudgeQuestion,
    asked_messages,
    on_scale,
    read_verdict,
    voted,
)

EXTERNAL_JUDGE = "external-judge"


class ExternalJudgeSettings(ChatApiSettings, JudgeQuestion):
    """Options of the reward `external-judge`. With `pattern` or `choices` its answer is read as
    text; without them it is asked for JSON, {"reason": ..., "score": ...}."""

    max_new_tokens: Count = 512
    """of the judge's answer, its thought included"""

    @property
    def asks_for_json(self) -> bool:
        return self.pattern is None and not self.choices


_FENCED = re.compile(r"\s*```(?:json)?\s(.*)```\s*", re.DOTALL | re.IGNORECASE)


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("is a truth value and no number")
    return value


class _Score(BaseModel):
    score: Annotated[FiniteFloat, BeforeValidator(_no_truth)]
    reason: str = ""


class ExternalJudge:
    """For one event loop. Raises EngineError where the API gives no answer, ValueError where its
    answer holds no score, OutOfReach where it answers nobody for too long."""

    def __init__(
        self, settings: ExternalJudgeSettings, timeout_s: float, sharing: int = 1, key: str = ""
    ) -> None:
        """See `ChatApi`. Raises InputError."""
        self._settings = settings
        self._api = ChatApi(
            settings, timeout_s, sharing, key,
            title=EXTERNAL_JUDGE, max_new_tokens=settings.max_new_tokens,
        )  # fmt: skip

    @classmethod
    def of_options(cls, options: Mapping[str, Any], timeout_s: float, sharing: int = 1) -> Self:
        """Raises pydantic's ValidationError, and InputError as `__init__`."""
        return cls(ExternalJudgeSettings.model_validate(options), timeout_s, sharing)

    async def __call__(self, transcript: Transcript) -> Verdict:
        settings = self._settings
        asked = asked_messages(settings, transcript)
        messages = [{"role": m.role, "content": m.content} for m in asked]
        more: dict[str, Any] = {"temperature": settings.temperature}
        if settings.asks_for_json:
            more["response_format"] = {"type": "json_schema", "json_schema": _schema(settings)}
        return await voted(
            settings, lambda number: self._api.answer(messages, more, self._read, number)
        )

    async def close(self) -> None:
        await self._api.close()

    def _read(self, said: str) -> Verdict:
        """Read what stands behind a thought, if the API leaves one in its text."""
        settings = self._settings
        _, ended, rest = said.rpartition("</think>")
        is_whole = bool(ended) or not rest.lstrip().startswith("<think>")
        if not settings.asks_for_json or not is_whole:
            return read_verdict(settings, rest, is_whole=is_whole)
        fenced = _FENCED.fullmatch(rest)
        try:
            found = _Score.model_validate(parse_json(fenced[1] if fenced else rest))
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            why = ": ".join([*map(str, fault["loc"]), fault["msg"]])
            return self._unreadable(f"is not the JSON that was asked for ({why})", said)
        except ValueError as error:
            return self._unreadable(f"is not the JSON that was asked for ({error})", said)
        score = on_scale(settings, found.score)
        if score is None:
            low, high = settings.scale
            return self._unreadable(f"gives {found.score:g}, outside {low:g} to {high:g}", said)
        return Verdict(score, reason=f"the judge: {found.reason.strip()[:SHOWN]!r}")

    def _unreadable(self, why: str, said: str) -> Verdict:
        if self._settings.unreadable is None:
            raise ValueError(f"its answer {why}: {said.strip()[:SHOWN]!r}")
        return Verdict(self._settings.unreadable, reason=f"the judge's answer {why}")


def _schema(settings: ExternalJudgeSettings) -> dict[str, Any]:
    """Return a verdict on the scale; the reason comes first, so that the score follows from it."""
    low, high = sorted(settings.scale)
    score = {"type": "number", "minimum": low, "maximum": high}
    schema = {
        "type": "object",
        "properties": {"reason": {"type": "string"}, "score": score},
        "required": ["reason", "score"],
        "additionalProperties": False,
    }
    return {"name": "verdict", "strict": True, "schema": schema}
