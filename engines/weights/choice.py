"""Which transport a trainer uses: it follows from where its ranks and the servers run."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from engines.weights.broadcast import Broadcast
from engines.weights.ranks import Ranks
from engines.weights.shared_memory import SharedMemory
from engines.weights.transport import Target, Transport


def transport_to(targets: Sequence[Target], ranks: Ranks) -> Transport:
    """Shared memory where all ranks and servers are on one host, broadcast elsewhere.

    All ranks call it, and get the same.
    """
    near = all(_is_here(target.url) for target in targets)
    return SharedMemory() if all(ranks.gather(near)) else Broadcast()


def _is_here(url: str) -> bool:
    """Whether a server's address is one of this host's."""
    try:
        with socket.socket() as probe:
            probe.bind((urlsplit(url).hostname, 0))
    except OSError:
        return False
    return True
