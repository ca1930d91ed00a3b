"""What the project ships beside the code, systemd units and alert rules, against the code and against the
tools that read them."""

import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.draw import served
from lastgood.cli.parser import build_parser
from lastgood.model.attempts import AttemptStatus
from lastgood.settings import Settings, read_settings
from lastgood.settings.worker_settings import WORKER_ROWS
from lastgood.worker import worker_metrics as worker
from tests.e2e.server import LiveServer
from tests.surfaces.prometheus import families
from tests.test_compose import LAST_SECONDS

ROOT = Path(__file__).parent.parent
PACKAGING = ROOT / "packaging"
UNITS = sorted(PACKAGING.glob("*.service"))
ALERTS = PACKAGING / "prometheus-alerts.yaml"

# -- systemd ----------------------------------------------------------------------------------------------


def section(unit: Path, name: str) -> dict[str, str]:
    parser = RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(unit)
    return dict(parser[name])


def environment_of(unit: Path) -> dict[str, str]:
    words = shlex.split(section(unit, "Service").get("Environment", ""))
    return dict(word.split("=", 1) for word in words)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_start_a_command_that_exists_with_settings_that_exist(unit: Path) -> None:
    program, *words = shlex.split(section(unit, "Service")["ExecStart"])
    assert program.endswith("/bin/lastgood")
    build_parser().parse_args(words)
    known = {f"LASTGOOD_{name.upper()}" for name in Settings.__dataclass_fields__}
    known |= {row.variable for row in WORKER_ROWS.values()}
    ours = re.findall(r"LASTGOOD_[A-Z_]+", unit.read_text())
    assert set(ours) <= known


def test_systemd_waits_longer_than_the_server_needs_to_stop() -> None:
    unit = PACKAGING / "lastgood.service"
    service = section(unit, "Service")
    grace = read_settings(environment_of(unit)).shutdown_grace
    assert float(service["TimeoutStopSec"].removesuffix("s")) >= grace + LAST_SECONDS
    assert service["Type"] == "notify"
    assert service["StateDirectory"] == "lastgood"
    assert environment_of(unit)["LASTGOOD_DATA_DIR"] == "/var/lib/lastgood"


def objections(unit: Path, folder: Path) -> str:
    """What systemd says about the unit, with a program that is there."""
    copy = folder / unit.name
    copy.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(), flags=re.M))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
    # It reads the units of this machine, too, and has its opinion of them.
    return "\n".join(line for line in done.stderr.splitlines() if unit.name in line)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    assert objections(unit, tmp_path) == ""
    wrong = tmp_path / "wrong.service"
    wrong.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=mixd"))
    assert "kill mode" in objections(wrong, tmp_path)


@pytest.mark.parametrize("is_abstract", [False, True], ids=["file", "abstract"])
def test_systemd_is_notified_when_the_server_answers_and_when_it_stops(
    tmp_path: Path, is_abstract: bool
) -> None:
    if is_abstract and sys.platform != "linux":
        pytest.skip("abstract sockets are Linux's")
    name = f"@{tmp_path}/notify" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if is_abstract else name)
        manager.settimeout(60)
        server = LiveServer(tmp_path, env={"NOTIFY_SOCKET": name})
        server.launch()
        try:
            state, status = manager.recv(4096).decode().splitlines()
            assert (state, status.startswith("STATUS=serving on http://127.0.0.1:")) == ("READY=1", True)
            port = int(status.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=60) as asking:
                asking.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert asking.recv(4096).startswith(b"HTTP/1.1 200 ")
            server.tell(signal.SIGTERM)
            assert manager.recv(4096).decode().splitlines()[0] == "STOPPING=1"
        finally:
            server.kill()


def test_a_server_serves_without_a_service_manager(tmp_path: Path) -> None:
    with LiveServer(tmp_path, env={"NOTIFY_SOCKET": str(tmp_path / "nobody")}) as server:
        assert "cannot notify systemd" in server.stderr.read_text()


# -- alert rules ------------------------------------------------------------------------------------------

#: Of Prometheus itself: whether a target could be scraped.
THEIRS = {"up"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def known_metrics() -> set[str]:
    found = set(THEIRS)
    for family in families(served("/metrics")).values():
        found |= {family.name, *(f"{family.name}_{part}" for part in ("bucket", "sum", "count"))}
    return found | {f"{worker.PREFIX}{name}" for name in worker.METRICS}


def unknown_parts(expression: str) -> set[str]:
    """Metrics, outcomes and routes that do not exist."""
    names = set(re.findall(r"\b(up|lastgood_\w+)\b", re.sub(r'"[^"]*"', '""', expression)))
    outcomes = set(re.findall(r'outcome="(\w+)"', expression))
    routes = {one for text in re.findall(r'route[!=~]+"([^"]+)"', expression) for one in text.split("|")}
    described = set(re.findall(r'"(/[^"]*)":', served("/openapi.json")))
    return (names - known_metrics()) | (outcomes - set(AttemptStatus)) | (routes - described)


def test_every_alert_is_about_metrics_that_exist_and_says_what_to_do() -> None:
    assert len(rules()) > 8
    for rule in rules():
        assert unknown_parts(rule["expr"]) == set(), rule["alert"]
        assert {"summary", "action"} <= rule["annotations"].keys(), rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_an_alert_about_nothing_is_found() -> None:
    wrong = 'lastgood_turn_total{outcome="lost"} + lastgood_turns_total{route="/redy"}'
    assert unknown_parts(wrong) == {"lastgood_turn_total", "lost", "/redy"}


#: What a server reports over 20 minutes, and whether the alert fires at their end.
FIRED = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'up{{job="lastgood", instance="a"}}', values: '1 1 0x18'}}
      - {{series: 'lastgood_turns_total{{instance="b", outcome="failed"}}', values: '0+2x20'}}
      - {{series: 'lastgood_turns_total{{instance="b", outcome="committed"}}', values: '0+8x20'}}
      - {{series: 'lastgood_turns_total{{instance="c", outcome="failed"}}', values: '0+1x20'}}
      - {{series: 'lastgood_worker_heartbeat_age_seconds{{instance="w"}}', values: '5 5 125+60x20'}}
    alert_rule_test:
      - {{eval_time: 20m, alertname: LastgoodEventLoopBlocked, exp_alerts: []}}
    promql_expr_test:
      - {{expr: 'count by (alertname, instance) (ALERTS{{alertstate="firing"}})', eval_time: 20m,
         exp_samples: [
          {{labels: '{{alertname="LastgoodDown", instance="a"}}', value: 1}},
          {{labels: '{{alertname="LastgoodTurnsFailing", instance="b"}}', value: 1}},
          {{labels: '{{alertname="LastgoodTurnsFailing", instance="c"}}', value: 1}},
          {{labels: '{{alertname="LastgoodNothingCommits", instance="c"}}', value: 1}},
          {{labels: '{{alertname="LastgoodWorkerDisconnected", instance="w"}}', value: 1}}]}}
"""


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_accepts_the_rules_and_fires_the_right_ones(tmp_path: Path) -> None:
    case = tmp_path / "case.yaml"
    case.write_text(FIRED.format(rules=ALERTS))
    for words in (["check", "rules", str(ALERTS)], ["test", "rules", str(case)]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
