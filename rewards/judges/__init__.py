"""Rewards that ask a model: one that the stage serves, or one at an address."""
