"""A driver of your own: several answers to a problem at once, of which the most frequent counts.

Each answer has a session of its own, and all of them are trained on: they share the reward of the
one that was chosen, and together weigh as much as one rollout.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from engines.rollout.drivers.session_host import End, SessionHost
from engines.types import Problem, Rollout, Status


class Majority:
    """The majority of `answers` answers with at most `max_tokens` tokens each."""

    def __init__(self, answers: int = 3, max_tokens: int = 24) -> None:
        self.answers = answers
        self.max_tokens = max_tokens

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        tried = [sessions.open(sessions.prompt_ids) for _ in range(self.answers)]
        turns = await asyncio.gather(
            *[sessions.turn(s, max_new_tokens=self.max_tokens, is_last=True) for s in tried]
        )
        answered = [(s, t) for s, t in zip(tried, turns, strict=True) if t.said is not None]
        if not answered:
            return sessions.finish(turns[0].end or End(Status.FAILED, "no answer"), [])
        contents = [turn.said.content for _, turn in answered if turn.said is not None]
        chosen = contents.index(Counter(contents).most_common(1)[0][0])
        session, turn = answered[chosen]
        # What is judged is the last session's.
        others = [s for s, _ in answered if s is not session]
        assert turn.said is not None
        end = turn.end or End(Status.COMPLETED)
        return sessions.finish(end, [turn.said.message()], [*others, session])
