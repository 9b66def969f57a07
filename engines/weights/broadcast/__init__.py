"""Weights by broadcast, for trainers and servers on different hosts.

    CPU and servers of ours    ranks ─ gloo ─▶ arrivals in the server's host memory   it generates
                               pause ─▶ the server loads them ─▶ continue
    CUDA, or servers of others pause ─▶ ranks ─ nccl or gloo ─▶ the engine itself ─▶ continue

`broadcast.py` chooses and does a whole push. It and `arrivals.py` have the two sides of the first
way; `engine_group.py` has the second, and how both begin.
"""
