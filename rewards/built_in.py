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
    "judge": "rewards.served.judge:Judge",
    "reward-model": "rewards.served.reward_model:RewardModel",
}
SERVED: Mapping[str, str] = {
    "judge": "rewards.served.judge_settings:JudgeSettings",
    "reward-model": "rewards.served.reward_model:RewardModelSettings",
}
"""the options of those that ask a served model; found by name, as no other reward's stage has them
in its code"""
