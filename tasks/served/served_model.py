"""ServedModel: the models that a reward asks at servers of the stage, as a recipe names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field, field_validator

from engines.sglang.spec import FleetSpec
from infra.config import RESULT_NEUTRAL, Config


class ServedModel(Config):
    """The model that a reward asks, and its servers. How many these are is in `resources`."""

    model: Annotated[str | list[str], RESULT_NEUTRAL]
    """a stage of the recipe, e.g. `base`; or a folder: a path with a `/` in it, relative to the
    recipe's file, any fsspec URL (also of an artifact in a store), or `hf:org/name@revision`. Of a
    `reward-model` also a list of several, which are one reward together"""
    role: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9-]*)?$")
    """what resources call it; rewards of one role ask the same servers. Empty: the reward's name.
    Each of several has its number behind that, from 1 on"""
    fleet: FleetSpec = FleetSpec()
    """of its servers; `max_turns_per_server` bounds how much they are asked at once (64 if none)"""

    @field_validator("model")
    @classmethod
    def _are_several(cls, model: str | list[str]) -> str | list[str]:
        if not isinstance(model, str):
            if len(model) < 2:
                raise ValueError("a list names two models or more; write one by itself")
            if twice := next((each for each in model if model.count(each) > 1), ""):
                raise ValueError(f"{twice} is there twice, and would count twice; name it once")
        return model

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model,) if isinstance(self.model, str) else tuple(self.model)

    def by_role(self, name: str) -> dict[str, str]:
        """Return each model by its role; `name` is the role's where none is written."""
        role = self.role or name
        if isinstance(self.model, str):
            return {role: self.model}
        return {f"{role}-{number}": model for number, model in enumerate(self.model, 1)}

    def with_models(self, name: str, model_of: Callable[[str, str], str]) -> ServedModel:
        """Return the reward with those models that `model_of(role, model)` gives."""
        found = [model_of(role, model) for role, model in self.by_role(name).items()]
        model = found[0] if isinstance(self.model, str) else found
        return self.model_copy(update={"model": model})


_OF_SEVERAL = ("combine", "disagreement_penalty")


def check_several(who: str, settings: Config, served: ServedModel) -> None:
    """Raises ValueError for several models that are not one together, and for settings of several
    where there is one."""
    if len(served.models) > 1:
        if not {*_OF_SEVERAL} & {*type(settings).model_fields}:
            raise ValueError(f"served.model: only reward-model asks several; name one for {who}")
    elif written := settings.model_fields_set & {*_OF_SEVERAL}:
        raise ValueError(
            f"options.{min(written)}: says what the scores of several models become, and"
            " `served.model` names one; list several there, or leave it out"
        )
