"""Rollout workers: sessions, clients and judges in processes of their own.

    WorkerPool (in the stage) ── RollRequest ──▶ RolloutWorker ── turns ──▶ router
          ▲                                           │
          └────── News: finished rollouts, turns ◀────┘

How the two talk is a `WorkerHandle`'s to say: `tasks.rollout_workers` has one for Ray actors.
"""
