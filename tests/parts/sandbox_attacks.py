"""Attacks that a program tries one after another: each has to raise an exception."""

from __future__ import annotations

import os

_WRITTEN = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/printk_ratelimit_burst", "/proc/sys/fs/suid_dumpable",
    "/proc/sys/vm/drop_caches", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity", "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state", "/etc/passwd", "/etc/ld.so.preload",
)  # fmt: skip
_READ = (
    "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/1/mem",
    "/proc/1/environ", "/etc/shadow", "/dev/mem", "/dev/kmsg", "/dev/kvm",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom")
_CALLS = {
    "mount": (165, "b'none'", "b'/tmp'", "b'tmpfs'", "0", "b''"),
    "umount": (166, "b'/proc'", "2"),
    "unshare users": (272, "0x10000000"),
    "unshare network": (272, "0x40000000"),
    "clone into namespaces": (56, "0x10000011", "0", "0", "0", "0"),
    "chroot": (161, "b'.'"),
    "pivot_root": (155, "b'.'", "b'.'"),
    "swapon": (167, "b'x'", "0"),
    "reboot": (169, "0xfee1dead", "672274793", "0"),
    "init_module": (175, "0", "0", "b''"),
    "kexec": (246, "0", "0", "0", "0"),
    "bpf": (321, "0", "0", "0"),
    "perf events": (298, "0", "0", "-1", "-1", "0"),
    "userfaultfd": (323, "1"),
    "keyrings": (250, "0", "-3", "1"),
    "io_uring": (425, "1", "0"),
    "memory file": (319, "b'x'", "0"),
    "secret memory": (447, "0"),
    "shared memory": (29, "0", "4096", "0o1600"),
    "semaphores": (64, "0", "1", "0o1600"),
    "message queue": (68, "0", "0o1600"),
    "POSIX queue": (240, "b'x'", "0o102", "0o600", "0"),
    "file handle": (304, "-100", "0", "0"),
    "fanotify": (300, "0", "0"),
    "trace the agent": (101, "16", "1", "0", "0"),
    "memory of the agent": (310, "1", "0", "0", "0", "0", "0"),
    "descriptor of another": (438, "0", "0", "0"),
    "limits of the agent": (302, "1", "7", "0", "0"),
    "raise capabilities": (126, "(c.c_uint32*2)(0x20080522, 0)", "(c.c_uint32*6)(*[255]*6)"),
    "host name": (170, "b'x'", "1"),
    "set the clock": (164, "(c.c_long*2)(1, 1)", "0"),
    "kernel's log": (103, "5", "0", "0"),
    "accounting": (163, "b'x'"),
    "raw disk": (133, "b'disk'", "0o60666", "2048"),
}
_OTHERS = {
    "write Python's library": "open(os.__file__, 'a').write('1')",
    "mode by descriptor": "os.fchmod(fd, 0o666)",
    "owner by descriptor": "os.fchown(fd, 12345, 12345)",
    "attribute by descriptor": "os.setxattr(fd, 'user.x', b'1')",
    "attribute removed by descriptor": "os.removexattr(fd, 'user.x')",
    "times by descriptor": "os.utime(fd, (1, 1))",
    "flags by descriptor": "fcntl.ioctl(fd, 0x40086602, struct.pack('l', 0x10))",
    "verity by descriptor": "fcntl.ioctl(fd, 0x40806685, bytearray(128))",
    "lease": "fcntl.fcntl(fd, 1024, 0)",
    "large pipe": "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",
    "type into a terminal": "fcntl.ioctl(0, 0x5412, b'x')",
    "be root": "os.setuid(0) if os.getuid() else 1 / 0",
    "groups": "os.setgroups([0])",
    "more open files": "resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 19, 1 << 19))",
    "more memory": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "priority": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "cores": "os.sched_setaffinity(1, [0])",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "virtual machine's socket": "socket.socket(40, socket.SOCK_STREAM)",
    "kernel's ciphers": "socket.socket(38, socket.SOCK_SEQPACKET)",
    "another host": "socket.create_connection(('1.1.1.1', 53), 1)",
    "raise buffers": "raised()",
}


def attacks() -> dict[str, str]:
    """Statements by the name of what they try; calls by number where they are x86-64's."""
    found = {f"write {path}": f"open({path!r}, 'w').write('1')" for path in _WRITTEN}
    found |= {f"read {path}": f"open({path!r}, 'rb').read(1)[0]" for path in _READ}
    for path in _DEVICES:
        found[f"mode of {path}"] = f"os.chmod({path!r}, 0o600)"
        found[f"mode of {path} by descriptor"] = f"os.fchmod(os.open({path!r}, 0), 0o600)"
    if os.uname().machine == "x86_64":
        found |= {
            name: f"call({number}, {', '.join(given)})" for name, (number, *given) in _CALLS.items()
        }
    return found | _OTHERS


PROGRAM = f"""
import ctypes as c, fcntl, os, resource, socket, struct
libc = c.CDLL(None, use_errno=True)
def call(number, *given):
    if libc.syscall(c.c_long(number), *[c.c_long(g) if type(g) is int else g for g in given]) < 0:
        raise OSError(c.get_errno(), 'refused')
def raised():
    one = socket.socket()
    before = one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > before
fd = os.open(os.__file__, os.O_RDONLY)
for name, attack in {attacks()!r}.items():
    try:
        exec(attack)
    except BaseException:
        continue
    print('worked:', name)
print('tried')
"""
