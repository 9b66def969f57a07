"""The `files` curriculum: prompts from files, mixed by weight, each epoch in its own order."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from curricula.prompt_files.contamination import HeldOutWords
from curricula.prompt_files.index import SPLITS, Counts, RowIndex, open_index
from curricula.prompt_files.prompt import Prompt, read_prompt
from curricula.prompt_files.spec import PromptFiles
from curricula.splits import EpochOrders
from engines.types import Demonstration, Message, Problem, Split
from infra.data_files.rows import BadRow, Reason, by_fault, many_left_out
from infra.errors import InputError
from infra.store.manifest import StageWarning


class Mixture:
    """Turns by position, remembered as far as they were asked for.

    Example: Mixture([3.0, 1.0]): positions 0 to 3 are of sources 0, 0, 0, 1, and so on.
    """

    def __init__(self, weights: Sequence[float], most: Sequence[int] | None = None) -> None:
        """`most`: how often each source can have a turn; None: without end."""
        self._weights, self._most = list(weights), most
        self._taken = [0] * len(self._weights)
        self._sources, self._ordinals = array("H"), array("q")

    def turn(self, position: int) -> tuple[int, int] | None:
        """The source of a position, and how many turns it had before; None after the last."""
        while len(self._sources) <= position:
            ready = [
                ((taken + 1) / weight, number)
                for number, (taken, weight) in enumerate(
                    zip(self._taken, self._weights, strict=True)
                )
                if self._most is None or taken < self._most[number]
            ]
            if not ready:
                return None
            number = min(ready)[1]
            self._sources.append(number)
            self._ordinals.append(self._taken[number])
            self._taken[number] += 1
        return self._sources[position], self._ordinals[position]


_HOLD_OUT = (
    "raise shares.heldout (a tenth of 50 rows or more leaves some), or name files to hold out: by"
    " --held-out of a command, by `split: heldout` of a source"
)
_FEW_HELD_OUT = 20


class Files:
    """Problems by split and position; an epoch ends when all rows of its source were drawn.

    A problem's id is SOURCE/SPLIT/ID, with @2 in the second epoch and so on; its metadata name the
    source. The held-out split ends with its last row. The files are read when something of them is
    first asked for, so that a process which only judges needs none; that raises InputError,
    StorageError, and TrainingStopped for too many bad rows.
    """

    name = "files"

    def __init__(self, **options: Any) -> None:
        """`options`: `curricula.prompt_files.spec.PromptFiles`. Raises InputError."""
        try:
            self._settings = PromptFiles.model_validate(options)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InputError(
                f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"
            ) from None
        self._sources = self._settings.sources
        self._mixtures: dict[Split, tuple[list[int], Mixture]] = {}
        self._orders = EpochOrders()

    @cached_property
    def _index(self) -> RowIndex:
        return open_index(self._settings)

    @property
    def counts(self) -> Sequence[Counts]:
        """Return what became of the rows, by source."""
        return self._index.counts

    @property
    def left_out(self) -> Iterator[str]:
        """Sentences on the rows that are no problems, on columns that nothing reads, and on too few
        held-out rows."""
        for counts in self.counts:
            at = f"source {counts.source}"
            yield from (f"{at}: {choice}" for choice in counts.choices)
            if counts.unread:
                looks = " or ".join(counts.layouts)
                yield f"{at}: read as {looks}; not read: {', '.join(sorted(counts.unread))}"
            if counts.bad:
                reasons = ", ".join(f"{n} {why}" for why, n in counts.bad.items())
                first = "; ".join(by_fault(counts.named[:3]))
                yield f"{at}: {sum(counts.bad.values())} bad rows left out ({reasons}): {first}"
            if counts.duplicates:
                yield f"{at}: {counts.duplicates} rows left out, as an earlier one has their prompt"
            if counts.contradicting:
                yield (
                    f"{at}: {counts.contradicting} of these rows contradict the earlier one, whose"
                    " reference counts: they have its prompt and another reference. Correct them:"
                    f" {'; '.join(counts.contradictions[:3])}"
                )
            if counts.contaminated:
                yield (
                    f"{at}: {counts.contaminated} rows are not trained on, as they share words with"
                    f" held-out ones: {'; '.join(counts.hits[:3])}"
                )
        if 0 < (held_out := self.num_rows("heldout")) < _FEW_HELD_OUT:
            yield (
                f"only {held_out} rows are held out, so that one answer moves a score by"
                f" {100 / held_out:.0f} points: {_HOLD_OUT}"
            )

    @property
    def warnings(self) -> Iterator[StageWarning]:
        """That many rows are bad, or repeat what is held out."""
        return many_left_out([counts.tally for counts in self.counts])

    def leave_out(
        self, fault_of: Callable[[Problem], str], num_bytes: int, *, is_judged: bool
    ) -> None:
        """Take rows of more than so many bytes out whose prompts are too long, as `fault_of` says
        now that the model is known. `is_judged`: raises TrainingStopped for too many bad rows."""
        for number, source in enumerate(self._sources):
            added = len(f"{source.system}{source.instruction}".encode())
            for split in SPLITS:
                places = self._index.longer_than(number, split, num_bytes - added)
                found = {at: fault_of(self._made(number, split, at)[0]) for at in places}
                bad = [at for at in places if found[at]]
                for at in bad:
                    where = self._index.row(number, split, at)[1]
                    self.counts[number].leave_out(where, BadRow(Reason.TOO_LONG, found[at]))
                self._index.leave_out(number, split, bad)
            counts = self.counts[number]
            if is_judged and counts.bad:
                counts.tally.judge(source.files, counts.read, source.max_bad_share)
        self._mixtures.clear()
        self._orders = EpochOrders()

    def num_rows(self, split: Split) -> int:
        return sum(self._index.num_rows(n, split) for n in range(len(self._sources)))

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        """Raises InputError for a split without rows, and a held-out one with too few."""
        self._require(split, start + count)
        return [self._problem(split, seed, at)[0] for at in range(start, start + count)]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        """Solved rows of the `sft` split. Raises InputError for rows that show no solution."""
        self._require("sft", count)
        return list(self._shown("sft", range(count), seed))

    def examples(self, count: int, seed: int) -> Sequence[Demonstration]:
        """Solved rows of any split, to try rewards with; none where no row shows a solution."""
        found: list[Demonstration] = []
        for split in SPLITS:
            there = range(min(count, self.num_rows(split)))
            for at in there:
                problem, prompt = self._problem(split, seed, at)
                if prompt.solution and len(found) < count:
                    found.append(self._demonstration(problem, prompt))
        return found

    def add_held_out(self, words: HeldOutWords) -> None:
        """Add all rows of the held-out split."""
        for position in range(self.num_rows("heldout")):
            problem, prompt = self._problem("heldout", 0, position)
            words.add(problem.id, prompt.text_asked)

    def environment(self) -> None:
        return None

    def _require(self, split: Split, count: int) -> None:
        there = self.num_rows(split)
        if not there:
            hint = {"rl": "lower the other shares", "heldout": _HOLD_OUT}
            raise InputError(
                f"no row is in the split {split!r}; {hint.get(split, f'set shares.{split}')}, or"
                " add files"
            )
        if split == "heldout" and count > there:
            raise InputError(
                f"{count} held-out problems are wanted, but only {there} rows are held out; set"
                f" evaluate.problems to {there} or less, or raise shares.heldout"
            )

    def _shown(self, split: Split, places: range, seed: int) -> Iterator[Demonstration]:
        for at in places:
            problem, prompt = self._problem(split, seed, at)
            if not prompt.solution:
                raise InputError(
                    f"{problem.id} shows no solution to learn from; name the column that has one in"
                    " columns.solution"
                )
            yield self._demonstration(problem, prompt)

    def _demonstration(self, problem: Problem, prompt: Prompt) -> Demonstration:
        # The files know answers, not the thoughts that lead there.
        thought = "so" if problem.thinking else None
        return Demonstration(problem, (Message("assistant", prompt.solution, reasoning=thought),))

    def _problem(self, split: Split, seed: int, position: int) -> tuple[Problem, Prompt]:
        with_rows, mixture = self._mixture(split)
        turn = mixture.turn(position)
        assert turn is not None, "`_require` counted them"
        number, ordinal = with_rows[turn[0]], turn[1]
        rows = self._index.num_rows(number, split)
        epoch, place = divmod(ordinal, rows)
        name = self._sources[number].name
        order = self._orders.of((split, number), rows, f"{seed}/{split}/{name}/{epoch}")
        return self._made(number, split, order[place], f"@{epoch + 1}" if epoch else "")

    def _made(
        self, number: int, split: Split, place: int, epoch: str = ""
    ) -> tuple[Problem, Prompt]:
        """Make the problem of the row at a place of the index."""
        its_id, where, row = self._index.row(number, split, place)
        prompt, name = read_prompt(row, self._sources[number]), self._sources[number].name
        metadata: Mapping[str, Any] = {**prompt.metadata, "source": name}
        problem = Problem(
            id=f"{name}/{split}/{its_id}{epoch}",
            domain=self.name,
            messages=prompt.messages,
            reference=prompt.reference,
            tools=prompt.tools,
            thinking=self._settings.thinking if prompt.thinking is None else prompt.thinking,
            metadata=metadata,
            row=where,
        )
        return problem, prompt

    def _mixture(self, split: Split) -> tuple[list[int], Mixture]:
        """The sources that have rows of the split, and their turns."""
        if split not in self._mixtures:
            numbers = [n for n in range(len(self._sources)) if self._index.num_rows(n, split)]
            weights = [self._sources[n].weight for n in numbers]
            most = [self._index.num_rows(n, split) for n in numbers]
            self._mixtures[split] = numbers, Mixture(weights, most if split == "heldout" else None)
        return self._mixtures[split]
