"""What a stage learns preferences from: all answers as tokens, and which are compared."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from curricula.rows.pairs import Judged
from engines.algorithms.reward_losses import Compares
from engines.batching import Comparison, TokenSequence
from infra.data_files.chunks import LocalFiles
from infra.data_files.files import find_files
from infra.data_files.rows import Rows
from infra.data_files.tally import BadRow, Reason, RowTally, many_left_out
from infra.errors import InputError
from infra.home import home
from infra.store.manifest import StageWarning
from tasks.message_files.render_rows import Renderer
from tasks.preference.made_pairs import made_pairs
from tasks.preference.spec import PreferenceFiles
from tasks.sft.sft_data import SequenceFile, batches_for_steps
from tasks.stage import Reporter, StageContext, Stopped

if TYPE_CHECKING:
    from engines.megatron.ranks.trainer_group import TrainerGroup

_AHEAD = 64
"""rows that are tokenised at once"""
_REFERENCE = "reference.npy"
_TOKENS_A_CALL = 1 << 16
"""that the reference scores, about"""


@dataclass(slots=True)
class Preferences:
    """Rows of all files: their answers, and what is said of these."""

    answers: SequenceFile
    max_tokens: int
    """the model's context"""
    tallies: list[RowTally] = field(default_factory=list[RowTally])
    """of each source"""
    from_what: str = "files"
    names: list[str] = field(default_factory=list[str])
    """of the files, or of the stages that sampled"""
    rows: array[int] = field(default_factory=lambda: array("q"))
    """of each comparison: the number of its row"""
    sides: array[int] = field(default_factory=lambda: array("q"))
    """of all comparisons in turn, the numbers of their answers"""
    sizes: array[int] = field(default_factory=lambda: array("q"))
    """of each comparison: two of a pair, one of an answer alone, all of a list"""
    worth: array[float] = field(default_factory=lambda: array("d"))
    """of each side: what its row says, more being better"""
    margins: array[float] = field(default_factory=lambda: array("d"))
    """of each pair"""
    verdicts: array[int] = field(default_factory=lambda: array("b"))
    """of each answer alone: whether it is good"""

    def add(self, row: Judged, made: Sequence[TokenSequence], compares: Compares) -> None:
        """Take a good row in: as pairs, as a list, or each answer by itself."""
        first, number = len(self.answers), sum(tally.read for tally in self.tallies)
        for sequence in made:
            self.answers.append(sequence)
        match compares:
            case "pairs":
                for better, worse, margin in row.pairs:
                    self._compare(number, (first + better, first + worse), (1.0, 0.0))
                    self.margins.append(margin)
            case "lists":
                worth = (1.0, 0.0) if len(row.pairs) == 1 else row.worth
                self._compare(number, range(first, first + len(made)), worth)
            case _:
                for at, worth in enumerate(row.worth):
                    self._compare(number, (first + at,), (worth,))
        if compares == "verdicts":
            verdicts = [row.is_good] if row.is_good is not None else _alone(row)
            self.verdicts.extend(int(bool(each)) for each in verdicts)

    def _compare(self, row: int, sides: Sequence[int], worth: Sequence[float]) -> None:
        self.rows.append(row)
        self.sides.extend(sides)
        self.sizes.append(len(sides))
        self.worth.extend(worth)


def _alone(row: Judged) -> list[bool]:
    """Of a pair's answers, or of a list's: good are those that more are worse than better."""
    won = Counter(better for better, _, _ in row.pairs)
    lost = Counter(worse for _, worse, _ in row.pairs)
    return [won[at] > lost[at] for at in range(len(row.worth))]


def load_preferences(
    sources: Sequence[PreferenceFiles],
    renderer: Renderer,
    scratch: Path,
    copies: Path,
    compares: Compares,
) -> Preferences:
    """All rows of the files, in their order; `copies`: where fetched files stay. Raises InputError
    where none can be used, TrainingStopped for too many bad rows."""
    found = Preferences(SequenceFile(scratch), renderer.max_tokens)
    for number, source in enumerate(sources):
        files = LocalFiles(find_files(source.files), copies)
        found.names += files.names
        tally = RowTally()
        found.tallies.append(tally)
        for place, row in _judged(source, files, renderer, compares):
            if isinstance(row, BadRow):
                tally.left_out(place, row)
                tally.judge(source.files, files.num_rows, source.max_bad_share)
            else:
                tally.read += 1
                found.add(*row, compares)
        if not tally.read:
            raise InputError(f"data.{number}.files: {', '.join(source.files)} hold no row")
    if not found.sides:
        told = "; ".join(line for tally in found.tallies for line in tally.named)
        raise InputError(f"data: no row can be learned from: {told}")
    if len(set(found.verdicts)) == 1:
        said = "good" if found.verdicts[0] else "bad"
        raise InputError(
            f"data: all {len(found.verdicts)} answers are {said}; `kto` needs some of each"
        )
    return found


_Made = tuple[Judged, list[TokenSequence]]


def _judged(
    source: PreferenceFiles, files: LocalFiles, renderer: Renderer, compares: Compares
) -> Iterator[tuple[str, _Made | BadRow]]:
    """Each row with its place in its file."""
    for chunk in files.chunks:
        rows = files.read(chunk)
        for start in range(0, len(rows), _AHEAD):
            ahead = range(start, min(start + _AHEAD, len(rows)))
            read = [_read(source, rows, index, compares) for index in ahead]
            said = [c for row in read if isinstance(row, Judged) for c in row.answers]
            made = iter(renderer.render_all(said))
            for index, row in zip(ahead, read, strict=True):
                place = f"{files.names[chunk.file]}:{rows.line(index)}"
                yield place, row if isinstance(row, BadRow) else _whole(row, made)


def _read(source: PreferenceFiles, rows: Rows, index: int, compares: Compares) -> Judged | BadRow:
    try:
        row = source.judged(rows.row(index))
    except BadRow as error:
        return error
    fault = row_fault(row, compares)
    return BadRow(Reason.COLUMNS, fault) if fault else row


def row_fault(row: Judged, compares: Compares) -> str:
    """Why a loss cannot learn from a row, in words; empty if it can."""
    match compares:
        case "pairs" | "lists" if not row.pairs:
            if row.is_good is not None:
                return (
                    "has one answer with a verdict, which `kto` and `binary` learn; this loss"
                    " compares answers"
                )
            return (
                "has one answer with a score, which `regression` learns; this loss compares answers"
            )
        case "verdicts" if row.is_good is None and not row.pairs:
            return "has one answer with a score; `kto` learns from a `label`, true or false"
        case "scores" if not row.has_scores:
            return (
                "says which answer is better, and no score of each, which `regression` learns;"
                " take the loss `bradley-terry` or `plackett-luce`"
            )
        case "goodness" if any(not 0 <= worth <= 1 for worth in row.worth):
            return (
                "says of an answer how good it is by a number that is not from 0 to 1; take the"
                " loss `regression` for scores, or `plackett-luce` for ranks"
            )
        case _:
            return ""


def _whole(row: Judged, made: Iterator[TokenSequence | BadRow]) -> _Made | BadRow:
    """All of a row's answers, or what is wrong with the first bad one."""
    sequences = [next(made) for _ in row.answers]
    for name, sequence in zip(row.names, sequences, strict=True):
        if isinstance(sequence, BadRow):
            return BadRow(sequence.reason, f"{name}: {sequence}")
    return row, [each for each in sequences if isinstance(each, TokenSequence)]


def opened_preferences(
    sources: Sequence[PreferenceFiles] | None, context: StageContext, compares: Compares
) -> Preferences:
    """Without sources the answers of `inputs["data"]`. Raises what `load_preferences` raises."""
    renderer = Renderer.of_model(context.inputs["model"])
    scratch = context.scratch / "sequences"
    if sources is None:
        found = Preferences(SequenceFile(scratch), renderer.max_tokens)
        take_answers(found, context.inputs["data"], compares)
        return found
    # Beside the attempt's own folder: the next attempt need not fetch and unpack files again.
    copies = home() / "cache" / "files"
    return load_preferences(sources, renderer, scratch, copies, compares)


def take_answers(found: Preferences, dataset: Path, compares: Compares) -> None:
    """Take in the best and the worst answer to each problem. Raises what `made_pairs` raises."""
    tally = RowTally()
    found.tallies.append(tally)
    found.from_what = "answers"
    for better, worse in made_pairs(dataset):
        made = [TokenSequence(list(row.tokens), list(row.loss_mask)) for row in (better, worse)]
        worth = (better.rewards["outcome"], worse.rewards["outcome"])
        found.names += [] if better.expert in found.names else [better.expert]
        tally.read += 1
        pairs = ((0, 1, worth[0] - worth[1]),)
        found.add(Judged((), pairs, None, worth, has_scores=True), made, compares)


class Batches(Protocol):
    """Of a stage's settings."""

    @property
    def steps(self) -> int: ...

    @property
    def batch_size(self) -> int: ...


class PreferenceSupply:
    """Comparisons in an order that follows from the seed; a step's number says what is in its
    batch."""

    def __init__(
        self,
        settings: Batches,
        seed: int,
        found: Preferences,
        context: StageContext,
        *,
        has_reference: bool,
    ) -> None:
        """Answers with verdicts have another row's beside them, and are learned against a
        reference."""
        self._seed, self._found, self._context = seed, found, context
        self._size, self._steps = settings.batch_size, settings.steps
        self._sides = np.array(found.sides, np.int64)
        self._ends = np.cumsum(found.sizes)
        self._trained = np.arange(len(self._ends))
        """numbers of the comparisons that are learned"""
        self._others = _others(len(found.answers), seed) if found.verdicts else None
        self._has_reference = has_reference
        self.reference: NDArray[np.float64] | None = None
        """[answers, 2] the reference's logprob of each answer, and of the other behind its
        prompt"""

    def __len__(self) -> int:
        return len(self._trained)

    def report(self, reporter: Reporter, stage: str) -> None:
        reporter.dataset(
            stage, len(self), f"{self._found.from_what} {', '.join(self._found.names)}"[:500]
        )
        for tally in self._found.tallies:
            for line in tally.named:
                reporter.warn(f"left out: {line}")

    def batches(self, start: int, stop: int) -> list[list[Comparison]]:
        drawn = batches_for_steps(len(self), self._size, self._seed, start, stop)
        return [[self._comparison(self._trained[at]) for at in batch] for batch in drawn]

    async def begin(self, trainer: TrainerGroup) -> None:
        """Have the model that the stage begins with, which is the reference, score all answers
        that will be compared. Raises Stopped."""
        if not self._has_reference:
            return
        reference = np.zeros((len(self._found.answers), 2))
        asked = self._compared()
        for first, last, sequences in self._calls(asked):
            self._context.reporter.progress(first, len(asked), "answers scored by the reference")
            if self._context.stop.requested:
                raise Stopped("stopped before the first step: the stage begins anew")
            sums = np.array(await trainer.answer_logprobs(sequences))
            columns = len(sequences) // (last - first)
            reference[asked[first:last], :columns] = sums.reshape(-1, columns)
        self.reference = reference

    def _compared(self) -> list[int]:
        """Numbers of all answers that the steps compare."""
        numbers = self._trained
        if self._steps * self._size < len(self):
            drawn = batches_for_steps(len(self), self._size, self._seed, 0, self._steps)
            numbers = self._trained[[at for batch in drawn for at in batch]]
        return np.unique([side for n in numbers for side in self._sides[self._of(n)]]).tolist()

    def _of(self, number: int | np.int64) -> slice:
        """Which of the sides a comparison has."""
        end = int(self._ends[number])
        return slice(end - self._found.sizes[number], end)

    def _calls(self, asked: Sequence[int]) -> Iterator[tuple[int, int, list[TokenSequence]]]:
        """What the reference is asked at once, by places in `asked`. How much does not hang on the
        clock: a repeated attempt gets the same bits."""
        first, tokens, sequences = 0, 0, list[TokenSequence]()
        for at, answer in enumerate(asked):
            own = self._found.answers[answer]
            sequences += [own] if self._others is None else [own, self._other(answer, own)]
            tokens += 2 * len(own.tokens)
            if tokens >= _TOKENS_A_CALL or at == len(asked) - 1:
                yield first, at + 1, sequences
                first, tokens, sequences = at + 1, 0, []

    def _comparison(self, number: int | np.int64) -> Comparison:
        found, sides = self._found, self._sides[self._of(number)].tolist()
        answers = [found.answers[each] for each in sides]
        reference = self.reference
        if self._others is None:
            said = [] if reference is None else reference[sides, 0].tolist()
            margin = found.margins[number] if found.margins else 0.0
            worth = found.worth[self._of(number)].tolist()
            return Comparison(answers, margin=margin, reference=said, worth=worth)
        said = [] if reference is None else reference[sides[0]].tolist()
        other = self._other(sides[0], answers[0])
        return Comparison(answers, bool(found.verdicts[number]), reference=said, other=other)

    def _other(self, answer: int, own: TokenSequence) -> TokenSequence:
        """Another row's answer behind this one's prompt, cut where the model's context ends."""
        assert self._others is not None
        asked = own.loss_mask.index(1)
        other = self._found.answers[self._others[answer]]
        said = slice(other.loss_mask.index(1), None)
        tokens = [*own.tokens[:asked], *other.tokens[said]][: self._found.max_tokens]
        mask = [*[0] * asked, *other.loss_mask[said]][: len(tokens)]
        return TokenSequence(tokens, mask)

    async def finish(self, trainer: TrainerGroup) -> None:
        """Nothing is needed."""

    def warnings(self) -> Iterator[str]:
        yield from ()

    def conclusions(self) -> Iterator[StageWarning]:
        yield from many_left_out(self._found.tallies)

    def save(self, folder: Path) -> None:
        if self.reference is not None:
            np.save(folder / _REFERENCE, self.reference)

    def restore(self, folder: Path) -> None:
        if (folder / _REFERENCE).exists():
            self.reference = np.load(folder / _REFERENCE)

    def summary(self) -> Mapping[str, float]:
        tallies = self._found.tallies
        bad = sum((each.bad for each in tallies), start=Counter[str]())
        return {
            "rows": float(sum(each.read for each in tallies)),
            "bad_rows": float(bad.total()),
            **{f"bad_rows_{reason}": float(count) for reason, count in sorted(bad.items())},
            "comparisons": float(len(self)),
            "trained_share": self._found.answers.trained / self._found.answers.tokens,
        }


def _others(count: int, seed: int) -> list[int]:
    """For each answer another one, each once."""
    order = random.Random(f"{seed}/others").sample(range(count), count)
    others = [0] * count
    for at, answer in enumerate(order):
        others[answer] = order[at - 1]
    return others
