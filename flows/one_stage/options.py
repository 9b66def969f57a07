"""What a person says of one stage; the rest is the recipe's defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

StageKind = Literal["sft", "rl", "distill", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStage:
    """Example: OneStage(kind="sft", model="/models/base", data=["chats.jsonl"])"""

    kind: StageKind
    model: str
    """a model folder, a digest, or a stage as RUN/STAGE"""
    data: Sequence[str] = ()
    """files of messages for `sft`, of prompts with references for the others"""
    held_out: Sequence[str] = ()
    """files of prompts that are only evaluated"""
    columns: Sequence[str] = ()
    """`column=name` of the files"""
    instruction: str = ""
    """text that follows the last question of each prompt of the files"""
    system: str = ""
    """text of a system message, for prompts of the files without one"""
    pattern: str = ""
    """what of a reference counts, as a regular expression"""
    domain: str = ""
    """a built-in curriculum, or one's own as `file.py:Class` or `module:Class`"""
    rewards: Sequence[str] = ()
    """`name` or `name=weight`; the first judges the outcome"""
    max_new_tokens: int | None = None
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """of the stage, as a recipe writes them"""
    epochs: float = 1.0
    """passes over the files, where `settings` have no steps"""
    scores: dict[str, Any] = field(default_factory=dict[str, Any])
    """how the models are evaluated, as a recipe writes it"""
    lm_tasks: Sequence[str] = ()
    """of lm-eval"""
    lm_folder: str = ""
    """of the user's own tasks of lm-eval"""
    seed: int = 0
    name: str = ""
    changes: Sequence[str] = ()
    """`field=value` of the recipe"""
    root: str = ""
    """the store of the artifact that is the model"""
