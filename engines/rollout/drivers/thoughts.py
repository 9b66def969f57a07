"""Budget forcing: a turn's thought is ended at a number of tokens, or made to go on (s1, arXiv
2501.19393).

    the thought ──▶ `tokens` written, still open ──▶ the template's end of a thought ──▶ the answer
        ▲  └ ends earlier, and has to wait ──▶ its end is forgotten, "Wait" stands there
        └──────────────────────────────────────┘

Tokens that are put in are nobody's: no loss, no logprob, no version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from engines.rollout.drivers.session import TokenSession
from engines.rollout.protocols import ChatFormat, ThoughtBudget
from engines.types import Finish, Problem

WAIT = "Wait"


Write = Callable[[int, tuple[int, ...]], Awaitable[Finish]]
"""Has up to so many tokens written, which these end as well as the end of a turn."""

Force = Callable[[Sequence[int]], None]
"""Puts tokens in."""


async def write_thought(
    session: TokenSession,
    chat: ChatFormat,
    problem: Problem,
    budget: ThoughtBudget,
    most: int,
    context: int,
    write: Write,
    force: Force,
) -> Finish | None:
    """Have a turn's thought written, if it may have one. -> how the turn ended in it; None where
    the answer is still to be written. `most`: tokens of the whole turn; `context`: of the session,
    in which what is put in counts as well."""
    begun, first, waits = len(session.tokens), session.num_generated, budget.waits
    most_of_thought = most if budget.tokens is None else min(most, budget.tokens)
    while chat.open_thought(problem, session.tokens[begun:]) is not False:
        room = context - len(session.tokens)
        left = min(most_of_thought - (session.num_generated - first), room)
        ends = chat.thought_end_ids if waits else ()
        finish = await write(left, ends) if left > 0 else "length"
        if finish == "length":
            is_open = chat.open_thought(problem, session.tokens[begun:])
            closing = chat.thought_closing_ids(session.tokens[begun:]) if is_open else []
            fits = len(session.tokens) + len(closing) < context
            if closing and fits and session.num_generated - first < most:
                force(closing)
            return None
        if finish == "abort" or int(session.tokens[-1]) not in ends:
            return finish
        wait = chat.text_ids(WAIT)
        fits = len(session.tokens) - 1 + len(wait) < context
        if not fits or not chat.open_thought(problem, session.tokens[begun:-1]):
            return None
        session.cut(len(session.tokens) - 1)
        force(wait)
        waits -= 1
    return None
