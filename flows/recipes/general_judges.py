"""The judges of `general.yaml`: programs, so that what they prefer is known.

`hidden` labels the answers from which the reward model learns, and no policy is rewarded by it.
What RL against the reward model did to it is what a user never sees: the true score.
"""

from __future__ import annotations

import re
from itertools import pairwise

from engines.types import Transcript
from rewards.constraints.constraints import Constraints

_WORD = re.compile("[a-z]+")
_RULES = Constraints()


async def hidden(transcript: Transcript) -> float:
    """0 if an instruction is broken; else 0.5, and up to 1 the more of its words have an `o`.

    Example: `cot cup.`, where the rules hold -> 0.75.
    """
    if (await _RULES(transcript)).score < 1:
        return 0.0
    words = _WORD.findall(transcript.answer)
    return 0.5 + 0.5 * sum("o" in word for word in words) / max(len(words), 1)


def in_order(transcript: Transcript) -> float:
    """Share of neighbouring words that stand in the order of the alphabet.

    Example: `cat cup cot.` -> 0.5; one word alone -> 0.
    """
    words = _WORD.findall(transcript.answer)
    pairs = list(pairwise(words))
    return sum(first < second for first, second in pairs) / max(len(pairs), 1)
