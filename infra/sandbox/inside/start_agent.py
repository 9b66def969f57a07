"""Starts one agent where bubblewrap or a container has confined the process already.

    python -s -S -P main.py FOLDER [watch-disk]

Its channel is standard input and output.
"""

from __future__ import annotations

import os
import signal
import sys

_ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
sys.path.insert(0, _ROOT)
from infra.sandbox.confine import libc, namespaces  # noqa: E402
from infra.sandbox.inside.commands import Place  # noqa: E402
from infra.sandbox.inside.confined_agent import serve  # noqa: E402

sys.path.remove(_ROOT)


def main() -> None:
    source, sink = os.dup(0), os.dup(1)
    for descriptor in (source, sink):
        os.set_inheritable(descriptor, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    # Commands may send it any signal. The kernel shields process 1 from those that it does not
    # handle, and Python handles SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc.prctl(libc.PR_SET_NO_NEW_PRIVS, 1)
    namespaces.become_nobody()
    libc.drop_capabilities()
    serve(source, sink, Place(sys.argv[1], alone=True, watch_disk="watch-disk" in sys.argv[2:]))


if __name__ == "__main__":
    main()
