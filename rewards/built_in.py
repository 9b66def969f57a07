"""The built-in rewards: where each name leads."""

from __future__ import annotations

from collections.abc import Mapping

BUILT_IN: Mapping[str, str] = {
    "math": "rewards.math:Math",
    "agent-answer": "rewards.agent_answer:AgentAnswer",
    "constraints": "rewards.constraints:Constraints",
    "reasoning-gym": "rewards.reasoning_gym:ReasoningGymScore",
    "format": "rewards.shaping:Format",
    "repetition": "rewards.shaping:Repetition",
    "length": "rewards.shaping:Length",
}
