"""Hosts made of namespaces on one machine: each with a network, mounts, processes and a name of its
own. To be used in the namespaces of `isolation`.

    bridge ─┬─ veth ── eth0 of the host `a` (10.77.0.1)
            ├─ veth ── eth0 of the host `b` (10.77.0.2)
            └─ this machine (10.77.0.254): object store

On a host, /tmp, the home and /dev/shm are its own; the checkout and its environment are those of
the machine, at the same path, as a cluster's nodes have the same image.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NETWORK = "10.77.0"
OUTSIDE = f"{NETWORK}.254"
"""the machine's own address on the bridge"""
_BRIDGE = "tributary0"
_OWN = "02:00:00:00:00:01"
"""the bridge's hardware address"""
_NOBODY = "02:00:00:00:00:fe"
"""the hardware address of no host"""
_COMMAND_S = 900.0
_KEPT = ("PATH", "LANG", "LC_ALL")
"""variables that a host has from the machine"""
_SET_UP = """
set -e
mkdir -p "$WORK/tmp/user"
mount --make-rprivate /
case "$SOURCE" in /tmp/*)  # the checkout would be hidden
    mkdir -p "$WORK$SOURCE"
    mount --bind "$SOURCE" "$WORK$SOURCE"
esac
mount --rbind "$WORK/tmp" /tmp
mount -t tmpfs tmpfs /dev/shm
mount -t proc proc /proc
hostname "$NAME"
exec "$PYTHON" -c '
import os, time
print("ready", flush=True)
while True:
    try:
        os.wait()  # the first process is the parent of all that lost theirs
    except ChildProcessError:
        time.sleep(0.1)
'
"""


@dataclass(slots=True)
class Machine:
    """One host. Its files stay in `work` when it is killed; its processes and memory do not."""

    name: str
    address: str
    work: Path
    env: dict[str, str] = field(default_factory=dict[str, str])
    """of every command there"""
    _init: subprocess.Popen[str] | None = None

    @property
    def home(self) -> Path:
        """Its $TRIBUTARY_HOME, as seen from the machine; another path on each host."""
        return self.work / "tmp" / f"home-{self.name}"

    @property
    def is_running(self) -> bool:
        return self._init is not None

    def boot(self) -> None:
        """Give it a network and a first process; what an earlier life left in memory is gone."""
        link, name = f"tr-{self.name}", self._namespace
        _ip("netns", "add", name)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", link, "master", _BRIDGE, "up")
        _ip("-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        self.work.mkdir(parents=True, exist_ok=True)
        self._init = subprocess.Popen(
            ["ip", "netns", "exec", name, "unshare", "--mount", "--pid", "--uts", "--fork",
             "--kill-child", "sh", "-c", _SET_UP],
            env=os.environ | {
                "NAME": self.name, "WORK": str(self.work), "SOURCE": str(ROOT),
                "PYTHON": sys.executable,
            },
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._init.stdout is not None
        if self._init.stdout.readline() != "ready\n":
            raise RuntimeError(f"host {self.name} does not start")

    def start(self, *command: str) -> subprocess.Popen[str]:
        """A command there, with its output to be read."""
        return subprocess.Popen(
            [*self._enter, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, cwd="/", env=self._environment,
        )  # fmt: skip

    def run(
        self, *command: str, timeout_s: float = _COMMAND_S, env: Mapping[str, str] | None = None
    ) -> str:
        """Output of a command there; raises RuntimeError with it unless it exits with 0."""
        done = subprocess.run(
            [*self._enter, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            cwd="/", env={**self._environment, **(env or {})}, timeout=timeout_s, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(command)} on {self.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return done.stdout

    def tributary(self, *arguments: str, timeout_s: float = _COMMAND_S) -> str:
        return self.run(sys.executable, *CLI, *arguments, timeout_s=timeout_s)

    def processes(self) -> dict[int, str]:
        """What runs there: command lines, by process ids of the machine."""
        inside = os.readlink(f"/proc/{self._first}/ns/pid")
        found: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ended meanwhile
                if os.readlink(entry / "ns/pid") == inside:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = line.decode(errors="replace").strip()
        return found

    @contextmanager
    def cut_off(self, *addresses: str) -> Generator[None]:
        """Lose without a word all that goes to these addresses of the network."""
        for address in addresses:
            of = ("neigh", "replace", address, "lladdr", _NOBODY, "dev", "eth0", "nud", "permanent")
            _ip("-n", self._namespace, *of)
        try:
            yield
        finally:
            for address in addresses:
                _ip("-n", self._namespace, "neigh", "del", address, "dev", "eth0")

    def kill(self) -> None:
        """End everything on it at once, and pull its cable."""
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"tr-{self.name}")
        if self._init is not None:
            self._init.kill()  # of the process namespace: the kernel ends all others
            self._init.wait()
            self._init = None
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self._namespace)

    @property
    def _namespace(self) -> str:
        return f"tributary-{self.name}"

    @property
    def _enter(self) -> list[str]:
        spaces = ("--net", "--mount", "--pid", "--uts")
        return ["nsenter", "--target", str(self._first), *spaces, "--"]

    @property
    def _first(self) -> int:
        """Its first process: unshare's child."""
        assert self._init is not None, f"host {self.name} does not run"
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text()
        return int(children.split()[0])

    @property
    def _environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        home = f"/tmp/{self.home.name}"
        return kept | {"HOME": "/tmp/user", "TMPDIR": "/tmp", "TRIBUTARY_HOME": home} | self.env


CLI = ("-P", "-c", "import sys; from flows.command.main import main; main(sys.argv[1:])")
"""Python's arguments for the command `tributary`, without its start script"""


@contextmanager
def machines(work: Path, names: Sequence[str]) -> Generator[list[Machine]]:
    """Running hosts of these names, reached at 10.77.0.1 and so on; all ends with the block."""
    made = [Machine(n, f"{NETWORK}.{i}", work / n) for i, n in enumerate(names, start=1)]
    # With no address of its own it takes that of a host, and another one when hosts come and go.
    _ip("link", "add", _BRIDGE, "address", _OWN, "type", "bridge")
    try:
        _ip("addr", "add", f"{OUTSIDE}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for machine in made:
            machine.boot()
        yield made
    finally:
        for machine in made:
            machine.kill()
        _ip("link", "del", _BRIDGE)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
