"""Rollout workers as Ray actors (`resources.rollout_workers`)."""
