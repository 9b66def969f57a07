"""Rounds of self-distillation: what promotes one, what ends a series, what a trigger does."""
