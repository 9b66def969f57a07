"""What runs within a sandbox: the agent that serves its owner's requests, and what starts it.

These files run under a bare interpreter (`python -s -S -P`): they import the standard library,
`infra.sandbox.confine` and `infra.sandbox.trees` only. `agent.py` serves; `zygote.py` forks
confined agents; `main.py` starts one agent where another program (bubblewrap, a container) has
already confined it.
"""
