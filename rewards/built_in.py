"""The built-in rewards: where each name leads."""

from __future__ import annotations

from collections.abc import Mapping

BUILT_IN: Mapping[str, str] = {
    "math": "rewards.math:Math",
    "exact": "rewards.exact:Exact",
    "regex": "rewards.exact:Regex",
    "agent-answer": "rewards.agent_answer:AgentAnswer",
    "function-calls": "rewards.function_calls:FunctionCalls",
    "repository-tests": "rewards.repository:RepositoryTests",
    "constraints": "rewards.constraints:Constraints",
    "reasoning-gym": "rewards.reasoning_gym:ReasoningGymScore",
    "format": "rewards.format:Format",
    "repetition": "rewards.repetition:Repetition",
    "length": "rewards.length:Length",
    "library-score": "rewards.library_score:LibraryScore",
}
