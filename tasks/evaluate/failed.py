"""What an evaluation says of scores that are none: a failed verdict is no score of 0."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from engines.rollout.bounds import way_out
from infra.errors import TrainingStopped
from infra.store.stage_warning import StageWarning
from tasks.evaluate.cells import CellResult
from tasks.verdicts import none_judged

FEWEST = 8
"""verdicts that a domain's rewards must have failed, of as many, to be at fault"""


def warnings_of(results: Sequence[CellResult]) -> Iterator[StageWarning]:
    """By model and domain. Raises TrainingStopped where a domain's rewards failed every time that
    they were asked, whatever the model, and where nothing has a score."""
    by_domain: defaultdict[str, list[CellResult]] = defaultdict(list)
    for result in results:
        by_domain[result.domain].append(result)
    has_scores = any(result.score is not None for result in results)
    for domain, cells in by_domain.items():
        failed, asked = sum(c.failed for c in cells), sum(c.asked for c in cells)
        if 0 < failed == asked and (failed >= FEWEST or not has_scores):
            why = next(cell.failure for cell in cells if cell.failure)
            raise TrainingStopped(none_judged(domain, failed, why, ", so there is no score"))
    if not has_scores:
        raise TrainingStopped("no rollout of any model got a verdict, so there is no score")
    for domain, cells in by_domain.items():
        if all(cell.truncated_share == 1 for cell in cells):
            yield StageWarning(
                what=f"every rollout of every model in {domain} was cut off, so each scores 0",
                cause="the limit of tokens, turns or context is below what an answer takes",
                advice=f"raise `max_new_tokens` or `max_turns` of {domain}",
                figures={"rollouts": sum(cell.rollouts for cell in cells)},
            )
    for result in results:
        if result.failed:
            left = "" if result.score is None else "; the score is of the others"
            yield StageWarning(
                what=f"{result.failed} of {result.asked} verdicts on {result.model} in"
                f" {result.domain} ({_HOW[result.kind]}) failed{left}",
                cause=result.failure,
                advice=f"{way_out(result.failure).lower()}, and evaluate again",
                figures={"failed": result.failed, "asked": result.asked},
            )


_HOW = {"score": "temperature 1", "greedy": "greedy"}
