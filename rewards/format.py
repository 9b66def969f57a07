"""Whether a reply is well formed.

The `format` reward shapes training. The outcomes `math` and `reasoning-gym` use the same check: a
reply that is not well formed scores 0 there.
"""

from __future__ import annotations

import re

from engines.types import Status, Transcript, Verdict
from rewards.assistant_turns import assistant_turns

_TAGS = re.compile(r"</?think>|</?tool_call>|</?arg_(?:key|value)>|<\|\w+\|>")


def format_fault(transcript: Transcript) -> str:
    """What is wrong with the form of a reply, in words; empty if it is well formed.

    Well formed: the model ended its turn itself, the answer is not empty and contains no tags, and
    each turn reasons if and only if the problem asks for thinking; where it leaves that to the
    model, a turn may reason or not.
    """
    if transcript.status is not Status.COMPLETED:
        return f"the reply is {transcript.status.value}"
    if not transcript.answer.strip():
        return "the answer is empty"
    for turn in assistant_turns(transcript):
        if _TAGS.search(turn.content) or _TAGS.search(turn.reasoning or ""):
            return "the text contains tags"
        reasons, asked = bool((turn.reasoning or "").strip()), transcript.problem.thinking
        if asked is not None and reasons != asked:
            return "reasoning is missing" if asked else "reasoning was not asked for"
    return ""


class Format:
    """1 if the reply is well formed, else 0."""

    async def __call__(self, transcript: Transcript) -> Verdict:
        fault = format_fault(transcript)
        return Verdict(float(not fault), reason=fault)
