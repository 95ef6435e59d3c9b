"""Options: read once, checked, and named in every complaint."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata import config
from strata.errors import ConfigError

SAMPLES = {  # option -> (text that is allowed, its value)
    "rank": ("0", 0),
    "world_size": ("384", 384),
    "job": ("a1b2", "a1b2"),
    "job_fd": ("7", 7),
    "job_socket": ("strata-a1b2", "strata-a1b2"),
    "hbm_bytes": ("1.5G", 3 << 29),
    "timeout": ("2.5", 2.5),
    "registration": ("POOL", "pool"),
    "window_base": ("0x200000000000", 1 << 45),
    "mailbox_bytes": ("4KiB", 4096),
    "spin": ("100", 100),
    "yield_ms": ("0", 0.0),
    "poll_ms": ("1", 1.0),
    "cache_bytes": ("0", 0),
    "intercept": ("on", True),
    "intercept_min_bytes": ("64K", 1 << 16),
}
WRONG = {  # every text that must be refused
    "rank": ["-1", "x", "1.5"],
    "world_size": ["0", """ "" """],
    "job_fd": ["-1", "stdin"],
    "hbm_bytes": ["0", "-1G", "64X", "1e9", "99999T", "G"],
    "timeout": ["-1", "inf", "nan", "5m"],
    "registration": ["always", "on-allocation"],
    "window_base": ["-1", "0xg", str(1 << 57)],
    "mailbox_bytes": ["2M", "-1"],
    "spin": ["-1", "often"],
    "yield_ms": ["-0.5", "nan"],
    "poll_ms": ["0", "0.5"],
    "cache_bytes": ["-1"],
    "intercept": ["2", "maybe"],
    "intercept_min_bytes": ["-1", "some"],
}


def test_defaults_need_no_environment():
    assert config.load({}) == config.Config()


def test_every_option_is_declared_whole():
    for option in config.options():
        assert option.env.startswith("STRATA_") and option.env == option.env.upper()
        assert option.doc.endswith(".") and option.allowed
        assert option.internal or option.default is not None


@pytest.mark.parametrize("name", [o.name for o in config.options() if o.name in SAMPLES])
def test_value_from_environment_and_override(name):
    text, value = SAMPLES[name]
    env = next(o.env for o in config.options() if o.name == name)
    assert getattr(config.load({env: text}), name) == value
    assert getattr(config.load({}, **{name: text}), name) == value
    assert getattr(config.load({}, **{name: value}), name) == value
    assert getattr(config.load({env: "  "}), name) == getattr(config.Config(), name)
    assert getattr(config.load({env: text}, **{name: None}), name) == value


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in WRONG.items() for t in texts])
def test_bad_value_names_variable_value_and_allowed(name, text):
    option = next(o for o in config.options() if o.name == name)
    with pytest.raises(ConfigError) as caught:
        config.load({option.env: text})
    for part in (option.env, repr(text), option.allowed):
        assert part in str(caught.value)


def test_override_beats_environment():
    assert config.load({"STRATA_TIMEOUT": "9"}, timeout=1).timeout == 1.0


def test_defaults_are_themselves_allowed():
    for option in config.options():
        if option.default is not None:
            assert getattr(config.load({}, **{option.name: option.default}), option.name) == (
                option.default
            )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("STRATA_HBN", "STRATA_HBM"), ("STRATA_TIME_OUT", "STRATA_TIMEOUT"), ("STRATA_", "STRATA_")],
)
def test_unknown_name_suggests_the_nearest(name, nearest):
    with pytest.raises(ConfigError, match=f"{name} is not an option; did you mean {nearest}"):
        config.load({name: "1"})


def test_unknown_override_suggests_the_nearest():
    with pytest.raises(ConfigError, match="timeouts is not an option; did you mean timeout"):
        config.load({}, timeouts=1)


def test_other_variables_are_left_alone():
    environ = {"PATH": "/bin", "STRATAGEM": "1", "STRATA_DEBUG": "1", "STRATA_SANITIZE": "thread"}
    assert config.load(environ) == config.Config()


def test_rank_must_be_below_world_size():
    with pytest.raises(ConfigError, match="STRATA_RANK=4: allowed is 0 to 3"):
        config.load({"STRATA_RANK": "4", "STRATA_WORLD_SIZE": "4"})


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.load({}).timeout = 1.0


def test_get_reads_once_until_reset(monkeypatch):
    config.reset()
    monkeypatch.setenv("STRATA_TIMEOUT", "7")
    try:
        first = config.get()
        monkeypatch.setenv("STRATA_TIMEOUT", "8")
        assert first.timeout == 7.0 and config.get() is first
        config.reset()
        assert config.get().timeout == 8.0
        config.reset(first)
        assert config.get() is first
    finally:
        config.reset()


def test_a_failed_get_is_not_remembered(monkeypatch):
    config.reset()
    monkeypatch.setenv("STRATA_TIMEOUT", "soon")
    with pytest.raises(ConfigError):
        config.get()
    monkeypatch.delenv("STRATA_TIMEOUT")
    try:
        assert config.get().timeout == config.Config().timeout
    finally:
        config.reset()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64G", 64 << 30),
        ("64g", 64 << 30),
        ("2MiB", 2 << 20),
        ("2 MiB", 2 << 20),
        ("64GB", 64 * 10**9),
        ("1T", 1 << 40),
        ("8b", 8),
        ("0.5K", 512),
    ],
)
def test_sizes(text, size):
    assert config.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1..2", "1 2", "1GiBs", "0x10", "1e3", "iB", "1iB1"])
def test_not_sizes(text):
    with pytest.raises(ValueError, match="not a size"):
        config.parse_size(text)


@given(st.integers(1, 1 << 44))
def test_hbm_is_whole_frames(size):
    got = config.load({"STRATA_HBM": str(size)}).hbm_bytes
    assert got % config.FRAME == 0 and 0 <= got - size < config.FRAME
