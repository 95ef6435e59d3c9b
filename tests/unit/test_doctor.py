"""Each finding of ``strata doctor``, seen once: on a made-up host below a root folder."""

import json
import os
import resource
import time

import pytest

from strata import doctor
from strata.cli.main import main
from strata.doctor import checks, leftovers, machine, memory
from strata.doctor.host import Host, Room

GIB, MIB = 1 << 30, 1 << 20
HBM = 64 * GIB
STEADY = "flags : fpu constant_tsc nonstop_tsc\naddress sizes : 46 bits physical, 48 bits virtual\n"


class Made(Host):
    """A host with these files, and these answers to what is tried."""

    def __init__(self, tmp_path, files=None, **answers):
        super().__init__(str(tmp_path))
        self.answers = {
            "room": {"/dev/shm": Room(16 * GIB, 15 * GIB, 10**6, True)}, "release": (6, 8), "affinity": 8, "uid": 1000,
            "collapse": "", "reserve": True, "calls": {}, "peer_file": "", "limits": {}, "environment": {},
            "run": (0, "well\n"), **answers,
        }  # fmt: skip
        usual = {
            "/proc/mounts": "tmpfs /dev/shm tmpfs rw,nosuid 0 0\nproc /proc proc rw 0 0\n",
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size advise [never] deny force\n",
            "/proc/sys/vm/overcommit_memory": "0\n", "/proc/sys/vm/max_map_count": "262144\n",
            "/proc/cpuinfo": STEADY, "/proc/loadavg": "0.5 0.4 0.3 1/200 1234\n",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
            "/proc/self/uid_map": "0 0 4294967295\n", "/proc/self/status": "Name: x\nSeccomp:\t0\n",
            "/proc/self/cgroup": "0::/\n",
        }  # fmt: skip
        for name, text in {**usual, **(files or {})}.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "dev/shm").mkdir(parents=True, exist_ok=True)

    def room(self, folder):
        return self.answers["room"].get(folder)

    def release(self):
        return self.answers["release"]

    def affinity(self):
        return self.answers["affinity"]

    def limit(self, number):
        return self.answers["limits"].get(number, (resource.RLIM_INFINITY,) * 2)

    def environment(self, name):
        return self.answers["environment"].get(name, "")

    def uid(self):
        return self.answers["uid"]

    def collapse(self):
        return self.answers["collapse"]

    def reserve(self, base, nbytes):
        wanted = self.answers["reserve"]
        return wanted(base, nbytes) if callable(wanted) else wanted

    def calls(self):
        return {"futex": "", "pidfd_open": "", **self.answers["calls"]}

    def peer_file(self):
        return self.answers["peer_file"]

    def run(self, command, seconds):
        return self.answers["run"]


def only(findings, severity, *words):
    """The one finding of that severity; it says these words, what it means, and (but for notes) a cure."""
    found = [f for f in findings if f.severity == severity]
    assert len(found) == 1, found
    text = " ".join(found[0])
    assert all(word in text for word in words), text
    assert found[0].means and (found[0].cure or severity == "note")
    return found[0]


def test_a_host_that_is_well_says_so_of_everything(tmp_path):
    found = doctor.examine(Made(tmp_path), 4, HBM)
    told = [f for f in found if f.severity != "ok"]
    assert {f.check for f in told} <= {"checked core"}, told  # which need not be built here
    assert len({f.check for f in found}) >= 14


@pytest.mark.parametrize(
    "room, mounts, severity, words",
    [
        (None, "", "error", ["no /dev/shm", "mount -t tmpfs"]),
        (Room(64 * MIB, 10 * MIB, 100, True), "tmpfs /dev/shm tmpfs rw 0 0\n", "error", ["10.00 MiB", "--shm-size"]),
        (Room(GIB, 300 * MIB, 100, True), "tmpfs /dev/shm tmpfs rw,size=1g 0 0\n", "warning", ["size=1g", "docker"]),
        (Room(GIB, GIB, 100, False), "tmpfs /dev/shm tmpfs rw 0 0\n", "error", ["may not be written"]),
        (Room(GIB, GIB, 100, True), "tmpfs /dev/shm tmpfs ro 0 0\n", "error", ["remount,rw"]),
        (Room(GIB, GIB, 0, True), "tmpfs /dev/shm tmpfs rw 0 0\n", "error", ["inode"]),
        (Room(GIB, GIB, 100, True), "/dev/sda1 /dev/shm ext4 rw 0 0\n", "warning", ["ext4"]),
    ],
)
def test_shared_memory(tmp_path, room, mounts, severity, words):
    host = Made(tmp_path, {"/proc/mounts": mounts}, room={"/dev/shm": room})
    only(memory.shared_memory(host, 4, HBM), severity, *words)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("free, severity", [(32 * MIB, "error"), (512 * MIB, "warning"), (4 * GIB, "ok")])
def test_memory_cgroups(tmp_path, version, free, severity):
    used = GIB
    if version == 2:
        files = {"/proc/self/cgroup": "0::/job\n", "/sys/fs/cgroup/job/memory.max": f"{used + free}\n",
                 "/sys/fs/cgroup/job/memory.current": f"{used}\n"}  # fmt: skip
    else:
        folder = "/sys/fs/cgroup/memory/job"
        files = {"/proc/self/cgroup": "5:memory:/job\n", f"{folder}/memory.limit_in_bytes": f"{used + free}\n",
                 f"{folder}/memory.usage_in_bytes": f"{used}\n"}  # fmt: skip
    found = list(memory.cgroup(Made(tmp_path, files)))
    assert [f.severity for f in found] == [severity]
    if severity != "ok":
        only(found, severity, "/dev/shm count", "docker --memory")


@pytest.mark.parametrize(
    "files, answers, words",
    [
        ({"/sys/kernel/mm/transparent_hugepage/shmem_enabled": ""}, {}, ["TRANSPARENT_HUGEPAGE"]),
        ({"/sys/kernel/mm/transparent_hugepage/shmem_enabled": "always [deny]"}, {}, ["echo advise"]),
        ({}, {"collapse": "Invalid argument", "release": (5, 15)}, ["5.15", "6.1"]),
        ({}, {"collapse": "Cannot allocate memory"}, ["Cannot allocate memory"]),
    ],
)
def test_huge_pages(tmp_path, files, answers, words):
    only(memory.huge_pages(Made(tmp_path, files, **answers)), "warning", *words)


@pytest.mark.parametrize("committed, severity", [(8 << 20, "error"), (1 << 20, "warning")])
def test_overcommit(tmp_path, committed, severity):
    info = f"MemTotal: 9 kB\nCommitLimit: {8 << 20} kB\nCommitted_AS: {committed} kB\n"
    host = Made(tmp_path, {"/proc/sys/vm/overcommit_memory": "2\n", "/proc/meminfo": info})
    only(memory.overcommit(host), severity, "overcommit_memory=0")


def test_mappings(tmp_path):
    only(memory.overcommit(Made(tmp_path, {"/proc/sys/vm/max_map_count": "1000\n"})), "warning", "max_map_count=262144")


def test_addresses(tmp_path):
    only(memory.addresses(Made(tmp_path, reserve=False), 4, HBM), "error", "no place for a", "STRATA_WINDOW_BASE")
    narrow = Made(tmp_path, {"/proc/cpuinfo": "address sizes : 36 bits physical, 39 bits virtual\n"}, reserve=False)
    only(memory.addresses(narrow, 4, HBM), "error", "39 bits", "--hbm")
    limited = Made(tmp_path, limits={resource.RLIMIT_AS: (GIB, GIB)})
    only(memory.addresses(limited, 4, HBM), "error", "ulimit -v unlimited")
    asan = Made(tmp_path, environment={"LD_PRELOAD": "/lib/libasan.so.8"})
    only(memory.addresses(asan, 4, HBM), "note", "AddressSanitizer")
    place = memory.candidates(4, HBM)[2]
    third = Made(tmp_path, reserve=lambda base, nbytes: base == place)
    (fine,) = memory.addresses(third, 4, HBM)
    assert fine.severity == "ok" and f"1 of 16 places, the first {place:#x}" in fine.seen


def test_processors(tmp_path):
    only(machine.processors(Made(tmp_path, affinity=2), 8), "warning", "2 CPUs for 8 dies", "-n 2")
    quota = {"/proc/self/cgroup": "0::/j\n", "/sys/fs/cgroup/j/cpu.max": "50000 100000\n"}
    only(machine.processors(Made(tmp_path, quota), 2), "warning", "0.5", "--cpus")
    only(machine.processors(Made(tmp_path, {"/proc/loadavg": "40.0 1 1 1/1 1\n"}), 2), "note", "40.0")


def test_clocks(tmp_path):
    slow = {"/sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"}
    only(machine.clocks(Made(tmp_path, slow)), "warning", "hpet", "clocksource=tsc")
    only(machine.clocks(Made(tmp_path, {"/proc/cpuinfo": "flags : fpu\n"})), "warning", "not steady")
    only(machine.clocks(Made(tmp_path, {"/proc/sys/kernel/perf_event_paranoid": "4\n"})), "note", "perf")


def test_process_limits(tmp_path):
    def limited(number, soft, hard=None, **more):
        return machine.process_limits(Made(tmp_path, limits={number: (soft, hard or soft)}, **more), 64)

    only(limited(resource.RLIMIT_NOFILE, 256), "error", "ulimit -Hn")
    only(limited(resource.RLIMIT_NOFILE, 256, 1 << 20), "note", "raises it")
    only(limited(resource.RLIMIT_NPROC, 100), "error", "ulimit -u")
    only(limited(resource.RLIMIT_CORE, 0, 1), "note", "core")
    only(limited(resource.RLIMIT_MEMLOCK, 0, 1), "note", "ulimit -l")
    only(machine.process_limits(Made(tmp_path, {"/sys/fs/cgroup/pids.max": "50\n"}), 64), "error", "--pids-limit")


def test_descriptors_of_others(tmp_path):
    hidden = {"/proc/mounts": "proc /proc proc rw,hidepid=2 0 0\n", "/proc/sys/kernel/yama/ptrace_scope": "2\n"}
    host = Made(tmp_path, hidden, peer_file="Permission denied")
    only(machine.processes_of_others(host), "warning", "Permission denied", "hidepid", "ptrace_scope 2", "SYS_PTRACE")
    only(machine.processes_of_others(Made(tmp_path, hidden)), "note", "ptrace_scope is 2", "gdb")


def test_containment(tmp_path):
    only(machine.containment(Made(tmp_path, {"/proc/self/uid_map": "0 1000 1\n"})), "note", "0 1000 1")
    (tmp_path / "proc/self/uid_map").unlink()
    docker = Made(tmp_path, room={"/.dockerenv": Room(1, 1, 1, True)})
    only(machine.containment(docker), "note", "docker", "--shm-size")
    filtered = {"/proc/self/status": "Seccomp:\t2\n"}
    refused = Made(tmp_path, filtered, calls={"futex": "Operation not permitted"})
    only(machine.containment(refused), "error", "futex", "seccomp filter is on", "seccomp=unconfined")
    only(machine.containment(Made(tmp_path, calls={"pidfd_open": "x"})), "warning", "pidfd_open")


def an_object(tmp_path, name, age):
    path = tmp_path / "dev/shm" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 8192)
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_stale_objects_are_removed_unless_somebody_has_them(tmp_path):
    host = Made(tmp_path, uid=os.geteuid())
    me = tmp_path / f"proc/{os.getpid()}"
    (me / "fd").mkdir(parents=True)
    (me / "maps").write_text("")
    names = [f"strata.{os.geteuid()}.{digit * 32}" for digit in "0123"]
    gone, held, mapped, young = (an_object(tmp_path, name, 1000) for name in names)
    (me / "fd/7").symlink_to(held)
    st = mapped.stat()
    (me / "maps").write_text(f"10000-20000 rw-s 0 {os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x} {st.st_ino} /x\n")
    os.utime(young)
    other = an_object(tmp_path, "vader_segment.host.1", 3 * 86400)
    found = list(leftovers.objects(host))
    only(found, "warning", names[0], "--clean", "1 of strata's")
    only(found, "note", "vader_segment", "3 days old")
    assert leftovers.clean(host) == [str(gone)]
    assert not gone.exists() and all(p.exists() for p in (held, mapped, young, other))
    assert leftovers.clean(host) == []


def test_builds():
    only(checks.builds(["no_such_module"]), "error", "no_such_module", "build_ext")
    found = list(checks.builds())
    assert found[0].severity == "ok" and "numpy" in found[0].seen and len(found) == 2


def test_the_checked_core_is_told(monkeypatch):
    monkeypatch.setattr(checks, "CHECKED", "strata._core.checked.no_such_module")
    only(checks.builds(), "note", "STRATA_CHECKED_CORE=1")
    monkeypatch.setattr(checks, "CHECKED", "strata._core.names")
    assert [f.severity for f in checks.builds()] == ["ok", "ok"]


def test_self_test(tmp_path):
    hangs = Made(tmp_path, run=(124, "a\nit did not end"))
    only(checks.trial(hangs), "error", "124", "did not end", "strata.doctor.trial")
    only(checks.trial(Made(tmp_path, run=(0, "the sum is wrong"))), "error", "the sum is wrong")


def test_a_check_that_fails_is_a_finding(tmp_path):
    host = Made(tmp_path)
    host.collapse = lambda: (_ for _ in ()).throw(OSError("no luck"))
    only([f for f in doctor.examine(host, 2, HBM, False) if f.check == "huge pages"], "error", "no luck")


def test_other_jobs_are_told(tmp_path, monkeypatch):
    from strata.inspection.finding import Job

    monkeypatch.setattr(leftovers.finding, "find", lambda proc: [Job("ab" * 16, "train.py", 7, (8, 9), ("", ""), 4)])
    only(leftovers.jobs(Made(tmp_path)), "note", "train.py (launcher 7, 4 dies", "strata top")


def test_this_host_can_be_looked_at():
    host = Host()
    assert host.room("/dev/shm") is not None and host.room("/no/such/folder") is None
    assert isinstance(host.collapse(), str) and host.affinity() >= 1
    assert host.peer_file() == "" or "denied" in host.peer_file()
    assert set(host.calls().values()) == {""}
    assert host.run(["/bin/sh", "-c", "echo hi; exit 3"], 30) == (3, "hi\n")
    assert host.run(["/bin/sh", "-c", "sleep 100"], 0.05)[0] == 124
    assert not host.reserve(0, 1 << 21) and not host.reserve(memory.candidates(4, HBM)[0], 1 << 48)


def test_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "Host", lambda: Made(tmp_path, reserve=False))
    assert main(["doctor", "--no-self-test", "-q"]) == 1
    said = capsys.readouterr().out
    assert "ERROR    addresses:" in said and "cure:" in said and "1 error" in said and "\nok " not in said
    assert main(["doctor", "--json", "--no-self-test", "-n", "4"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["broken"] and found["ranks"] == 4
    assert set(found["findings"][0]) == {"severity", "check", "seen", "means", "cure"}
    monkeypatch.setattr(doctor, "Host", lambda: Made(tmp_path))
    assert main(["doctor", "--clean", "-n", "4"]) == 0
    assert "self-test: two dies" in capsys.readouterr().out
