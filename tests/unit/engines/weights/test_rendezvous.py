"""Where ranks meet: on the address that they were told, and on no other."""

from __future__ import annotations

import threading
from datetime import timedelta

import psutil
import pytest

from engines.rendezvous import listen, store_at
from infra.processes.network import free_ports

pytestmark = pytest.mark.unit

LIMIT = timedelta(seconds=30)


def test_ranks_meet_where_they_were_told_and_nowhere_else() -> None:
    (port,) = free_ports(1)
    url = f"tcp://127.0.0.1:{port}"
    found: list[bytes] = []

    def other_rank() -> None:
        store = store_at(url, 1, 2, LIMIT)
        found.append(store.get("from-0"))

    other = threading.Thread(target=other_rank)
    other.start()
    store = store_at(url, 0, 2, LIMIT)
    listening = {
        connection.laddr.ip
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    store.set("from-0", "here")
    other.join(30)
    assert found == [b"here"]
    assert listening == {"127.0.0.1"}


def test_rank_0_holds_the_port_from_the_moment_it_names_it() -> None:
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]
    with pytest.raises(OSError, match="Address already in use"):
        listen("127.0.0.1", port)
    store_at(f"tcp://127.0.0.1:{port}", 0, 1, LIMIT, listener).set("here", "yes")
    assert listener.fileno() == -1, "the store has it now"


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="tcp://HOST:PORT"):
        store_at("nowhere", 0, 1, LIMIT)
