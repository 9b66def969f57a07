"""Names of the columns from which preferences are read."""

from __future__ import annotations

from typing import Literal, Self, TypeAlias

from pydantic import model_validator

from infra.config import Config

Form: TypeAlias = Literal["pair", "choice", "list", "verdict", "score"]
"""what a row is: a better and a worse answer, two and which is better, several in their order, or
one with a verdict or a number"""


class PairColumns(Config):
    """Names the columns. A row that lacks a column named here is a bad row."""

    prompt: str = ""
    """what all answers follow; empty: `prompt`, where a row has it"""
    chosen: str = "chosen"
    rejected: str = "rejected"
    margin: str = ""
    """by how much the chosen answer is the better one; empty: `margin`, where a row has it"""
    first: str = ""
    """one of two answers, of which another column says which is better; empty: `response_a`,
    `response_1`, `answer_0`, `conversation_a` ..., where a row has no chosen one"""
    second: str = ""
    better: str = ""
    """what names the better of the two, e.g. `a`; empty: `winner`, `preference` ..."""
    strength: str = ""
    """in its place: a number, below 0 where the first is better; empty: `overall_preference` or
    `preference_strength`"""
    first_is: str = ""
    """what stands under `better` where the first is the better one, and its name does not say so"""
    second_is: str = ""
    answers: str = ""
    """a list of answers; empty: `responses`, `completions` or `answers`, where a row has no chosen
    one"""
    scores: str = ""
    """numbers of the list's answers, the largest for the best; empty: `scores` or `ratings`"""
    ranks: str = ""
    """in place of scores: 1 for the best, 2 for the next; empty: `ranks`"""
    completion: str = ""
    """an answer with a verdict; empty: as rows that are imitated call it"""
    score: str = ""
    """of one answer, in place of a verdict: a number; empty: `score`, where a row has neither a
    chosen answer nor a list nor a verdict"""
    label: str = ""
    """the verdict, true for a good answer; empty: `label`, where a row has no chosen answer"""
    tools: str = ""
    """empty: `tools`, where a row has it"""

    @property
    def form(self) -> Form | None:
        """Return what the named columns say that a row is; None where none says it."""
        return next(iter(self._forms()), None)

    def _forms(self) -> dict[Form, str]:
        """Return the forms that named columns speak of, each with the first such column."""
        of_form: dict[Form, tuple[str, ...]] = {
            "pair": ("chosen", "rejected", "margin"),
            "choice": ("first", "second", "better", "strength", "first_is", "second_is"),
            "list": ("answers", "scores", "ranks"),
            "verdict": ("label",),
            "score": ("score",),
        }
        fields = type(self).model_fields
        named = {
            form: [name for name in names if getattr(self, name) != fields[name].default]
            for form, names in of_form.items()
        }
        return {form: names[0] for form, names in named.items() if names}

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if len(forms := self._forms()) > 1:
            said = " and ".join(f"`{name}` (a {form})" for form, name in forms.items())
            raise ValueError(f"names {said}, and a row is read in one way; leave the others out")
        for one, other in (("scores", "ranks"), ("better", "strength"), ("strength", "first_is")):
            if getattr(self, one) and getattr(self, other):
                raise ValueError(
                    f"names `{one}` and `{other}`, and one of them decides; leave one out"
                )
        for one, other in (("first", "second"), ("first_is", "second_is")):
            if bool(getattr(self, one)) != bool(getattr(self, other)):
                raise ValueError(f"names one of `{one}` and `{other}`; name both, or none")
        return self
