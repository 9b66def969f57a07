"""The models that rewards ask: their import, and their servers beside the policy's."""
