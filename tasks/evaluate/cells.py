"""The cells of an evaluation: one model on one domain, sampled or greedy."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engines.chat import Chat
from engines.draws import draw_problems
from engines.rollout.drivers.driver import LiveDomain
from engines.rollout.metrics import NOTHINK, most_frequent_reason, share, verdict, way_out
from engines.rollout.records.gallery import Gallery
from engines.rollout.roller import RollsGroups
from engines.rollout.sample_only import KeptRollouts, sample_rollouts
from engines.types import TRAINABLE, Problem, Rollout, Sample, Status
from infra.errors import TrainingStopped
from infra.store.manifest import StageWarning
from rewards.built_in_rewards import PATHOLOGIES
from rewards.pathologies import pathologies_in
from tasks.domain_verdicts import none_judged
from tasks.evaluate.score_statistics import (
    CUTTABLE,
    best_of,
    mean,
    problem_means,
    standard_error,
    verdicts,
)
from tasks.evaluate.spec import EvaluateSpec, SamplingSetting

_SHOWN, _SHOWN_FAILED, _SHOWN_TOKENS = 16, 4, 65_536
"""of a cell, kept for browsing: the first rollouts of so many problems, the same for each model,
and of so many others that failed; as long as they are few tokens"""
FEWEST = 8
"""verdicts from which a rule about them holds: a domain's rewards are at fault that failed as many,
of as many"""


@dataclass(frozen=True, slots=True)
class Cell:
    """What to sample."""

    model: str
    domain: LiveDomain
    problems: Sequence[Problem]
    samples: int
    kind: str
    """`score` at temperature 1, `greedy`, or the name of `setting`"""
    most_turns: int = 0
    """of a rollout, where its turns tell what fewer would have come to; else 0"""
    setting: SamplingSetting | None = None

    @property
    def temperature(self) -> float:
        if self.setting is not None:
            return self.setting.temperature
        return 0.0 if self.kind == "greedy" else 1.0


@dataclass(frozen=True, slots=True)
class CellResult:
    """What came out. A rollout whose verdict failed counts in no score."""

    model: str
    domain: str
    kind: str
    score: float | None
    """mean outcome, 0 to 1, of the problems with a verdict; None: no rollout has one"""
    stderr: float
    """standard error of the score, over problems"""
    rollouts: int
    tokens: int
    """generated"""
    truncated_share: float
    malformed_share: float
    failed_share: float
    failure: str
    """most frequent reason of failed rollouts"""
    outcomes: Sequence[Sequence[float | None]]
    """of each problem's samples, problems in the order of the seed; None: no verdict"""
    turns: Sequence[Sequence[int]] = ()
    """that each of them took"""
    most_turns: int = 0
    """the limit of them; 0 where a lower one would have given other rollouts"""
    pathologies: Mapping[str, Sequence[float | None]] = field(
        default_factory=dict[str, Sequence[float | None]]
    )
    """of those that any rollout shows, the share of each problem's samples that do; None: no sample
    ended in the normal way"""

    @property
    def has_verdict(self) -> bool:
        return self.score is not None

    @property
    def problem_means(self) -> list[float]:
        return [value for value in problem_means(self.outcomes) if value is not None]

    def best_of(self, k: int) -> list[float]:
        """Expected best outcome of k samples, by problem with so many verdicts."""
        return [best_of(of, k) for of in verdicts(self.outcomes) if len(of) >= k]

    @property
    def most_samples(self) -> int:
        """Verdicts on a problem, at most."""
        return max(map(len, verdicts(self.outcomes)), default=0)

    @property
    def asked(self) -> int:
        """Rollouts of which a verdict was asked and not known beforehand: those that ended well."""
        return round(self.rollouts * (1 - self.truncated_share - self.malformed_share))

    @property
    def failed(self) -> int:
        return round(self.rollouts * self.failed_share)


def cells_of(spec: EvaluateSpec, model: str, domains: Sequence[LiveDomain]) -> list[Cell]:
    """Return every cell of a model: at home in full and greedily, elsewhere with fewer samples."""
    settings = spec.settings
    cells: list[Cell] = []
    limits = {d.name: d.max_turns for d in spec.domains if d.driver.name == CUTTABLE}
    for domain in domains:
        most = limits.get(domain.name, 0)
        home = domain.name in spec.home.get(model, [])
        samples = settings.samples if home else settings.samples_elsewhere
        problems = draw_problems(domain.curriculum, "heldout", settings.problems, spec.seed)
        cells.append(Cell(model, domain, problems, samples, "score", most))
        if home:
            cells.append(Cell(model, domain, problems, 1, "greedy"))
            cells += [
                Cell(model, domain, problems, way.samples, way.name, most, way)
                for way in settings.sampling
            ]
    return cells + (_without_thinking(cells) if model in spec.nothink else [])


def that_think(cells: Sequence[Cell], chat: Chat) -> tuple[list[Cell], list[str]]:
    """The cells, those with a budget for thoughts only where this chat has thoughts that can be
    forced; and a sentence for each that is left out, which `check` refuses where it is all."""
    kept, said = list[Cell](), list[str]()
    for cell in cells:
        if why := _not_forced(cell, chat):
            said.append(f"{cell.model} in {cell.domain.name} is not scored as {cell.kind}: {why}")
        else:
            kept.append(cell)
    return kept, said


def _not_forced(cell: Cell, chat: Chat) -> str:
    """Why a cell's thoughts cannot be forced; empty where they can, or need not."""
    if cell.setting is None or not cell.setting.thought:
        return ""
    if not any(map(chat.may_think, cell.problems)):
        return "it has no thoughts there"
    if cell.setting.thought_waits and not chat.thought_end_ids:
        return "its tokenizer has no token for the end of a thought"
    return ""


def _without_thinking(cells: Sequence[Cell]) -> list[Cell]:
    """The cells with thinking off; those that never think are left out, see `mirrored`, and what
    is for thoughts."""
    return [
        replace(
            cell,
            model=cell.model + NOTHINK,
            problems=[replace(p, thinking=False) for p in cell.problems],
        )
        for cell in cells
        if any(p.thinking for p in cell.problems)
        if cell.setting is None or cell.setting.thought is None
    ]


def mirrored(results: Sequence[CellResult], nothink: Sequence[str]) -> list[CellResult]:
    """The results, with those of domains that never think repeated for each NAME-nothink that
    thinks in any.

    Their prompts and seeds are the same in both modes, and so are their rollouts.
    """
    known = {(r.model, r.domain) for r in results}
    switched = {r.model for r in results} & {name + NOTHINK for name in nothink}
    both = [r for r in results if r.model + NOTHINK in switched]
    copies = [replace(r, model=r.model + NOTHINK, tokens=0) for r in both]
    return [*results, *[c for c in copies if (c.model, c.domain) not in known]]


def renamed(results: Sequence[CellResult], original: str, name: str) -> list[CellResult]:
    """The original's results under another name for the same weights."""
    names = {original: name, original + NOTHINK: name + NOTHINK}
    return [replace(r, model=names[r.model]) for r in results if r.model in names]


async def roll_cells(
    roller: RollsGroups, cells: Sequence[Cell], kept: KeptRollouts, gallery: Gallery
) -> list[CellResult]:
    """Roll out all cells of one model at once, so that the servers are never idle; but those of
    each setting on their own: an engine may draw otherwise in a batch with a `top_p`. Raises
    EngineError.

    What `kept` knows is not sampled again, and what is sampled is durable there.
    """
    results: list[CellResult] = []
    for setting in dict.fromkeys(cell.setting for cell in cells):
        sweep = [cell for cell in cells if cell.setting == setting]
        rolled = await asyncio.gather(*[_roll(roller, cell, kept) for cell in sweep])
        await kept.journal.flush()
        for cell, groups in zip(sweep, rolled, strict=True):
            gallery.add(f"{cell.model} {cell.kind}", _shown(groups))
            results.append(_result(cell, groups))
    return results


async def _roll(roller: RollsGroups, cell: Cell, kept: KeptRollouts) -> list[list[Rollout]]:
    return await sample_rollouts(
        roller,
        cell.domain,
        cell.problems,
        samples=cell.samples,
        temperature=cell.temperature,
        kept=kept,
        # two domains of one curriculum have the same problems, and other verdicts
        label=f"{cell.model} {cell.domain.name} {cell.kind}",
        draw=cell.setting.name if cell.setting is not None else 0,
        top_p=cell.setting.top_p if cell.setting is not None else 1.0,
        thought=cell.setting.thought if cell.setting is not None else None,
    )


def _shown(groups: Sequence[Sequence[Rollout]]) -> list[Sample]:
    """Choose those of a cell's rollouts that are browsed, by problem."""
    failed = [r for group in groups[_SHOWN:] for r in group[:1] if r.status is Status.FAILED]
    chosen = [*(group[0] for group in groups[:_SHOWN]), *failed[:_SHOWN_FAILED]]
    shown: list[Sample] = []
    tokens = 0
    for sample in (sample for rollout in chosen for sample in rollout.samples):
        tokens += len(sample.tokens)
        if tokens > _SHOWN_TOKENS:
            break
        shown.append(sample)
    return shown


def turns_of(rollout: Rollout) -> int:
    """That the policy took."""
    return sum(message.role == "assistant" for message in rollout.transcript.messages)


def _result(cell: Cell, groups: Sequence[Sequence[Rollout]]) -> CellResult:
    rollouts = [r for group in groups for r in group]
    firsts = [r.samples[0] for r in rollouts]
    outcomes = [[verdict(r.samples[0]) for r in group] for group in groups]
    means = [value for value in problem_means(outcomes) if value is not None]
    return CellResult(
        model=cell.model,
        domain=cell.domain.name,
        kind=cell.kind,
        score=mean(means) if means else None,
        stderr=standard_error(means),
        rollouts=len(rollouts),
        tokens=sum(r.num_trained_tokens for r in rollouts),
        truncated_share=share(firsts, Status.TRUNCATED),
        malformed_share=share(firsts, Status.MALFORMED),
        failed_share=share(firsts, Status.FAILED),
        failure=most_frequent_reason(firsts),
        outcomes=outcomes,
        turns=[[turns_of(r) for r in group] for group in groups],
        most_turns=cell.most_turns,
        pathologies=_pathologies(groups),
    )


def pathology_rates(results: Sequence[CellResult]) -> dict[str, float]:
    """Metrics, of what was sampled at temperature 1."""
    return {
        f"pathology/{kind}/{r.model}/{r.domain}": mean([s for s in shares if s is not None])
        for r in results
        if r.kind == "score"
        for kind, shares in r.pathologies.items()
    }


def _pathologies(groups: Sequence[Sequence[Rollout]]) -> dict[str, list[float | None]]:
    shown = [
        [pathologies_in(r.transcript) for r in group if r.status in TRAINABLE] for group in groups
    ]
    kinds = [kind for kind in PATHOLOGIES if any(kind in of for group in shown for of in group)]
    return {k: [mean([k in of for of in g]) if g else None for g in shown] for k in kinds}


def warnings_of(results: Sequence[CellResult]) -> Iterator[StageWarning]:
    """Yield warnings by domain. Raises TrainingStopped where a domain's rewards failed every time
    that they were asked, whatever the model, and where nothing has a score."""
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
        if not any(cell.asked for cell in cells):
            yield _none_whole(domain, cells)
        elif _are_all_wrong(cells):
            yield _none_right(domain, cells)
        if failing := [cell for cell in cells if cell.failed]:
            yield _some_failed(domain, failing, len({cell.model for cell in cells}))


def _some_failed(domain: str, cells: Sequence[CellResult], num_models: int) -> StageWarning:
    """Say of which models verdicts failed, and which have no score for that; in one warning, as one
    problem at fault is a fault of each model."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    whose = f"all {num_models} models" if 1 < num_models == len(models) else ", ".join(models)
    how = f" ({_how(cells[0])})" if len(cells) == 1 else ""
    without = ", ".join(f"{c.model} ({_how(c)})" for c in cells if c.score is None)
    left = f"; no score has {without}" if without else "; the scores are of the others"
    failed, asked = sum(c.failed for c in cells), sum(c.asked for c in cells)
    why = max(cells, key=lambda cell: cell.failed).failure
    return StageWarning(
        what=f"{failed} of {asked} verdicts on {whose} in {domain}{how} failed{left}",
        cause=why,
        advice=f"{way_out(why)[:1].lower()}{way_out(why)[1:]}, and evaluate again",
        figures={"failed": failed, "asked": asked},
    )


def _are_all_wrong(cells: Sequence[CellResult]) -> bool:
    """Return whether enough verdicts were given, and all of them say that an answer is wrong."""
    is_wrong = all(cell.score == 0 and not cell.failed for cell in cells)
    return is_wrong and sum(cell.asked for cell in cells) >= FEWEST


def _none_right(domain: str, cells: Sequence[CellResult]) -> StageWarning:
    rollouts = sum(cell.rollouts for cell in cells)
    return StageWarning(
        what=f"no answer of any model in {domain} was right, of {rollouts}",
        cause="its problems are too hard for all of them, or its outcome calls right answers wrong",
        advice="look at the samples with `tributary rollouts`; `tributary check` tries the outcome",
        figures={"rollouts": rollouts},
    )


def _none_whole(domain: str, cells: Sequence[CellResult]) -> StageWarning:
    """Say that no answer to a domain's problems was whole, so that no reward was asked."""
    rollouts = sum(cell.rollouts for cell in cells)
    cut = round(sum(cell.rollouts * cell.truncated_share for cell in cells))
    if cut == rollouts:
        how, cause = "was cut off", "the limit of tokens, turns or context is below what they take"
    elif not cut:
        how, cause = "broke the format", "the models do not write calls or thoughts as they have to"
    else:
        how = "broke the format or was cut off"
        cause = f"{rollouts - cut} are malformed and {cut} truncated"
    longer = f"raise `max_new_tokens` or `max_turns` of {domain}"
    return StageWarning(
        what=f"every rollout of every model in {domain} {how}, so each scores 0",
        cause=cause,
        advice=longer if cut else "give the models a cold start, or correct the chat template",
        figures={"rollouts": rollouts, "truncated": cut},
    )


def _how(cell: CellResult) -> str:
    return "temperature 1" if cell.kind == "score" else cell.kind
