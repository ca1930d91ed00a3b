"""Settings: who wins, what `lastgood.toml` may say, and that an error shows no value."""

import logging
import os
from pathlib import Path

import pytest

from lastgood.errors import InvalidRequest
from lastgood.outside.env_file import read_env_file, secrets_of
from lastgood.settings import Settings, read_settings
from lastgood.settings.config_file import AliasSetting
from lastgood.settings.types import SettingsInvalid

CANARY = "canary-7712aa"


def read(folder: Path, toml: str | None = None, env: dict[str, str] | None = None, **flags: str) -> Settings:
    if toml is not None:
        (folder / "lastgood.toml").write_text(toml)
    return read_settings({"LASTGOOD_DATA_DIR": str(folder / "data"), **(env or {})}, folder=folder, **flags)


def refusal(folder: Path, toml: str | bytes, **env: str) -> str:
    (folder / "lastgood.toml").write_bytes(toml.encode() if isinstance(toml, str) else toml)
    with pytest.raises(SettingsInvalid) as refused:
        read(folder, None, env)
    assert CANARY not in str(refused.value)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# --- who wins --------------------------------------------------------------------------------------------


def test_a_flag_wins_over_a_variable_over_the_file_over_a_default(tmp_path: Path) -> None:
    toml = 'safety = "strict"\npull_interval = "3m"\n'
    variable = {"LASTGOOD_SAFETY": "balanced"}
    assert read(tmp_path).safety == "restricted"
    assert read(tmp_path, toml).safety == "strict"
    assert read(tmp_path, toml, variable).safety == "balanced"
    assert read(tmp_path, toml, variable, safety="autonomous").safety == "autonomous"
    assert read(tmp_path, toml, variable, safety="autonomous").pull_interval == 180.0


def test_what_is_empty_was_not_given(tmp_path: Path) -> None:
    assert read(tmp_path, 'safety = "strict"', {"LASTGOOD_SAFETY": ""}, safety="").safety == "strict"


def test_the_file_may_use_what_toml_has(tmp_path: Path) -> None:
    toml = 'insecure_no_auth = true\nconversations_max = 3\nallowed_host = ["a", "b"]\npull_interval = 0\n'
    found = read(tmp_path, toml)
    assert (found.insecure_no_auth, found.conversations_max, found.allowed_host) == (True, 3, ("a", "b"))
    assert found.pull_interval == 0.0


def test_defaults(tmp_path: Path) -> None:
    found = read_settings({"XDG_DATA_HOME": str(tmp_path / "share")}, folder=tmp_path)
    assert found == Settings(
        data_dir=tmp_path / "share/lastgood", database=f"sqlite:///{tmp_path}/share/lastgood/lastgood.db"
    )
    assert (found.pull_interval, found.safety, found.aliases) == (60.0, "restricted", {})


def test_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_settings({}, folder=tmp_path).data_dir == tmp_path / ".local/share/lastgood"
    assert read_settings({}, folder=tmp_path, env_file="~/keys").env_file == tmp_path / "keys"


def test_the_path_of_a_socket_starts_where_every_path_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/lastgood.toml").write_text('listen = "unix://run/a.sock"')
    named = {"config": str(tmp_path / "etc/lastgood.toml")}
    for given, meant in (
        ({}, f"unix://{tmp_path}/etc/run/a.sock"),
        ({"listen": "unix://b.sock"}, f"unix://{tmp_path}/b.sock"),
        ({"listen": "unix://~/b.sock"}, f"unix://{tmp_path}/home/b.sock"),
        ({"listen": "unix:///run/b.sock"}, "unix:///run/b.sock"),
        ({"listen": "unix://"}, "unix://"),  # to be refused where it is used
        ({"listen": "fd://3"}, "fd://3"),
    ):
        assert read_settings({}, folder=tmp_path, **named, **given).listen == meant


@pytest.mark.parametrize("words", ["pages", "chat,worker", "API", "chat api"])
def test_a_surface_that_does_not_exist_is_refused_by_naming_those_that_do(tmp_path: Path, words: str) -> None:
    with pytest.raises(SettingsInvalid, match="--only must be a list of api, chat"):
        read(tmp_path, only=words)


def test_every_setting_has_a_flag_a_variable_and_a_key(tmp_path: Path) -> None:
    values = {
        "data_dir": ("d", tmp_path / "d"),
        "database": ("postgresql://h/d", "postgresql://h/d"),
        "prompt_log": ("p.log", tmp_path / "p.log"),
        "env_file": ("keys", tmp_path / "keys"),
        "pull_interval": ("5m", 300.0),
        "working_dir_root": ("work", tmp_path / "work"),
        "safety": ("autonomous", "autonomous"),
        "listen": ("0.0.0.0:80", "0.0.0.0:80"),
        "metrics_listen": ("unix://m.sock", f"unix://{tmp_path}/m.sock"),
        "only": ("chat", ("chat",)),
        "migrate": ("check", "check"),
        "token_file": ("t", tmp_path / "t"),
        "token_env": ("TOKEN", "TOKEN"),
        "insecure_no_auth": ("yes", True),
        "allowed_host": ("a.example, b.example", ("a.example", "b.example")),
        "cors_origin": ("https://a.example", ("https://a.example",)),
        "trusted_proxy": ("10.0.0.1", ("10.0.0.1",)),
        "proxy_user_header": ("X-Remote-User", "X-Remote-User"),
        "public_url": ("https://a.example", "https://a.example"),
        "max_request_size": ("500K", 512_000),
        "turn_idle_timeout": ("1m", 60.0),
        "turn_timeout": ("2h", 7200.0),
        "disconnect_grace": ("5s", 5.0),
        "shutdown_grace": ("7s", 7.0),
        "preset": ("open-webui,librechat", ("open-webui", "librechat")),
        "conversations_max": ("3", 3),
        "retain": ("90d", 90 * 86400.0),
        "token_rate": ("60", 60),
        "token_running": ("4", 4),
        "user_rate": ("6", 6),
        "user_running": ("1", 1),
        "tenant_sessions": ("100", 100),
        "tenant_bytes": ("10G", 10 << 30),
        "token_sessions": ("10", 10),
        "token_bytes": ("1M", 1 << 20),
        "tracing": ("yes", True),
    }
    assert {*values, "config"} == set(Settings.__dataclass_fields__)
    for name, (text, meant) in values.items():
        assert getattr(read_settings({}, folder=tmp_path, **{name: text}), name) == meant
        assert getattr(read_settings({f"LASTGOOD_{name.upper()}": text}, folder=tmp_path), name) == meant
    for name, (text, meant) in values.items():
        (tmp_path / "lastgood.toml").write_text(f'{name} = "{text}"')
        assert getattr(read_settings({}, folder=tmp_path), name) == meant


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60.0), ("1.5m", 90.0), ("2h", 7200.0), ("1d", 86400.0), ("0", 0.0), ("0s", 0.0)],
)
def test_a_time_has_a_unit(tmp_path: Path, text: str, seconds: float) -> None:
    assert read(tmp_path, pull_interval=text).pull_interval == seconds


@pytest.mark.parametrize("text", ["60", "1 m", "-1s", "s", "1w", "nan", "1e3s", "1s1m"])
def test_a_time_without_one_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsInvalid, match="--pull-interval must be a duration"):
        read(tmp_path, pull_interval=text)


# --- where the file is -----------------------------------------------------------------------------------


def test_the_file_is_found_here_then_in_the_data_dir(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/lastgood.toml").write_text('safety = "strict"')
    found = read(tmp_path)
    assert found.config is not None
    assert (found.safety, found.config.path) == ("strict", tmp_path / "data/lastgood.toml")
    assert read(tmp_path, 'safety = "balanced"').safety == "balanced"


def test_a_file_that_is_named_is_read_and_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('safety = "balanced"')
    assert read(tmp_path, 'safety = "strict"', config="other.toml").safety == "balanced"
    assert read(tmp_path, None, {"LASTGOOD_CONFIG": str(tmp_path / "other.toml")}).safety == "balanced"
    with pytest.raises(SettingsInvalid, match=r"cannot read .*gone\.toml: No such file"):
        read(tmp_path, config="gone.toml")


def test_paths_in_the_file_start_at_its_folder(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/lastgood.toml").write_text(
        'data_dir = "d"\nenv_file = "../keys"\n[agents]\na = "x.yaml"'
    )
    found = read_settings({}, folder=tmp_path, config="etc/lastgood.toml", working_dir_root="work")
    assert (found.data_dir, found.working_dir_root) == (tmp_path / "etc/d", tmp_path / "work")
    assert found.database == f"sqlite:///{tmp_path}/etc/d/lastgood.db"
    assert found.env_file is not None
    assert found.env_file.resolve() == tmp_path / "keys"
    assert found.aliases == {"a": AliasSetting("x.yaml", False, tmp_path / "etc")}


# --- what it may say -------------------------------------------------------------------------------------


def test_agents_get_names(tmp_path: Path) -> None:
    toml = """
    pull_interval = 0
    [agents]
    team = "https://agents.example.com/team.yaml"
    ours = {source = "https://ours.example.com/a.yaml", trusted = true}
    "with space" = {source = "./a.yaml"}
    """
    found = read(tmp_path, toml)
    assert found.pull_interval == 0.0
    assert found.aliases == {
        "team": AliasSetting("https://agents.example.com/team.yaml", False, tmp_path),
        "ours": AliasSetting("https://ours.example.com/a.yaml", True, tmp_path),
        "with space": AliasSetting("./a.yaml", False, tmp_path),
    }


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        (f'# one\n\nsafty = "{CANARY}"', "line 3: unknown setting 'safty'; did you mean safety?"),
        (f'[agent]\nx = "{CANARY}"', "line 1: unknown setting 'agent'; did you mean agents?"),
        (f'zzz = "{CANARY}"', "line 1: unknown setting 'zzz'; known settings: data_dir, "),
        (f'config = "{CANARY}"', "unknown setting 'config'"),
        ("[agents]\na = {sorce = 'x'}", "unknown setting 'sorce'; did you mean source?"),
        ("[agents]\na = {trusted = true}", "agents.a.source must be a string"),
        (f"[agents]\na = {{source = 'x', trusted = '{CANARY}'}}", "agents.a.trusted must be true or false"),
        ("[agents]\na = ['x']", "agents.a must be a string"),
        ("[agents]\na = ''", "agents.a must be a string"),
        ("agents = 'x'", "agents must be a table"),
        ("safety = 7", "safety must be one of"),
        ("safety = true", "safety must be one of"),
        ("pull_interval = false", "pull_interval must be a duration"),
        (r'env_file = "a\u0000b"', "env_file must be a string"),
        (f'safety = "{CANARY}"', "safety must be one of strict, balanced, restricted, autonomous"),
        (f'pull_interval = "{CANARY}"', "pull_interval must be a duration"),
        ("pull_interval = 60", "pull_interval must be a duration"),
        (f'safety "{CANARY}"', "is not TOML: Expected '=' after a key in a key/value pair (at line 1"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(tmp_path: Path, toml: str | bytes, said: str) -> None:
    refused = refusal(tmp_path, toml)
    assert said in refused
    assert refused.startswith(str(tmp_path / "lastgood.toml"))


def test_a_variable_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path, "", LASTGOOD_SAFETY=CANARY).startswith("LASTGOOD_SAFETY must be one of")
    with pytest.raises(SettingsInvalid, match=r"^--safety must be"):
        read(tmp_path, safety=CANARY)


# --- keys ------------------------------------------------------------------------------------------------


def key_file(folder: Path, text: str | bytes, mode: int = 0o600) -> Path:
    file = folder / "keys.env"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    file.chmod(mode)
    return file


def test_a_file_of_keys_is_read_line_by_line(tmp_path: Path) -> None:
    text = "# ours\nA=1\n\nexport B = two words \nC='a # b'\nD=\"x=y\"\nE=\nF='\n G=$A\nA=2\n"
    found = read_env_file(key_file(tmp_path, b"\xef\xbb\xbf" + text.encode()))
    assert found == {"A": "2", "B": "two words", "C": "a # b", "D": "x=y", "E": "", "F": "'", "G": "$A"}


def test_the_environment_wins_over_the_file_of_keys(tmp_path: Path) -> None:
    file = key_file(tmp_path, "OPENAI_API_KEY=from-file\nGITHUB_TOKEN=from-file\n")
    secrets = secrets_of(file, {"OPENAI_API_KEY": "from-environment"})
    assert (secrets.get("OPENAI_API_KEY"), secrets.get("GITHUB_TOKEN")) == ("from-environment", "from-file")
    assert secrets_of(None, {}).get("OPENAI_API_KEY") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"A=1\n{CANARY}\n", "line 2: expected NAME=value"),
        (f"2A={CANARY}", "line 1"),
        (b"A=\xff", "UTF-8"),
    ],
)
def test_I41_a_broken_file_of_keys_is_refused_without_showing_it(
    tmp_path: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        read_env_file(key_file(tmp_path, text))
    assert CANARY not in str(refused.value)


def test_a_file_of_keys_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        secrets_of(tmp_path / "gone.env", {})


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, True), (0o604, True)])
def test_I41_a_file_of_keys_that_others_can_read_is_warned_about(
    tmp_path: Path, mode: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    read_env_file(key_file(tmp_path, f"A={CANARY}", mode))
    assert ("chmod 600" in caplog.text) == warns
    assert CANARY not in caplog.text
    assert os.environ.get("A") != CANARY
