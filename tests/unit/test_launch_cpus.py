"""CPUs that a process may use: affinity mask and cgroup quota."""

import os

import pytest

from strata._core import cpus, space


def group(root, path, **files):
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text + "\n")


def proc(tmp_path, text):
    path = tmp_path / "cgroup"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    "own, parent, expected",
    [
        ("150000 100000", "max 100000", 1.5),
        ("max 100000", "max 100000", None),
        ("400000 100000", "200000 100000", 2.0),
        ("50000 100000", "200000 100000", 0.5),
        ("rubbish", "", None),
    ],
)
def test_version_2(tmp_path, own, parent, expected):
    root = tmp_path / "fs"
    group(root, "a/b", cpu_max=own)
    group(root, "a", cpu_max=parent)
    assert cpus.quota(proc(tmp_path, "0::/a/b\n"), str(root)) == expected


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("quota, expected", [("300000", 3.0), ("-1", None)])
def test_version_1(tmp_path, folder, quota, expected):
    root = tmp_path / "fs"
    group(root, f"{folder}/x", **{"cpu_cfs_quota_us": quota, "cpu_cfs_period_us": "100000"})
    text = f"9:name=systemd:/\n4:{'cpu' if folder == 'cpu' else 'cpu,cpuacct'}:/x\n3:cpuset:/y\n"
    assert cpus.quota(proc(tmp_path, text), str(root)) == expected


def test_a_container_shows_its_group_as_the_root(tmp_path):
    root = tmp_path / "fs"
    group(root, ".", cpu_max="250000 100000")
    assert cpus.quota(proc(tmp_path, "0::/system.slice/docker-1.scope\n"), str(root)) == 2.5


def test_without_cgroups(tmp_path):
    assert cpus.quota(str(tmp_path / "absent"), str(tmp_path)) is None


@pytest.mark.parametrize("granted, expected", [(None, 4), (8.0, 4), (2.9, 2), (0.5, 1)])
def test_mask_and_quota(monkeypatch, granted, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(cpus, "quota", lambda: granted)
    assert cpus.usable_cpus() == expected


def test_the_core_asks_here():
    assert space.job_cpus is cpus.job_cpus


@pytest.mark.parametrize(
    "own, parents, granted, expected",
    [
        ({3}, {0, 1, 2, 3}, None, 4),  # bound by its launcher
        ({3}, {0, 1, 2, 3}, 2.5, 2),
        ({0, 1}, {0, 1}, None, 2),
        ({0, 1, 2}, {0}, None, 3),  # has bound itself elsewhere
        ({0}, {1, 2}, None, 1),
        ({0}, None, None, 1),  # the launcher has ended
    ],
)
def test_cpus_of_a_job_whose_dies_are_bound(monkeypatch, own, parents, granted, expected):
    def masks(pid):
        if pid and parents is None:
            raise ProcessLookupError
        return parents if pid else own

    monkeypatch.setattr(os, "sched_getaffinity", masks)
    monkeypatch.setattr(cpus, "quota", lambda: granted)
    assert cpus.job_cpus() == expected
