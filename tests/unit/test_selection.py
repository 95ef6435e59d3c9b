"""What carries an operation out: the call's wish, then options, then a table, then the model."""

import json

import pytest

from strata import config, selection
from strata.errors import ConfigError, InvalidArgument
from strata.plan import algorithms, build
from strata.plan.algorithms import Algorithm, full_mesh
from strata.plan.select import Ask, Settings, _bucket, choose
from strata.plan.spec import Spec
from strata.plan.table import Table

SPEC = Spec("all_gather", 1 << 20, nranks=4)


@pytest.fixture
def other(monkeypatch):
    """A second algorithm for all_gather, the same but in name."""
    made = Algorithm("other", frozenset(("all_gather",)), full_mesh.slices)
    monkeypatch.setattr(algorithms, "_ALL", {**algorithms._ALL, "other": made})
    return made


def test_the_call_the_option_the_table_the_model(other):
    table = Table("t", [("all_gather", 4, 1 << 20, {"full_mesh": 10.0, "other": 5.0})])
    assert choose(SPEC).algorithm.name in algorithms.names()
    assert "cost model" in choose(SPEC).why
    chosen = choose(SPEC, Ask(), Settings(table=table))
    assert chosen.algorithm is other and "table t" in chosen.why
    assert [c.name for c in chosen.candidates] == ["other", "full_mesh"]
    settings = Settings(table=table, options={"all_gather": Ask("full_mesh")})
    chosen = choose(SPEC, Ask(), settings)
    assert chosen.algorithm.name == "full_mesh" and "STRATA_ALGORITHM" in chosen.why
    chosen = choose(SPEC, Ask("other"), settings)
    assert chosen.algorithm is other and "call" in chosen.why


def test_an_option_for_all_operations_holds_for_those_that_it_suits(other):
    settings = Settings(options={"": Ask("other", partition="naive")})
    assert choose(SPEC, Ask(), settings).algorithm is other
    assert choose(SPEC, Ask(), settings).partition == "naive"
    chosen = choose(Spec("all_to_all", 1 << 20, nranks=4), Ask(), settings)
    assert chosen.algorithm.name != "other" and chosen.partition == "naive"
    with pytest.raises(InvalidArgument, match="it does all_gather"):
        choose(Spec("all_to_all", 8, nranks=4), Ask(), Settings(options={"all_to_all": Ask("other")}))
    with pytest.raises(InvalidArgument, match="no algorithm 'nonsense'"):
        choose(SPEC, Ask(), Settings(options={"": Ask("nonsense")}))
    assert choose(SPEC._replace(mode="mailbox"), Ask(), settings).algorithm.name == "full_mesh"


@pytest.mark.parametrize(
    "ask, what",
    [
        (Ask("nonsense"), "full_mesh"),
        (Ask(path="cable"), "mte"),
        (Ask(partition="fair"), "balanced, naive"),
        (Ask(cores=0), "from 1 to"),
        (Ask(cores="many"), "from 1 to"),
    ],
)
def test_what_there_is_not_is_refused(ask, what):
    with pytest.raises(ValueError, match=what):
        choose(SPEC, ask)


def test_the_first_wish_counts_where_it_says_something():
    assert Ask("a", None, 3).over(Ask("b", "p", 4, "q")) == ("a", "p", 3, "q")
    chosen = choose(SPEC, Ask(cores=3), Settings(cores=8, options={"": Ask(partition="naive")}))
    assert (chosen.cores, chosen.partition, chosen.path) == (3, "naive", "mte")
    assert choose(SPEC, Ask(), Settings(cores=8)).cores == 8


def test_sizes_that_are_alike_are_looked_up_once(monkeypatch):
    settings = Settings()
    first = choose(SPEC, Ask(), settings)
    assert choose(SPEC._replace(count=SPEC.count + 1), Ask(), settings).candidates is first.candidates
    assert len(settings._known) == 1
    numbers = [_bucket(n) for n in range(1 << 12)]
    assert numbers == sorted(numbers) and len(set(numbers)) < 60
    for n in range(1, 1 << 12):
        assert _bucket(n) != _bucket(n * 2)


def test_a_table_answers_for_sizes_that_are_near(tmp_path):
    rows = [("all_gather", 4, 1 << k, {"full_mesh": float(k)}) for k in (10, 20)]
    table = Table("t", rows)
    table.save(tmp_path / "table.json")
    for found in (table, Table.load(tmp_path / "table.json")):
        assert found.rows == rows and found.name == "t"
        assert found.lookup("all_gather", 4, 1 << 10) == {"full_mesh": 10.0}
        assert found.lookup("all_gather", 4, 8 << 10) == {"full_mesh": 10.0}
        assert found.lookup("all_gather", 4, 1 << 19) == {"full_mesh": 20.0}
        nobody = (("all_gather", 4, 1 << 15), ("all_gather", 3, 1 << 10), ("gather", 4, 1 << 10), ("all_gather", 4, 0))
        for where in nobody:
            assert found.lookup(*where) == {}


ROW = {"operation": "all_gather", "ranks": 2, "bytes": 8, "us": {"full_mesh": 1.0}}
WRONG = [{"operation": "x"}, {"ranks": 0}, {"bytes": -1}, {"us": {}}, {"us": {"a": -1}}, {"us": {"a": 1e999}},
         {"us": {"a": "b"}}, {"ranks": True}, {"us": 7}]  # fmt: skip
TABLES = [
    "",
    "[]",
    '{"version": 1}',
    '{"version": 2, "name": "t", "rows": []}',
    '{"version": 1, "name": "t", "rows": [7]}',
    *(json.dumps({"version": 1, "name": "t", "rows": [{**ROW, **wrong}]}) for wrong in WRONG),
]


@pytest.mark.parametrize("text", TABLES)
def test_a_file_that_is_no_table_is_refused(tmp_path, text):
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(InvalidArgument, match=r"table\.json"):
        Table.load(tmp_path / "table.json")


def read(**options):
    return selection._read(config.load({f"STRATA_{k.upper()}": v for k, v in options.items()}))


def test_options_say_the_same(tmp_path):
    found = read(algorithm="full_mesh, all_reduce=ring", partition="naive", topology="2x4", cores="5")
    assert found.options[""] == Ask("full_mesh", partition="naive")
    assert found.options["all_reduce"] == Ask("ring", partition="naive")
    assert (found.topology.package, found.topology.node, found.topology.flat, found.cores) == (2, 4, True, 5)
    wrong = ({"algorithm": "all_red=ring"}, {"topology": "3x4"}, {"topology": "big"}, {"table": str(tmp_path / "no")})
    for options in wrong:
        with pytest.raises(ConfigError, match=f"STRATA_{next(iter(options)).upper()}"):
            read(**options)
    table = Table("t", [("all_gather", 4, 8, {"full_mesh": 1.0})])
    table.save(tmp_path / "table.json")
    assert read(table=str(tmp_path / "table.json")).table.rows == table.rows


def test_numbers_of_wishes(other):
    selector = selection.Selector(4)
    assert selector.ask(0) == Ask()
    direct = selector.number("all_gather", "other", None, None, None)
    assert direct & 1 and selector.ask(direct) == Ask("other")
    assert selector.number("all_gather", "other", None, None, None) == direct
    mailbox = selector.number("all_gather", "full_mesh", None, 2, None)
    assert not mailbox & 1 and selector.ask(mailbox) == Ask("full_mesh", None, 2)
    with pytest.raises(ValueError, match="it does all_gather"):
        selector.number("all_to_all", "other", None, None, None)


def test_digests_tell_algorithms_apart(other):
    assert algorithms.digest("full_mesh") == 0
    names = [name for name in algorithms.names() if not algorithms.is_users(name)]  # those may meet by chance
    seen = {algorithms.digest(name) for name in names}
    assert len(seen) == len(names) and max(seen) < 1 << 15
    assert algorithms.by_digest(algorithms.digest("other")) == "other"
    assert "not known here" in algorithms.by_digest(algorithms.digest("somebody's"))


@pytest.mark.parametrize("text, what", [("all_reduce=", "no algorithm for all_reduce"),
                                        ("ring,rhd", "two algorithms for all operations")])  # fmt: skip
def test_an_option_names_one_algorithm_for_an_operation(text, what):
    with pytest.raises(ConfigError, match=what):
        selection._options(config.load({"STRATA_ALGORITHM": text}))


def test_errors_name_the_option_and_the_codes():
    asked = Settings(options={"": Ask("rign")})
    with pytest.raises(InvalidArgument, match="STRATA_ALGORITHM: there is no algorithm 'rign'"):
        choose(Spec("all_gather", 1 << 20, nranks=4), settings=asked)
    with pytest.raises(InvalidArgument, match=r"^there is no algorithm 'rign'"):
        choose(Spec("all_gather", 1 << 20, nranks=4), Ask("rign"))
    with pytest.raises(InvalidArgument, match=r"DTYPE_NAMES.index\('f32'\)"):
        by_name = Spec("all_reduce", 4, 4, "f32", "sum", nranks=2)  # type: ignore[arg-type]
        build(by_name, 0)
    with pytest.raises(InvalidArgument, match=r"OP_NAMES.index\('sum'\)"):
        build(Spec("all_reduce", 4, 4, nranks=2), 0)
