"""Sources override one another in order, and every error names the key, the value and the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from relaygr.config.load import MAX_TOML_BYTES, load_config
from relaygr.config.settings import Config
from relaygr.core.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    file = folder / "relaygr.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_no_sources_gives_the_defaults() -> None:
    assert load_config() == Config()


def test_each_source_overrides_the_one_before(tmp_path: Path) -> None:
    toml = write(tmp_path, "[engine]\nthreads = 1\nmicrobatch = 1\nmax_candidates = 1\n[train]\nlr = 1\n")
    environ = {"RELAYGR_ENGINE__THREADS": "2", "RELAYGR_ENGINE__MICROBATCH": "2", "HOME": "/"}
    config = load_config(toml, environ, ["engine.threads=3"])
    assert (config.engine.threads, config.engine.microbatch, config.engine.max_candidates) == (3, 2, 1)
    assert config.train.lr == 1.0
    assert config.engine.page_tokens == 32


def test_the_last_override_wins() -> None:
    assert load_config(overrides=["train.seed=1", "train.seed=2"]).train.seed == 2


def test_a_bad_value_is_refused_even_where_a_later_source_would_replace_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="33"):
        load_config(write(tmp_path, "[engine]\npage_tokens = 33\n"), overrides=["engine.page_tokens=32"])


def test_sizes_in_every_source(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, '[engine]\ndevice_bytes = "512MiB"')).engine.device_bytes == 512 << 20
    assert load_config(write(tmp_path, "[engine]\ndevice_bytes = 1048576")).engine.device_bytes == 1 << 20
    assert load_config(environ={"RELAYGR_ENGINE__DEVICE_BYTES": "1GiB"}).engine.device_bytes == 1 << 30
    assert load_config(overrides=["engine.device_bytes = 2GiB"]).engine.device_bytes == 2 << 30


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_booleans_from_text(text: str, value: bool) -> None:
    assert load_config(overrides=[f"engine.bitwise={text}"]).engine.bitwise is value


@pytest.mark.parametrize(
    ("override", "path", "words"),
    [
        ("engine.page_token=3", "engine.page_token", "did you mean 'engine.page_tokens'"),
        ("engin.page_tokens=3", "engin.page_tokens", "did you mean 'engine.page_tokens'"),
        ("page_tokens=32", "page_tokens", "did you mean 'engine.page_tokens'"),
        ("train.learning_rate=1", "train.learning_rate", "unknown key; did you mean"),
        ("engine.page_tokens.x=3", "engine.page_tokens.x", "did you mean 'engine.page_tokens'"),
        ("engine=3", "engine", "is a section with the keys page_tokens"),
        ("=3", "", "unknown key"),
        ("engine.page_tokens=33", "engine.page_tokens", "33 must be a power of two in [8, 256] (in --set)"),
        ("engine.page_tokens=", "engine.page_tokens", "'' is not valid"),
        ("engine.threads=1.5", "engine.threads", "'1.5' is not valid"),
        ("engine.threads=1025", "engine.threads", "1025 must be in [0, 1024]"),
        ("engine.dtype=fp16", "engine.dtype", "'fp16' must be one of 'auto', 'fp32', 'bf16'"),
        ("engine.bitwise=maybe", "engine.bitwise", "'maybe' is not valid"),
        ("engine.device_bytes=1GB", "engine.device_bytes", "'1GB' must be a number of bytes"),
        ("engine.device_bytes=1B", "engine.device_bytes", "1 must be in [1048576, "),
        ("train.lr=nan", "train.lr", "nan must be in (0, 10]"),
        ("train.lr", "--set", "'train.lr' must have the form section.key=value"),
    ],
)
def test_override_errors(override: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[override])
    assert caught.value.path == path
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("[engine]\npage_tokns = 3", "engine.page_tokns", "did you mean 'engine.page_tokens'? (in "),
        ("[engin]\nthreads = 3", "engin.threads", "did you mean 'engine.threads'"),
        ("[engin]", "engin", "unknown key"),
        ("engine = 3", "engine", "is a section"),
        ("threads = 3", "threads", "did you mean 'engine.threads'"),
        ('[engine]\nthreads = "3"', "engine.threads", "Expected `int`, got `str`"),
        ("[engine]\nthreads = true", "engine.threads", "True is not valid"),
        ("[engine]\nthreads = [1]", "engine.threads", "[1] is not valid"),
        ("[engine]\nlease_ttl_ms = 0", "engine.lease_ttl_ms", "0 must be in [1, 600000] (in "),
        ("[engine\n", "config", "is not TOML"),
        ("#" * (MAX_TOML_BYTES + 1), "config", "more than 1048576 bytes"),
    ],
)
def test_toml_errors(tmp_path: Path, text: str, path: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert caught.value.path == path
    assert words in str(caught.value)


def test_toml_that_is_not_utf8_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "latin.toml"
    file.write_bytes(b'[engine]\ndtype = "\xff"')
    with pytest.raises(ConfigError, match="is not TOML"):
        load_config(file)
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml"):
        load_config(tmp_path / "none.toml")


def test_environment_errors_name_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"engine\.thread: .*'engine\.threads'.*RELAYGR_ENGINE__THREAD\b"):
        load_config(environ={"RELAYGR_ENGINE__THREAD": "2"})
    with pytest.raises(ConfigError, match=r"train\.seed: 'x' is not valid.*RELAYGR_TRAIN__SEED"):
        load_config(environ={"RELAYGR_TRAIN__SEED": "x"})


def test_variables_without_a_section_are_not_settings() -> None:
    assert load_config(environ={"RELAYGR_SHARED": "/data", "OTHER__THING": "1"}) == Config()
