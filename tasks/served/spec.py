"""Spec of `served`: the import of a model that is served and not trained."""

from __future__ import annotations

from typing import ClassVar

from infra.config import Config
from tasks.stage import StageSpec


class ServedSettings(Config):
    folder: str
    """an HF folder of any model that SGLang serves"""


class ServedSpec(StageSpec):
    """No inputs. Artifact: the folder's files, which judge the rollouts of later stages."""

    kind: ClassVar[str] = "served"
    settings: ServedSettings

    @property
    def served_folder(self) -> str:
        return self.settings.folder
