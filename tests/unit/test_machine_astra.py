"""ASTRA-sim's networks as machines: what becomes of each dimension, units, and what is refused."""

import sys

import pytest

from strata import machine
from strata.errors import InvalidArgument
from strata.machine import astra
from strata.plan.topology import Topology

pytest.importorskip("yaml")
GIB = 1.073741824


def network(tmp_path, topology="[ Switch ]", npus="[ 8 ]", bandwidth="[ 50.0 ]", latency="[ 500.0 ]", more=""):
    file = tmp_path / "net.yml"
    file.write_text(f"# a network\ntopology: {topology}\nnpus_count: {npus}\nbandwidth: {bandwidth}  # GB/s\n"
                    f"latency: {latency}  # ns\n{more}")  # fmt: skip
    return file


def test_a_switch_is_a_node_of_ports(tmp_path):
    found = astra.read(network(tmp_path))
    assert found.name == "net" and found.place == Topology(1, 8) and found.topology.dies == 8
    assert found.die.ub_gbps == found.tiers[2].read_gbps == found.tiers[2].write_gbps == 50 * GIB
    assert found.tiers[2].seen_us == 1.0 and found.tiers[2].alpha_us == 2.0  # two links, and there and back
    assert found.fanout.loss == 0 and found.die.sio_gbps == 0 and found.die.node_gbps == 0
    old = machine.load("cm384")
    assert found.tiers[0] == old.tiers[0] and found.core == old.core and found.sdma == old.sdma
    cores = old.tiers[2].read_gbps / old.tiers[2].core_gbps
    assert found.tiers[2].read_gbps / found.tiers[2].core_gbps == pytest.approx(cores)
    grade, source = found.sources["die.ub_gbps"]
    assert grade == "D" and "Switch of 8, 50 GiB/s, 500 ns a link; the rest as cm384" in source
    assert found.sources["die.cores"] == old.sources["die.cores"]
    assert machine.parse(machine.dumps(found)) == found


def test_fully_connected_pairs_have_a_link_each(tmp_path):
    found = astra.read(network(tmp_path, "[FullyConnected]", "[4]", "[10]", "[300]"), base="dgx_h100")
    assert found.tiers[2].read_gbps == 10 * GIB and found.die.ub_gbps == 3 * 10 * GIB
    assert found.tiers[2].seen_us == pytest.approx(0.3) and found.die.cores == 132


def test_of_two_dimensions_the_inner_is_a_package(tmp_path):
    file = network(tmp_path, "[FullyConnected, Switch]", "[2, 16]", "[200, 25.0]", "[100, 1000]")
    found = astra.read(file, base=machine.load("host"))
    assert found.place == Topology(2, 32) and not found.topology.flat
    assert found.die.sio_gbps == found.tiers[1].read_gbps == 200 * GIB and found.die.ub_gbps == 25 * GIB
    assert [t.seen_us for t in found.tiers[1:3]] == pytest.approx([0.1, 2.0])


def test_values_may_be_no_lists(tmp_path):
    assert astra.read(network(tmp_path, "Switch", "4", "50", "0")).topology.dies == 4


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"topology": "[ Ring ]"}, "topology 'Ring': what passes through its NPUs has no counterpart"),
        ({"topology": "[ Torus ]"}, "topology 'Torus': Switch or FullyConnected"),
        ({"topology": "[ 3 ]"}, "topology 3"),
        ({"topology": "[ [Switch] ]"}, r"topology \['Switch'\]"),
        ({"npus": "[ 8, 8 ]"}, "dimensions differ in number"),
        ({"npus": "[ 1 ]"}, "npus_count 1: a whole number from 2"),
        ({"npus": "[ 2.5 ]"}, "npus_count 2.5"),
        ({"npus": "[ true ]"}, "npus_count True"),
        ({"bandwidth": "[ 0 ]"}, "bandwidth 0: a number from 0.001"),
        ({"bandwidth": "[ fast ]"}, "bandwidth 'fast'"),
        ({"bandwidth": "[ .nan ]"}, "bandwidth nan"),
        ({"latency": "[ -1 ]"}, "latency -1"),
        ({"latency": "[ .inf ]"}, "latency inf"),
        ({"more": "routing: xy\n"}, "topology, npus_count, bandwidth, latency, and no others; this has .*routing"),
        ({"topology": "[ Switch"}, "is no YAML"),
        (dict.fromkeys(("topology", "npus", "bandwidth", "latency"), "[]"), "has 0 dimensions"),
        ({"topology": "[Switch, Switch, Switch]", "npus": "[2, 2, 2]", "bandwidth": "[1, 1, 1]",
          "latency": "[1, 1, 1]"}, "has 3 dimensions, and a die has two ports"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused(change, error, tmp_path):
    with pytest.raises(InvalidArgument, match=error):
        astra.read(network(tmp_path, **change))


def test_files_that_are_none(tmp_path):
    for name, data in (("binary.yml", bytes(range(256))), ("list.yml", b"[1, 2]"), ("empty.yml", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidArgument, match=f"{name}"):
            astra.read(tmp_path / name)
    with pytest.raises(InvalidArgument, match=r"missing.yml cannot be read"):
        astra.read(tmp_path / "missing.yml")
    with pytest.raises(InvalidArgument, match="machine 'cm385' is not known"):
        astra.read(network(tmp_path), base="cm385")


def test_without_pyyaml_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InvalidArgument, match=r'pip install "strata\[astra\]"'):
        astra.read(network(tmp_path))
