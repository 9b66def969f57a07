"""What a supervised stage trains on: sequences, and the order in which they come."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engines.batching import TokenSequence
from engines.draws import draw_demonstrations
from engines.types import Message, Problem
from infra.errors import InputError
from infra.hooks import resolve
from tasks.sft.spec import ONLY_ADMITTED
from tasks.stage import ADMITTED

if TYPE_CHECKING:
    from engines.chat import Chat
    from engines.rollout.records.dataset import DistilledRow
    from tasks.sft.spec import SftSpec

_NAMED = 5
"""conversations left out that are named"""


@dataclass(frozen=True, slots=True)
class SftData:
    """Tokenised conversations; how many were left out and why."""

    sequences: list[TokenSequence]
    source: str
    too_long: int = 0
    without_thinking: int = 0
    """thinking samples repeated with the thinking removed"""
    unrendered: Sequence[str] = ()
    """conversations left out, as the chat template does not write them as they were said: which,
    and why"""


@dataclass(frozen=True, slots=True)
class _Solved:
    """A conversation with its tokens, either as an expert sampled it or as the template writes."""

    rollout: tuple[str, str, int]
    """expert, problem and sample: the same for all branches of a rollout"""
    problem: Problem
    turns: tuple[Message, ...]
    sequence: TokenSequence


def load_data(spec: SftSpec, model: Path, inputs: Mapping[str, Path]) -> SftData:
    """Sequences for the model's own tokenizer, of the dataset or the admitted problems among the
    stage's inputs where there are any. Raises InputError when none is usable."""
    from engines.chat import Chat
    from engines.families.common.config import read_config
    from engines.families.common.registry import model_shape

    shape = model_shape(read_config(model))
    chat = Chat.load(model)
    unrendered: list[str] = []
    if spec.curriculum is not None:
        source = f"curriculum {spec.curriculum.name}"
        solved = list(_demonstrations(spec, chat, inputs.get(ADMITTED), unrendered))
    else:
        source = "distilled dataset"
        solved = list(_distilled(chat, inputs.get("data")))
    bare = _without_thinking(solved, chat, spec.settings.nothink_share, spec.seed, unrendered)
    sequences = [*(s.sequence for s in solved), *bare]
    usable = [s for s in sequences if len(s.tokens) <= shape.max_positions]
    if not any(sum(s.loss_mask) for s in usable):
        why = f"; {said_of_unrendered(unrendered)}" if unrendered else ""
        raise InputError(
            f"the {source} gives no sequence to train on: {len(sequences)} were made, "
            f"{len(sequences) - len(usable)} of them longer than the model's "
            f"{shape.max_positions} tokens{why}"
        )
    return SftData(usable, source, len(sequences) - len(usable), len(bare), unrendered)


def said_of_unrendered(unrendered: Sequence[str]) -> str:
    """How many there are, and the first of them with the reason."""
    first = "; ".join(unrendered[:_NAMED])
    return f"{len(unrendered)} conversations cannot be rendered and were left out: {first}"


def batches_for_steps(
    count: int, batch_size: int, seed: int, start: int, stop: int
) -> list[list[int]]:
    """Indices of the batches of steps `start` to `stop` - 1, out of `count` samples.

    Epochs are laid end to end, each in an order of its own that follows from the seed alone, so a
    resumed run sees what an undisturbed one would. A batch may span two epochs.
    """
    orders: dict[int, list[int]] = {}

    def sample(position: int) -> int:
        epoch, place = divmod(position, count)
        if epoch not in orders:
            orders[epoch] = random.Random(f"{seed}/{epoch}").sample(range(count), count)
        return orders[epoch][place]

    return [
        [sample(position) for position in range(step * batch_size, (step + 1) * batch_size)]
        for step in range(start, stop)
    ]


def _demonstrations(
    spec: SftSpec, chat: Chat, admitted: Path | None, unrendered: list[str]
) -> Iterator[_Solved]:
    from curricula.registry import build

    assert spec.curriculum is not None
    curriculum = build(spec.curriculum.name, spec.curriculum.options)
    if admitted is not None:
        curriculum = resolve("admitted problems", ONLY_ADMITTED, {})(curriculum, admitted)
    drawn = draw_demonstrations(curriculum, spec.settings.demonstrations, spec.seed)
    for place, shown in enumerate(map(chat.mode.decided_demonstration, drawn)):
        sequence = _rendered(chat, shown.problem, shown.turns, unrendered)
        if sequence is not None:
            yield _Solved(("", shown.problem.id, place), shown.problem, shown.turns, sequence)


def _distilled(chat: Chat, dataset: Path | None) -> Iterator[_Solved]:
    """Tokens as the experts sampled them; text is not tokenised again."""
    from engines.rollout.records.dataset import read_dataset, read_formats

    if dataset is None:
        raise InputError("supervised training needs a `curriculum` or the input `data`")
    formats, checked = read_formats(dataset), set[str]()
    for row in read_dataset(dataset):
        if row.expert not in checked:
            _check_same_format(chat, row, formats.get(row.expert))
            checked.add(row.expert)
        rollout = (row.expert, row.problem.id, row.sample_index)
        sequence = TokenSequence(row.tokens, row.loss_mask)
        yield _Solved(rollout, row.problem, row.turns, sequence)


def _check_same_format(chat: Chat, row: DistilledRow, checksum: str | None) -> None:
    """By the checksum of the chat that sampled it. A dataset without one is not `distill`'s: there
    a row must begin with its problem's prompt, as those of the driver `conversation` do."""
    prompt = chat.prompt_ids(row.problem) if checksum is None else []
    is_same = checksum in (None, chat.format_checksum) and row.tokens[: len(prompt)] == prompt
    if not is_same:
        differs = f": the prompt of {row.problem.id} differs" if checksum is None else ""
        raise InputError(
            f"the dataset's samples of expert {row.expert} were made with another tokenizer or "
            f"chat template than this model's{differs}. Experts and the unified model must start "
            "from the same base"
        )


def _without_thinking(
    solved: Sequence[_Solved], chat: Chat, share: float, seed: int, unrendered: list[str]
) -> list[TokenSequence]:
    """A share of the thinking rollouts once more, rendered with thinking off."""
    # each branch has its rollout's whole conversation: once is enough
    thinking = list({s.rollout: s for s in solved if s.problem.thinking}.values())
    if not thinking or share == 0:
        return []
    chat.require_thinking_switch()
    chosen = random.Random(f"{seed}/nothink").sample(thinking, round(share * len(thinking)))
    rendered = [
        _rendered(
            chat,
            replace(s.problem, thinking=False),
            tuple(replace(turn, reasoning=None) for turn in s.turns),
            unrendered,
        )
        for s in chosen
    ]
    return [sequence for sequence in rendered if sequence is not None]


def _rendered(
    chat: Chat, problem: Problem, turns: tuple[Message, ...], unrendered: list[str]
) -> TokenSequence | None:
    """None where the template does not write it as it was said; `unrendered` then says why."""
    try:
        return TokenSequence(*chat.training_ids(problem, turns))
    except InputError as error:
        unrendered.append(f"problem {problem.id}: {error}")
        return None
