"""Who gets past the guard of a page: who knows the key, a browser that has logged in, no other."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from infra.access import basic_token
from infra.errors import InputError
from infra.guard import LINK_SECONDS, Guard, has_cookie, login_link, may_be_our_user
from infra.home import home

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("own_home")]

KEY, HOST, HEALTH = "a-key-of-our-own-making", "127.0.0.1:4200", ("/health",)
BASIC, BEARER = f"Basic {basic_token(KEY)}", f"Bearer {KEY}"
INSIDE = 200
LINK = {
    "sec-fetch-site": "same-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"
}  # fmt: skip
"""what a browser says of a link that a person followed from another page"""
NEIGHBOUR = ("192.0.2.7", 40000)
"""a client on another machine"""


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/health", {}, INSIDE),
        ("POST", "/health", {}, 401),
        ("GET", "/healthy", {}, 401),
        ("GET", "/", {}, 401),
        ("OPTIONS", "/", {"origin": "http://evil.example"}, 403),
        ("GET", "/", {"authorization": "Basic eDp5"}, 401),
        ("GET", "/", {"authorization": BASIC}, INSIDE),
        ("POST", "/", {"authorization": BASIC}, INSIDE),
        ("POST", "/", {"authorization": BEARER}, INSIDE),
        ("GET", "/", {"authorization": "Bearer wrong\xff"}, 401),
        ("GET", "/", {"authorization": BASIC, "host": "evil.example:4200"}, 403),
        ("GET", "/", {"host": "evil.example:4200"}, 403),
        ("GET", "/", {"host": "127.0.0.1.evil.example:4200"}, 403),
        ("GET", "/", {"host": ""}, 403),
        ("GET", "/", {"authorization": BASIC, "host": "localhost:4200"}, INSIDE),
        ("GET", "/", {"authorization": BASIC, "host": "[::1]:4200"}, INSIDE),
        ("POST", "/", {"authorization": BASIC, "origin": f"http://{HOST}"}, INSIDE),
        ("POST", "/", {"authorization": BASIC, "origin": "http://evil.example"}, 403),
        ("POST", "/", {"authorization": BASIC, "origin": "http://127.0.0.1:9999"}, 403),
        ("POST", "/", {"authorization": BASIC, "origin": "null"}, 403),
        ("POST", "/", {"authorization": BASIC, "origin": "http://[", "host": "["}, 403),
        ("POST", "/", {"authorization": BASIC, "origin": "http://["}, 403),
        ("POST", "/", {"authorization": BASIC, "sec-fetch-site": "same-site"}, 403),
        ("GET", "/", {"authorization": BASIC, "sec-fetch-site": "cross-site"}, 403),
        ("GET", "/", {"authorization": BASIC, "sec-fetch-site": "same-site"}, 403),
        ("GET", "/", {"authorization": BASIC, "origin": "http://127.0.0.1:9999"}, 403),
        ("GET", "/", {"authorization": BASIC, "sec-fetch-site": "same-origin"}, INSIDE),
        ("GET", "/", {"authorization": BASIC, "sec-fetch-site": "none"}, INSIDE),
        ("GET", "/", {"authorization": BASIC} | LINK, INSIDE),
        ("POST", "/", {"authorization": BASIC} | LINK, 403),
        ("GET", "/", {"authorization": BASIC} | LINK | {"sec-fetch-dest": "iframe"}, 403),
    ],
)
def test_a_request_needs_the_key_a_name_of_this_machine_and_its_own_page(
    method: str, path: str, headers: dict[str, str], status: int
) -> None:
    assert _asked(path, headers, method=method)[0] == status


def test_beyond_loopback_whoever_sends_the_key_may_use_any_name() -> None:
    named = {"host": "tributary.example:4200"}
    keyed = named | {"authorization": BASIC}
    assert _asked("/", keyed, listens="0.0.0.0")[0] == INSIDE
    assert _asked("/", named, listens="0.0.0.0")[0] == 403
    foreign = keyed | {"origin": "http://evil.example"}
    assert _asked("/", foreign, method="POST", listens="0.0.0.0")[0] == 403


def test_a_link_logs_a_browser_in_once() -> None:
    link = login_link(f"http://{HOST}/runs/1?tab=logs#/deep")
    asked = link.removeprefix(f"http://{HOST}").partition("#")[0]
    assert link.endswith("/runs/1?tab=logs#/deep")
    assert _asked(asked, {"host": "evil.example"})[0] == 403
    status, headers = _asked(asked, {})
    assert status == 303
    assert headers["location"] == ["/runs/1?tab=logs"]
    (ours,) = headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in ours
    assert KEY not in ours
    cookie = {"cookie": f"other=1; {ours.partition(';')[0]}"}
    assert _asked("/", cookie)[0] == INSIDE
    assert _asked("/", cookie | {"origin": "http://evil.example"}, method="POST")[0] == 403
    assert _asked("/", cookie | {"host": "evil.example"})[0] == 403
    assert _asked(asked, {})[0] == 401, "it worked once"
    assert _asked(asked, cookie)[0] == 303, "a browser that is logged in goes on to the page"
    assert has_cookie(cookie["cookie"], KEY, NEIGHBOUR[0])
    for foreign in ('x={"a": 1}', 'x="never closed', "no name", "é=[1, 2]", ""):
        assert has_cookie(f"{foreign}; {cookie['cookie']}; {foreign}", KEY, NEIGHBOUR[0]), foreign
    assert not has_cookie(cookie["cookie"], "another-key-than-before", NEIGHBOUR[0])
    assert _asked("/", cookie, client=("192.0.2.8", 40000))[0] == 401, "seen by somebody else"


def test_a_link_on_another_site_s_page_leads_on_from_a_page_of_ours() -> None:
    """Browsers send no `SameSite=Strict` cookie along a redirect that another site began."""
    asked = login_link(f"http://{HOST}/a").removeprefix(f"http://{HOST}")
    status, headers = _asked(f"{asked}?x=</script>", LINK | {"sec-fetch-site": "cross-site"})
    assert (status, len(headers["set-cookie"])) == (200, 1)
    assert headers["content-type"] == ["text/html"]
    assert "location" not in headers


def test_our_pages_ask_no_other_host_and_are_shown_in_no_frame_of_another_site() -> None:
    (rules,) = _asked("/", {"authorization": BASIC})[1]["content-security-policy"]
    assert rules.startswith("default-src 'self' ")
    assert "http" not in rules
    assert rules.endswith("frame-ancestors 'self'")


def test_a_cookie_counts_from_connections_of_our_own_user() -> None:
    """A browser sends it to servers of others on this machine, too."""
    asked = login_link(f"http://{HOST}/").removeprefix(f"http://{HOST}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            ends = (client.getsockname(), server.getsockname())
            (cookie,) = _asked(asked, {}, client=ends[0], server=ends[1])[1]["set-cookie"]
            headers = {"cookie": cookie.partition(";")[0]}
            assert _asked("/", headers, client=ends[0], server=ends[1])[0] == INSIDE
            made_up = ("127.0.0.1", ends[0][1] + 1)
            assert _asked("/", headers, client=made_up, server=ends[1])[0] == 401
        assert _asked("/", headers, client=ends[0], server=ends[1])[0] == 401, "it is closed"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes connections of another user")
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_a_connection_of_another_user_is_told_from_ours(family: str) -> None:
    host = "127.0.0.1" if family == "AF_INET" else "::ffff:127.0.0.1"
    program = (
        f"import os, socket, sys; os.setuid(65534); s = socket.socket(socket.{family});"
        f"s.connect(({host!r}, int(sys.argv[1]))); print(s.getsockname()[1], flush=True);"
        "sys.stdin.read()"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-c", program, str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as other:  # fmt: skip
            assert other.stdout is not None
            client = ("127.0.0.1", int(other.stdout.readline()))
            assert not may_be_our_user(client, server.getsockname())
            other.communicate("")


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "/%0d%0aset-cookie:x=1"])
def test_a_link_leads_to_no_other_site(path: str) -> None:
    asked = login_link(f"http://{HOST}/").removeprefix(f"http://{HOST}").rstrip("/")
    (location,) = _asked(asked + path, {})[1]["location"]
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))
    assert "\r" not in location


def test_old_links_and_made_up_ones_let_nobody_in() -> None:
    asked = login_link(f"http://{HOST}/").removeprefix(f"http://{HOST}")
    (file,) = (home() / "logins").iterdir()
    assert file.stat().st_mode & 0o077 == file.parent.stat().st_mode & 0o077 == 0
    assert asked.split("/")[2] not in file.name, "who reads the folder's names cannot log in"
    os.utime(file, (0, file.stat().st_mtime - LINK_SECONDS - 1))
    assert _asked(asked, {})[0] == 401
    for code in ("", "x", "..", "../key", "%2e%2e"):
        assert _asked(f"/login/{code}", {})[0] == 401
    for _ in range(300):
        login_link(f"http://{HOST}/")
    assert len(list((home() / "logins").iterdir())) <= 201


@pytest.mark.parametrize(
    ("headers", "first", "passes"),
    [
        ({"authorization": BASIC}, "hello", True),
        ({"authorization": BASIC, "origin": "http://evil.example"}, "hello", False),
        (
            {"sec-websocket-protocol": "prefect"},
            {"type": "auth", "token": f"tributary:{KEY}"},
            True,
        ),
        ({"sec-websocket-protocol": "prefect"}, {"type": "auth", "token": "tributary:no"}, False),
        ({"sec-websocket-protocol": "prefect"}, {"type": "auth", "token": None}, False),
        ({"sec-websocket-protocol": "prefect"}, [], False),
        ({"sec-websocket-protocol": "prefect"}, "hello", False),
        ({}, {"type": "auth", "token": f"tributary:{KEY}"}, False),
        (
            {"sec-websocket-protocol": "prefect", "origin": "http://evil.example"},
            {"type": "auth", "token": f"tributary:{KEY}"},
            False,
        ),
    ],
)
def test_a_websocket_says_the_key_before_the_app_hears_anything(
    headers: dict[str, str], first: Any, passes: bool
) -> None:
    text = first if isinstance(first, str) else json.dumps(first)
    heard: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(2):
            message = await receive()
            if message["type"] != "websocket.receive":
                return
            heard.append(message["text"])

    waiting = [{"type": "websocket.connect"}]
    waiting += [{"type": "websocket.receive", "text": said} for said in (text, "second")]

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        del message

    scope = _scope("websocket", "/api/events/out", headers)
    scope["subprotocols"] = [headers.get("sec-websocket-protocol", "")]
    asyncio.run(Guard(app, KEY, "127.0.0.1", HEALTH)(scope, receive, send))
    assert heard == ([text, "second"] if passes else [])


def test_no_page_is_served_without_a_key() -> None:
    with pytest.raises(InputError, match="without a key"):
        Guard(_inner, "", "127.0.0.1", HEALTH)


async def _inner(scope: Any, receive: Any, send: Any) -> None:
    del scope, receive
    await send({"type": "http.response.start", "status": INSIDE, "headers": []})


def _scope(kind: str, path: str, headers: dict[str, str]) -> dict[str, Any]:
    plain, _, query = path.partition("?")
    coded = [(k.encode(), v.encode("latin-1")) for k, v in ({"host": HOST} | headers).items()]
    return {
        "type": kind, "path": plain, "query_string": query.encode(), "headers": coded,
        "client": NEIGHBOUR, "server": ("127.0.0.1", 4200),
    }  # fmt: skip


def _asked(
    path: str,
    headers: dict[str, str],
    *,
    method: str = "GET",
    listens: str = "127.0.0.1",
    client: tuple[str, int] = NEIGHBOUR,
    server: tuple[str, int] = ("127.0.0.1", 4200),
) -> tuple[int, dict[str, list[str]]]:
    """Status and headers of the answer."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody reads")

    guard = Guard(_inner, KEY, listens, HEALTH)
    scope = _scope("http", path, headers) | {"method": method, "client": client, "server": server}
    asyncio.run(guard(scope, receive, send))
    return sent[0]["status"], _by_name(sent[0]["headers"])


def _by_name(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.decode(), []).append(value.decode())
    return found
