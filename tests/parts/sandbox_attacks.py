"""Attacks that a program tries one after another: each has to raise an exception."""

from __future__ import annotations

import os

_WRITTEN = (
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/printk_ratelimit_burst", "/proc/sys/fs/suid_dumpable",
    "/proc/sys/vm/drop_caches", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity", "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/power/state", "/etc/passwd", "/etc/ld.so.preload",
    "/proc/self/uid_map", "/proc/self/setgroups", "/proc/1/oom_score_adj", "/proc/1/timerslack_ns",
    "/proc/1/comm", "/proc/1/clear_refs", "/proc/1/coredump_filter", "/proc/pressure/memory",
    "/proc/sys/net/ipv4/ip_forward", "/proc/sys/user/max_user_namespaces", "/proc/mtrr",
    "/dev/shm/x", "/agent/infra/sandbox/inside/confined_agent.py",
)  # fmt: skip
_READ = (
    "/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/1/mem",
    "/proc/1/environ", "/etc/shadow", "/dev/mem", "/dev/kmsg", "/dev/kvm",
    "/proc/1/maps", "/proc/1/auxv", "/proc/1/syscall", "/proc/1/stack", "/proc/1/io",
    "/proc/cmdline", "/proc/config.gz", "/proc/modules", "/proc/kallsyms", "/proc/interrupts",
    "/proc/diskstats", "/proc/partitions", "/proc/key-users", "/proc/slabinfo", "/proc/kpagecount",
    "/dev/tty", "/dev/fuse", "/dev/net/tun", "/dev/loop-control", "/dev/vda", "/dev/sda",
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
    "write memory of the agent": (311, "1", "0", "0", "0", "0", "0"),
    "advise memory of the agent": (440, "fd", "0", "0", "0", "0"),
    "ports": (172, "3"),
    "one port": (173, "0x80", "1", "1"),
    "hang up": (153,),
    "unload a module": (176, "b'x'", "0"),
    "load a module by descriptor": (313, "fd", "b''", "0"),
    "kexec by descriptor": (320, "fd", "fd", "0", "b''", "0"),
    "add a key": (248, "b'user'", "b'x'", "b'y'", "1", "-3"),
    "ask for a key": (249, "b'user'", "b'x'", "0", "-3"),
    "new mount": (430, "b'tmpfs'", "0"),
    "open a tree": (428, "-100", "b'/'", "1"),
    "open a tree with attributes": (467, "-100", "b'/'", "1", "0", "0"),
    "attributes of a mount": (442, "-100", "b'/'", "0", "bytes(32)", "32"),
    "clone into namespaces by structure": (435, "(c.c_uint64*11)(1 << 28, 0, 0, 0, 17)", "88"),
    "quotas": (179, "0x80000100", "0", "0", "0"),
    "quotas by descriptor": (443, "fd", "0x80000100", "0", "0"),
    "adjust the clock": (305, "0", "(c.c_long*26)(1)"),
    "segments": (154, "0", "c.create_string_buffer(64)", "64"),
    "flush all disks": (162,),
    "flush a disk": (306, "fd"),
    "what others read": (451, "fd", "(c.c_uint64*2)()", "(c.c_uint64*5)()", "0"),
    "domain name": (171, "b'x'", "1"),
    "swap on a shown file": (167, "os.__file__.encode()", "0"),
    "memory shared without a file": (9, "0", "1 << 20", "3", "0x21", "-1", "0"),
    "memory shared and checked": (9, "0", "1 << 20", "3", "0x23", "-1", "0"),
    "memory of huge pages": (9, "0", "1 << 21", "3", "0x40022", "-1", "0"),
    "memory of /dev/zero": (9, "0", "1 << 20", "1", "1", "zero()", "0"),
    "flags with high bits": (16, "fd", "(1 << 32) | 0x40086602", "c.byref(c.c_long(16))"),
    "ambient capability": (157, "47", "2", "21", "0", "0"),
    "keep capabilities": (157, "28", "1", "0", "0", "0"),
    "own memory's layout": (157, "35", "1", "0", "0", "0"),
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
    "lock a shown file": "locked()",
    "be root for files": "os.setresuid(0, 0, 0) if os.getuid() else 1 / 0",
    "the group of root": "os.setresgid(0, 0, 0) if os.getgid() else 1 / 0",
    "dump memory": "resource.setrlimit(resource.RLIMIT_CORE, (9, 9))",
    "more processes": "resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))",
    "more time": "resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
    "larger files": "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
    "real time": "os.sched_setscheduler(0, 1, os.sched_param(1))",
    "never the one that ends": "write('/proc/self/oom_score_adj', b'-1000')",
    "channel of the agent": "os.listdir('/proc/1/fd')",
    "root of the agent": "os.stat('/proc/1/root/etc')",
    "folder of the agent": "os.readlink('/proc/1/cwd')",
    "network of the agent": "call(308, os.open('/proc/1/ns/net', 0), 0)",
    "namespace above": "fcntl.ioctl(os.open('/proc/self/ns/user', 0), 0xB701)",
    "device of one's own": "os.mknod('d', 0o20666, os.makedev(1, 5)); open('d', 'rb').read(1)[0]",
    "memory device": "os.mknod('m', 0o20666, os.makedev(1, 1)); open('m', 'rb').read(1)[0]",
    "link to a shown file": "os.link(os.__file__, 'h')",
    "move a shown file": "os.rename(os.__file__, 'h')",
    "file beside a library": "os.symlink('x', os.path.dirname(os.__file__) + '/json.py')",
    "control group": "os.mkdir('/sys/fs/cgroup/x')",
    "terminal": "os.openpty()",
    "more randomness": "fcntl.ioctl(os.open('/dev/urandom', 2), 0x5207)",
    "freeze a disk": "fcntl.ioctl(os.open('/usr', 0), 0xC0045877, 0)",
    "trim a disk": "fcntl.ioctl(os.open('/usr', 0), 0xC0185879, bytearray(24))",
    **{
        f"netlink {kind}": f"socket.socket(16, 3, {kind})" for kind in (4, 6, 9, 12, 15, 16, 20, 21)
    },
    **{f"protocol {kind}": f"socket.socket(2, 1, {kind})" for kind in (132, 262)},
    **{f"datagrams {kind}": f"socket.socket(2, 2, {kind})" for kind in (1, 115, 136)},
    **{f"family {kind}": f"socket.socket({kind}, 3, 1)" for kind in (21, 29, 30, 31, 43, 44)},
}


AMONG_MANY = {"lock a shown file"}
"""what a program of several can do, until its command ends: no kernel offers a way to refuse it"""
IN_A_CONTAINER = {"memory of /dev/zero", *(f"read {path}" for path in _READ if "/proc/" in path)}
"""what podman or docker decides: it counts all memory, and shows more of the machine's numbers"""


def attacks() -> dict[str, str]:
    """Statements by the name of what they try; calls by number where they are x86-64's."""
    found = {f"write {path}": f"write({path!r}, b'1')" for path in _WRITTEN}
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
def write(path, content):
    os.write(os.open(path, os.O_WRONLY | os.O_CREAT), content)
def zero():
    return os.open('/dev/zero', os.O_RDONLY)
def locked():
    one, other = os.open(os.__file__, 0), os.open(os.__file__, 0)
    fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    raise OSError('locked twice, so not at all')
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
