"""What a path has come to, stage by stage, while it is planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.domain import Domain
from tasks.place import AdmittedBy, Place
from tasks.stage import StageSpec


@dataclass(slots=True)
class Walk:
    """The stages so far, by name. Example: Walk("agent", "experts.agent", [agent], "base")"""

    owner: str
    """whose path it is: an expert or `unified`"""
    where: str
    """where the recipe has it"""
    domains: Sequence[Domain]
    base: str
    expert: str = ""
    experts: Mapping[str, str] = field(default_factory=dict[str, str])
    """the teachers, by their domains"""
    best: str = ""
    """the last model that a stage made"""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    """every model that a stage made, by what scores call it"""
    _model: str = ""
    _data: str = ""
    _rollouts: str = ""
    _admitted: AdmittedBy | None = None
    _unlearned: str = ""
    """place of the `distill` whose data nothing has read"""
    _seen: Counter[str] = field(default_factory=Counter[str])
    _drawn: Counter[str] = field(default_factory=Counter[str])

    def next_name(self, kind: str) -> str:
        """Example: agent-rl, then agent-rl-2"""
        self._seen[kind] += 1
        number = self._seen[kind]
        return f"{self.owner}-{kind}" + (f"-{number}" if number > 1 else "")

    def place(self, seed: int, domains: Sequence[Domain], kind: str) -> Place:
        """Of the next stage."""
        return Place(
            seed=seed,
            domains=domains,
            base=self.base,
            model=self._model or self.base,
            data=self._data,
            rollouts=self._rollouts,
            experts=self.experts,
            start=self._drawn[kind],
            admitted=self._admitted,
        )

    def go_on(
        self, name: str, at: str, spec: StageSpec, inputs: Mapping[str, str], scored_as: str
    ) -> str:
        """After a stage was added; where data are that this stage should have learned from."""
        if self._data in inputs.values():
            self._unlearned = ""
        elif self._unlearned and spec.makes not in ("nothing", "problems"):
            return self._unlearned
        self._drawn[spec.kind] += spec.most_problems
        if spec.makes == "model":
            self.best = self._model = name
            self.versions[scored_as] = name
            self._data = self._rollouts = ""
        elif spec.makes == "data":
            self._model, self._data, self._unlearned = "", name, at
            self._rollouts = ""
        elif spec.makes == "rollouts":
            self._rollouts = name
        elif spec.makes == "problems":
            curricula = [domain.curriculum for domain in spec.sampled_domains]
            self._admitted = AdmittedBy(name, list(spec.drawn), curricula)
        return ""
