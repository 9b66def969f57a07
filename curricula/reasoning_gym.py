"""The `reasoning-gym` curriculum: any of that library's datasets, by name.

Entries are drawn by index and go to the split that their question's content decides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from curricula.procedural import check_flag
from curricula.splits import split_of
from engines.types import Demonstration, Json, Message, Problem, Split
from infra.errors import InputError
from infra.hooks import did_you_mean
from infra.libraries.library import load_reasoning_gym

MAX_DRAWS = 10_000
"""entries without a new member of a split before the dataset counts as exhausted"""


class ReasoningGym:
    """Judged by the `reasoning-gym` reward; a demonstration is the entry's own answer."""

    name = "reasoning-gym"

    def __init__(
        self,
        *,
        dataset: str,
        config: Mapping[str, Any] | None = None,
        thinking: bool | None = None,
    ) -> None:
        """`config` holds the dataset's own parameters, e.g. {"min_terms": 2, "max_terms": 3}.
        Without `thinking` the model's chat template decides."""
        self._dataset = dataset
        self._config = dict(config or {})
        self._thinking = None if thinking is None else check_flag("thinking", thinking)
        reserved = self._config.keys() & {"seed", "size"}
        if reserved:
            raise InputError(f"`config` may not set {', '.join(sorted(reserved))}: splits do.")
        self._open(seed=0)

    def problems(self, split: Split, count: int, seed: int, start: int = 0) -> Sequence[Problem]:
        entries = itertools.islice(self._entries(split, seed), start, start + count)
        return [self._problem(entry, index, split, seed) for index, entry in entries]

    def demonstrations(self, count: int, seed: int) -> Sequence[Demonstration]:
        """Raises `InputError` for a dataset whose entries carry no answer."""
        shown: list[Demonstration] = []
        for index, entry in itertools.islice(self._entries("sft", seed), count):
            if entry["answer"] is None:
                raise InputError(
                    f"dataset {self._dataset!r} has no answers to show; it can be used for RL only."
                )
            # the library knows answers, not the thoughts that lead there
            reasoning = "so" if self._thinking else None
            answer = Message("assistant", str(entry["answer"]), reasoning=reasoning)
            shown.append(Demonstration(self._problem(entry, index, "sft", seed), (answer,)))
        return shown

    def environment(self) -> None:
        return None

    def _problem(self, entry: Mapping[str, Any], index: int, split: Split, seed: int) -> Problem:
        reference: dict[str, Json] = {
            "dataset": self._dataset,
            "config": cast(Json, self._config),
            "seed": seed,
            "index": index,
        }
        return Problem(
            id=f"{self.name}/{split}/{self._dataset}/{seed}-{index}",
            domain=self.name,
            messages=(Message("user", entry["question"]),),
            reference=reference,
            thinking=self._thinking,
            metadata={"family": self._dataset},
        )

    def _entries(self, split: Split, seed: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Index and entry of a split's members in order; held-out questions are all distinct."""
        source, seen, last = self._open(seed), set[str](), 0
        for index in itertools.count():
            entry = source[index]
            question = entry["question"]
            if split_of(question) == split and not (split == "heldout" and question in seen):
                seen.add(question)
                last = index
                yield index, entry
            elif index - last > MAX_DRAWS:
                raise InputError(
                    f"dataset {self._dataset!r} with this config has no more than {len(seen)} "
                    f"distinct {split} questions; ask for fewer."
                )

    def _open(self, seed: int) -> Any:
        library = load_reasoning_gym()
        known = library.factory.DATASETS
        if self._dataset not in known:
            raise InputError(
                f"`dataset`: reasoning-gym has no {self._dataset!r}."
                f"{did_you_mean(self._dataset, known)}"
            )
        try:
            return library.create_dataset(self._dataset, **self._config, seed=seed, size=1)
        except (TypeError, ValueError, AssertionError) as error:
            raise InputError(f"`config` of dataset {self._dataset!r}: {error}") from error
