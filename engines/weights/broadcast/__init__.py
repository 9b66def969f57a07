"""Weights by broadcast, for trainers and servers on different hosts.

    CPU and servers of ours    ranks ─ gloo ─▶ arrivals in the server's host memory   it generates
                               pause ─▶ the server loads them ─▶ continue
    CUDA, or servers of others pause ─▶ ranks ─ nccl or gloo ─▶ the engine itself ─▶ continue

`transport.py` chooses and does a whole push. `arriving_group.py` and `arrivals.py` are the two
sides of the first way, `engine_group.py` is the second; `joining.py` is how both begin,
`failure.py` what is said when servers do not join or do not receive.
"""
