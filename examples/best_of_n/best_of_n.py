"""A driver of your own: several answers to a problem, of which the best one is the rollout's.

The driver judges the answers itself, with the reward of the domain's outcome. What is not chosen is
neither trained on nor judged again. Held-out problems are answered by the driver as well, so scores
are those of the best of n.
"""

from __future__ import annotations

import asyncio

from engines.rollout.drivers.session import TokenSession
from engines.rollout.drivers.session_host import End, SessionHost, Turn
from engines.types import Problem, Rollout, Status, Transcript
from rewards.math import Math


class BestOfN:
    """The best of `answers` answers with at most `max_tokens` tokens each; of equal ones the
    first."""

    def __init__(self, answers: int = 4, max_tokens: int = 24) -> None:
        self.answers = answers
        self.max_tokens = max_tokens
        self._outcome = Math()

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        tried = [sessions.open(sessions.prompt_ids) for _ in range(self.answers)]
        turns = await asyncio.gather(
            *[sessions.turn(s, max_new_tokens=self.max_tokens, is_last=True) for s in tried]
        )
        scores = [
            await self._score(problem, sessions, session, turn)
            for session, turn in zip(tried, turns, strict=True)
        ]
        best = scores.index(max(scores))
        said = turns[best].said
        messages = [] if said is None else [said.message()]
        return sessions.finish(turns[best].end or End(Status.COMPLETED), messages, [tried[best]])

    async def _score(
        self, problem: Problem, sessions: SessionHost, session: TokenSession, turn: Turn
    ) -> float:
        """Score it as the rubric will judge it; an answer that was cut off or broken is the
        worst."""
        if turn.said is None or turn.end is not None:
            return -1.0
        raw = sessions.chat.decode(session.response_ids)
        messages = (turn.said.message(),)
        transcript = Transcript(problem, messages, Status.COMPLETED, session.num_generated, raw=raw)
        return (await self._outcome(transcript)).score
