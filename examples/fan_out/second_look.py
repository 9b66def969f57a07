"""A driver of your own whose rollouts give several samples: a first answer, then a second look.

The second look is a conversation of its own, so its tokens do not continue those of the first: the
rollout has two samples. They share its reward, and together weigh as much as one rollout.
"""

from __future__ import annotations

from dataclasses import replace

from engines.rollout.drivers.session_host import End, SessionHost
from engines.types import Message, Problem, Rollout, Status


class SecondLook:
    """The second answer counts if there is one; else the first."""

    def __init__(self, max_tokens: int = 24, ask: str = "Look again.") -> None:
        """`max_tokens`: of each answer. `ask` is what the policy is told between the two."""
        self.max_tokens = max_tokens
        self.ask = ask

    async def run(self, problem: Problem, sessions: SessionHost) -> Rollout:
        first = sessions.open(sessions.prompt_ids)
        draft = await sessions.turn(first, max_new_tokens=self.max_tokens, is_last=True)
        if draft.said is None or draft.end is not None:
            messages = [] if draft.said is None else [draft.said.message()]
            return sessions.finish(draft.end or End(Status.COMPLETED), messages)
        seen = (Message("assistant", draft.said.content), Message("user", self.ask))
        asked = replace(problem, messages=(*problem.messages, *seen))
        second = sessions.open(sessions.chat.prompt_ids(asked))
        final = await sessions.turn(second, max_new_tokens=self.max_tokens, is_last=True)
        if final.said is None or final.end is not None:
            # What is judged is the last session's.
            return sessions.finish(End(Status.COMPLETED), [draft.said.message()], [second, first])
        return sessions.finish(End(Status.COMPLETED), [final.said.message()], [first, second])
