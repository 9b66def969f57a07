"""A reward of whole groups: how many of the other answers to its problem an answer is shorter than.

An answer of 40 tokens earns 1 beside answers of 50 and 60, and 0.5 beside two of 40. How long is
long follows from what the policy writes to this problem, so no budget has to be guessed.
"""

from collections.abc import Sequence

from engines.types import Transcript, Verdict


def shorter(transcripts: Sequence[Transcript]) -> list[Verdict]:
    """Share of the others that it is shorter than; one that is as long counts half."""
    lengths = [transcript.num_tokens for transcript in transcripts]
    others = max(len(lengths) - 1, 1)
    verdicts: list[Verdict] = []
    for length in lengths:
        longer = sum(other > length for other in lengths)
        as_long = lengths.count(length) - 1
        verdicts.append(Verdict((longer + as_long / 2) / others, {"tokens": length}))
    return verdicts
