"""Models that are served beside the policy, and what asks them."""
