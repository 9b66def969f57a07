"""Problems that are in two splits: what is held out would be trained on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from engines.types import Problem, Split

_SHOWN = 60
"""characters of a shared problem"""


def overlaps(drawn: Mapping[Split, Sequence[Problem]]) -> Iterator[str]:
    """A sentence for each two splits that share a problem or an id."""
    for (first, ours), (second, theirs) in combinations(drawn.items(), 2):
        known = {_content(problem): problem for problem in ours}
        shared = [problem for problem in theirs if _content(problem) in known]
        if shared:
            example = known[_content(shared[0])]
            text = repr(example.messages[-1].content)[:_SHOWN]
            yield (
                f"splits {first} and {second} share problems, {len(shared)} of {len(theirs)} drawn,"
                f" e.g. {example.id!r} and {shared[0].id!r}: {text}; let the content decide the"
                " split, not position or seed"
            )
            continue
        ids = {problem.id for problem in ours}
        clash = next((p.id for p in theirs if p.id in ids), None)
        if clash is not None:
            yield (
                f"splits {first} and {second} both have a problem with the id {clash!r}; put the"
                " split's name into the id"
            )


def _content(problem: Problem) -> str:
    """What makes two problems the same problem."""
    said = [[message.role, message.content] for message in problem.messages]
    return json.dumps([said, problem.reference], sort_keys=True)
