"""`lastgood doctor`: says what a server needs and lacks, and changes nothing."""

import socket
from pathlib import Path

from tests.e2e.command import Command
from tests.e2e.server import LiveServer


def test_a_fresh_machine_is_healthy_and_stays_untouched(tmp_path: Path) -> None:
    lastgood = Command(tmp_path)
    lastgood.env |= {"MISTRAL_API_KEY": "not-to-be-shown"}
    done = lastgood("doctor", "--json", "--listen", "127.0.0.1:0")
    assert done.code == 0
    checks = {check["name"]: check for check in done.json}
    assert {check["level"] for check in checks.values()} == {"ok"}
    assert "MISTRAL_API_KEY" in checks["keys"]["message"]
    assert "not-to-be-shown" not in done.out
    assert "the first start creates it" in checks["database"]["message"]
    assert not lastgood.data_dir.exists()


def test_a_taken_port_is_a_warning_that_names_the_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = Command(tmp_path)("doctor", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.code == 0
    assert "if it is your own server, stop it first, or choose another --listen" in done.out


def test_the_port_of_ones_own_server_is_no_warning(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as server:
        done = Command(tmp_path)("doctor", "--listen", server.url.removeprefix("http://"))
        assert (done.code, f"listens on {server.listen}\n" in done.out) == (0, True)
        assert "✓ port        your server (pid " in done.out


def test_a_file_that_is_no_database_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    lastgood = Command(tmp_path)
    lastgood.data_dir.mkdir()
    lastgood.database.write_text("a letter to my mother\n" * 100)
    done = lastgood("doctor")
    assert done.code == 1
    assert "✗ database" in done.out
    lastgood.database.unlink()
    assert lastgood.say("hello").code == 0
    healthy = lastgood("doctor", "--listen", "127.0.0.1:0")
    assert healthy.code == 0
    assert "its schema is current" in healthy.out


def test_a_misspelt_variable_is_a_warning_that_names_the_setting(tmp_path: Path) -> None:
    lastgood = Command(tmp_path)
    lastgood.env |= {
        "LASTGOOD_SAFTEY": "strict",
        "LASTGOOD_SAFETY": "strict",
        "LASTGOOD_TOKEN": "x",
        "LASTGOOD_ZZZZ": "",
    }
    done = lastgood("doctor", "--json", "--listen", "127.0.0.1:0")
    assert done.code == 0
    assert [check["message"] for check in done.json if check["name"] == "settings"] == [
        "LASTGOOD_SAFTEY is no setting (did you mean LASTGOOD_SAFETY?)"
    ]
