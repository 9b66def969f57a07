"""What a stage learns preferences from: all answers as tokens, and which are compared."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from curricula.rows.pairs import Judged
from engines.algorithms.reward_losses import Compares
from engines.batching import Comparison, TokenSequence
from infra.data_files.chunks import LocalFiles
from infra.data_files.files import find_files
from infra.data_files.rows import BadRow, Reason, Rows, RowTally, by_fault, many_left_out
from infra.errors import InputError
from infra.home import home
from infra.store.manifest import StageWarning
from tasks.message_files.render_rows import Renderer, WithoutThoughts
from tasks.preference.made_pairs import conversation_of, made_pairs
from tasks.preference.row_faults import fault_beside, row_fault
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
_Made = tuple[Judged, list[TokenSequence]]


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
    scores_are_margins: bool = False
    """whether the scores of a pair's answers say its margin, where no column does"""
    prompts: array[int] = field(default_factory=lambda: array("q"))
    """of each comparison: the number of what its answers follow"""
    sides: array[int] = field(default_factory=lambda: array("q"))
    """of all comparisons in turn, the numbers of their answers"""
    sizes: array[int] = field(default_factory=lambda: array("q"))
    """of each comparison: two of a pair, one of an answer alone, all of a list"""
    worth: array[float] = field(default_factory=lambda: array("d"))
    """of each side: what its row says, more being better"""
    margins: array[float] = field(default_factory=lambda: array("d"))
    """of each pair: by how much a reward model is to tell its answers apart"""
    verdicts: array[int] = field(default_factory=lambda: array("b"))
    """of each answer alone: whether it is good"""
    _numbers: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """of prompts, by their digests"""

    def add(self, row: Judged, made: Sequence[TokenSequence], compares: Compares) -> None:
        """Take a good row in: as pairs, as a list, or each answer by itself."""
        first, number = len(self.answers), self._number(made[0])
        for sequence in made:
            self.answers.append(sequence)
        match compares:
            case "pairs":
                for better, worse, margin in row.pairs:
                    worth = (row.worth[better], row.worth[worse])
                    self._compare(number, (first + better, first + worse), worth)
                    asks = row.has_margin or (row.has_scores and self.scores_are_margins)
                    self.margins.append(margin if asks else 0.0)
            case "lists":
                self._compare(number, range(first, first + len(made)), row.worth)
            case _:
                said = row.goodness if compares == "goodness" else row.worth
                for at, worth in enumerate(said):
                    self._compare(number, (first + at,), (worth,))
        if compares == "verdicts":
            verdicts = [row.is_good] if row.is_good is not None else _alone(row)
            self.verdicts.extend(int(bool(each)) for each in verdicts)

    def _number(self, answer: TokenSequence) -> int:
        """Return the number of the prompt that it follows."""
        prompt = array("q", answer.tokens[: answer.loss_mask.index(1)])
        digest = blake2b(prompt, digest_size=16).digest()
        return self._numbers.setdefault(digest, len(self._numbers))

    def _compare(self, prompt: int, sides: Sequence[int], worth: Sequence[float]) -> None:
        self.prompts.append(prompt)
        self.sides.extend(sides)
        self.sizes.append(len(sides))
        self.worth.extend(worth)


def _alone(row: Judged) -> list[bool]:
    """Tell which of a pair's answers, or of a list's, are good: those that more are worse than
    better."""
    won = Counter(better for better, _, _ in row.pairs)
    lost = Counter(worse for _, worse, _ in row.pairs)
    return [won[at] > lost[at] for at in range(len(row.worth))]


def load_preferences(
    sources: Sequence[PreferenceFiles],
    renderer: Renderer,
    found: Preferences,
    copies: Path,
    compares: Compares,
) -> None:
    """Take in all rows of the files, in their order; `copies`: where fetched files stay. Raises
    InputError where none can be used, TrainingStopped for too many bad rows."""
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
            raise InputError(f"data.{number}.files: no row in {', '.join(source.files)}")


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


def _whole(row: Judged, made: Iterator[TokenSequence | BadRow]) -> _Made | BadRow:
    """All of a row's answers, or what is wrong with them."""
    sequences = [next(made) for _ in row.answers]
    for name, sequence in zip(row.names, sequences, strict=True):
        if isinstance(sequence, BadRow):
            return BadRow(sequence.reason, f"{name}: {sequence}")
    whole = [each for each in sequences if isinstance(each, TokenSequence)]
    fault = fault_beside(row.names, whole)
    return BadRow(Reason.TEMPLATE, fault) if fault else (row, whole)


def opened_preferences(
    sources: Sequence[PreferenceFiles] | None,
    context: StageContext,
    compares: Compares,
    *,
    scores_are_margins: bool = False,
    shows_thoughts: bool = True,
) -> Preferences:
    """Open the preferences; without sources the answers of `inputs["data"]`. Raises what
    `load_preferences` raises."""
    kind = Renderer if shows_thoughts else WithoutThoughts
    renderer = kind.of_model(context.inputs["model"])
    answers = SequenceFile(context.scratch / "sequences")
    found = Preferences(answers, renderer.max_tokens, scores_are_margins=scores_are_margins)
    if sources is None:
        take_answers(found, context.inputs["data"], compares, None if shows_thoughts else renderer)
    else:
        # Beside the attempt's own folder: the next attempt need not fetch and unpack files again.
        load_preferences(sources, renderer, found, home() / "cache" / "files", compares)
    _require_some(found)
    return found


def _require_some(found: Preferences) -> None:
    """Raises InputError where nothing can be learned."""
    if not found.sides:
        told = "; ".join(tally.said for tally in found.tallies if tally.named)
        raise InputError(f"data: no row can be learned from: {told}")
    if len(set(found.verdicts)) == 1:
        said = "good" if found.verdicts[0] else "bad"
        raise InputError(
            f"data: all {len(found.verdicts)} answers are {said}; `kto` needs some of each"
        )


def take_answers(
    found: Preferences, dataset: Path, compares: Compares, renderer: Renderer | None = None
) -> None:
    """Take in the best and the worst answer to each problem, as they were sampled or, with a
    renderer, as that writes them. Raises what `made_pairs` raises."""
    tally = RowTally()
    found.tallies.append(tally)
    found.from_what = "answers"
    for both in made_pairs(dataset):
        better, worse = both
        worth = (better.rewards["outcome"], worse.rewards["outcome"])
        said = tuple(map(conversation_of, both))
        row = Judged(said, ((0, 1, worth[0] - worth[1]),), None, worth, has_scores=True)
        made: list[TokenSequence | BadRow] = [
            TokenSequence(list(each.tokens), list(each.loss_mask)) for each in both
        ]
        whole = _whole(row, iter(renderer.render_all(said) if renderer else made))
        if isinstance(whole, BadRow):
            tally.left_out(f"problem {better.problem.id}", whole)
            continue
        found.names += [] if better.expert in found.names else [better.expert]
        tally.read += 1
        found.add(*whole, compares)


class Batches(Protocol):
    """The batches of a stage's settings."""

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
        self._others = other_answers(found.prompts, seed) if found.verdicts else None
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
            for line in by_fault(tally.named):
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
        """Return which of the sides a comparison has."""
        end = int(self._ends[number])
        return slice(end - self._found.sizes[number], end)

    def _calls(self, asked: Sequence[int]) -> Iterator[tuple[int, int, list[TokenSequence]]]:
        """Yield what the reference is asked at once, by places in `asked`. How much does not hang
        on the clock: a repeated attempt gets the same bits."""
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


def other_answers(prompts: Sequence[int], seed: int) -> list[int]:
    """Choose for each answer one to another prompt, where there is another."""
    told: dict[int, list[int]] = {}
    for answer, prompt in enumerate(prompts):
        told.setdefault(prompt, []).append(answer)
    order = random.Random(f"{seed}/others").sample(list(told), len(told))
    others = [0] * len(prompts)
    for at, prompt in enumerate(order):
        before = told[order[at - 1]]
        for place, answer in enumerate(told[prompt]):
            others[answer] = before[place % len(before)]
    return others
