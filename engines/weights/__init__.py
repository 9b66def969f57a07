"""Weights of a model in training, pushed to running servers.

    TrainedWeights ── buckets ──▶ Transport.push(weights, targets, version) ──▶ servers

A transport is shared memory, broadcast or disk; `transport.py` has the contract. When a push
returns, each server serves the new weights under the new version with an empty cache. When it
raises, no server is left paused, and each whose weights may be half new calls them "broken", which
no client accepts: the next push, which is a full one, repairs it.
"""
