"""Rewards that ask a served model: a judge by a prompt, a reward model by its output."""
