"""What a supervised stage trains on: sequences, and the order in which they come."""

from __future__ import annotations

import os
import random
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, overload

import numpy as np

from engines.batching import TokenSequence
from engines.draws import draw_demonstrations
from engines.types import Message, Problem
from infra.errors import InputError
from infra.hooks import resolve
from tasks.nothink import RepeatedShare
from tasks.sft.spec import ONLY_ADMITTED
from tasks.stage import ADMITTED

if TYPE_CHECKING:
    from engines.chat import Chat
    from engines.rollout.records.dataset import DistilledRow
    from tasks.sft.spec import SftSpec


_NAMED = 5
"""conversations left out that are named"""
_Source: TypeAlias = "Callable[[], Iterator[_Solved]]"
"""the same conversations each time"""


@dataclass(frozen=True, slots=True)
class SftData:
    """Tokenised conversations; how many were left out and why."""

    sequences: SequenceFile
    source: str
    too_long: int = 0
    without_thinking: int = 0
    """thinking samples repeated with the thinking removed"""
    unrendered: Sequence[str] = ()
    """conversations left out, as the chat template does not write them as they were said: which,
    and why"""


@dataclass(frozen=True, slots=True)
class _Solved:
    """A conversation, with its tokens where an expert sampled it."""

    place: int
    """in its source"""
    rollout: tuple[str, str, int]
    """expert, problem and sample: the same for all branches of a rollout"""
    problem: Problem
    turns: tuple[Message, ...]
    sequence: TokenSequence | None = None
    """None: as the template writes it"""


def load_data(spec: SftSpec, model: Path, inputs: Mapping[str, Path], scratch: Path) -> SftData:
    """Sequences for the model's own tokenizer, of the dataset or the admitted problems among the
    stage's inputs where there are any; they are kept in `scratch`. Raises InputError when none is
    usable."""
    from engines.chat import Chat
    from engines.families.common.model_config import read_config
    from engines.families.common.registry import model_shape

    longest = model_shape(read_config(model)).max_positions
    chat = Chat.load(model)
    unrendered: list[str] = []
    if spec.curriculum is not None:
        source = f"curriculum {spec.curriculum.name}"
        solved = _demonstrations(spec, chat, inputs.get(ADMITTED))
    else:
        source = "distilled dataset"
        solved = partial(_distilled, chat, inputs.get("data"))
    share, seed = spec.settings.nothink_share, spec.seed
    sequences = SequenceFile(scratch)
    thinking: dict[tuple[str, str, int], tuple[str, int]] = {}
    """domains and places by rollout: each branch has its rollout's whole conversation, so once is
    enough"""
    num_made = num_bare = 0
    for each in solved():
        made = each.sequence or _rendered(chat, each.problem, each.turns, unrendered)
        if made is None:
            continue
        num_made += 1
        if len(made.tokens) <= longest:
            sequences.append(made)
        if share and each.problem.thinking:
            thinking[each.rollout] = each.problem.domain, each.place
    if thinking:
        chat.require_thinking_switch()
    chosen = _chosen(list(thinking.values()), share, seed)
    for made in _without_thinking(solved, chosen, chat, unrendered, scratch):
        num_bare += 1
        if len(made.tokens) <= longest:
            sequences.append(made)
    num_made += num_bare
    too_long = num_made - len(sequences)
    if not sequences.trained:
        why = f"; {said_of_unrendered(unrendered)}" if unrendered else ""
        raise InputError(
            f"the {source} gives no sequence to train on: {num_made} were made, "
            f"{too_long} of them longer than the model's {longest} tokens{why}"
        )
    return SftData(sequences, source, too_long, num_bare, unrendered)


def said_of_unrendered(unrendered: Sequence[str]) -> str:
    """Return how many there are, and the first of them with the reason."""
    first = "; ".join(unrendered[:_NAMED])
    return f"{len(unrendered)} conversations cannot be rendered and were left out: {first}"


def each_alike(batch: Sequence[TokenSequence]) -> list[TokenSequence]:
    """The batch with weights that make the mean over its trained tokens one over its sequences: of
    each one's own mean. A sequence without a trained token counts as none; its first token is
    never trained, whatever its mask says, as nothing is before it."""
    lengths = [sum(sequence.loss_mask[1:]) for sequence in batch]
    mean = sum(lengths) / max(sum(map(bool, lengths)), 1)
    return [
        replace(sequence, weight=sequence.weight * mean / length) if length else sequence
        for sequence, length in zip(batch, lengths, strict=True)
    ]


def batches_for_steps(
    count: int, batch_size: int, seed: int, start: int, stop: int
) -> list[list[int]]:
    """Indices of the batches of steps `start` to `stop` - 1, out of `count` samples.

    Epochs are laid end to end, each in an order of its own that follows from the seed alone, so a
    resumed run sees what an undisturbed one would. A batch may span two epochs.
    """

    def sample(position: int) -> int:
        epoch, place = divmod(position, count)
        return _order(count, seed, epoch)[place]

    return [
        [sample(position) for position in range(step * batch_size, (step + 1) * batch_size)]
        for step in range(start, stop)
    ]


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Sequence[int]:
    """Kept for two epochs, as a batch may span them: a million numbers take most of a second."""
    return array("q", random.Random(f"{seed}/{epoch}").sample(range(count), count))


def _demonstrations(spec: SftSpec, chat: Chat, admitted: Path | None) -> _Source:
    from curricula.built_in_curricula import build

    assert spec.curriculum is not None
    curriculum = build(spec.curriculum.name, spec.curriculum.options, spec.curriculum.mcp)
    if admitted is not None:
        curriculum = resolve("admitted problems", ONLY_ADMITTED, {})(curriculum, admitted)
    drawn = draw_demonstrations(curriculum, spec.settings.demonstrations, spec.seed)
    solved = [
        _Solved(place, ("", shown.problem.id, place), shown.problem, shown.turns)
        for place, shown in enumerate(map(chat.mode.decided_demonstration, drawn))
    ]
    return lambda: iter(solved)


def _distilled(chat: Chat, dataset: Path | None) -> Iterator[_Solved]:
    """Tokens as the experts sampled them; text is not tokenised again."""
    from engines.rollout.records.dataset import dataset_rows, read_formats

    if dataset is None:
        raise InputError("supervised training needs a `curriculum` or the input `data`")
    formats, checked = read_formats(dataset), set[str]()
    for place, row in enumerate(dataset_rows(dataset)):
        if row.expert not in checked:
            _check_same_format(chat, row, formats.get(row.expert))
            checked.add(row.expert)
        rollout = (row.expert, row.problem.id, row.sample_index)
        sequence = TokenSequence(list(row.tokens), list(row.loss_mask))
        yield _Solved(place, rollout, row.problem, row.turns, sequence)


def _check_same_format(chat: Chat, row: DistilledRow, checksum: str | None) -> None:
    """By the checksum of the chat that sampled it. A dataset without one is not `distill`'s: there
    a row must begin with its problem's prompt, as those of the driver `conversation` do."""
    prompt = chat.prompt_ids(row.problem) if checksum is None else []
    is_same = checksum in (None, chat.format_checksum) and list(row.tokens[: len(prompt)]) == prompt
    if not is_same:
        differs = f": the prompt of {row.problem.id} differs" if checksum is None else ""
        raise InputError(
            f"the dataset's samples of expert {row.expert} were made with another tokenizer or "
            f"chat template than this model's{differs}. Experts and the unified model must start "
            "from the same base"
        )


def _chosen(thinking: Sequence[tuple[str, int]], share: RepeatedShare, seed: int) -> list[int]:
    """Places of a share of the rollouts, which are given by domain and place. Raises InputError for
    a domain of which there is none."""
    if not isinstance(share, dict):
        places = [place for _, place in thinking]
        return random.Random(f"{seed}/nothink").sample(places, round(share * len(places)))
    chosen: list[int] = []
    for domain, own in sorted(share.items()):
        places = [place for name, place in thinking if name == domain]
        if not places:
            raise InputError(
                f"nothink_share.{domain}: no answer of {domain} has a thought to leave out; leave"
                " the domain out"
            )
        rng = random.Random(f"{seed}/nothink/{domain}")
        chosen += rng.sample(places, round(own * len(places)))
    return chosen


def _without_thinking(
    solved: _Source,
    chosen: Sequence[int],
    chat: Chat,
    unrendered: list[str],
    scratch: Path,
) -> Iterator[TokenSequence]:
    """The thinking rollouts at these places once more, rendered with thinking off."""
    if not chosen:
        return
    # rendered in the order of the source, which is read once, and given in the order of the draw
    rendered, wanted = SequenceFile(scratch), set(chosen)
    made: dict[int, int | str] = {}
    """by place, the number of what was rendered or why it was not"""
    for each in (each for each in solved() if each.place in wanted):
        why: list[str] = []
        turns = tuple(replace(turn, reasoning=None) for turn in each.turns)
        sequence = _rendered(chat, replace(each.problem, thinking=False), turns, why)
        made[each.place] = len(rendered) if sequence is not None else why[0]
        if sequence is not None:
            rendered.append(sequence)
    for found in map(made.__getitem__, chosen):
        if isinstance(found, int):
            yield rendered[found]
        else:
            unrendered.append(found)


def _rendered(
    chat: Chat, problem: Problem, turns: tuple[Message, ...], unrendered: list[str]
) -> TokenSequence | None:
    """None where the template does not write it as it was said; `unrendered` then says why."""
    try:
        return TokenSequence(*chat.training_ids(problem, turns))
    except InputError as error:
        unrendered.append(f"problem {problem.id}: {error}")
        return None


_WIDTH = 5
"""bytes of a token: its id, and whether the loss is taken on it"""


class SequenceFile(Sequence[TokenSequence]):
    """Filled once, then read in any order. The file has no name and goes with this object."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._ends = array("q", [0])
        """tokens up to the end of each sequence, after a zero"""
        self.trained = 0
        """tokens that the loss is taken on, of all"""

    @property
    def tokens(self) -> int:
        """Number of all."""
        return self._ends[-1]

    def append(self, sequence: TokenSequence) -> None:
        mask = np.asarray(sequence.loss_mask, np.int8)
        self._file.write(np.asarray(sequence.tokens, np.int32).tobytes() + mask.tobytes())
        self._file.flush()
        self._ends.append(self.tokens + len(mask))
        self.trained += int(mask.sum())

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> TokenSequence: ...

    @overload
    def __getitem__(self, index: slice) -> list[TokenSequence]: ...

    def __getitem__(self, index: int | slice) -> TokenSequence | list[TokenSequence]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        start, length = self._ends[place], self._ends[place + 1] - self._ends[place]
        data = os.pread(self._file.fileno(), length * _WIDTH, start * _WIDTH)
        tokens, mask = (
            np.frombuffer(data, np.int32, length),
            np.frombuffer(data[4 * length :], np.int8),
        )
        return TokenSequence(tokens.tolist(), mask.tolist())
