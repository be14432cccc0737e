"""What is in deploy/ fits the program: metrics, flags, paths."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo.engine.metrics_exposition import PREFIX
from octavo.entrypoints.openai.config import ServerConfig
from tests.policy.tree import ROOT

DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "octavo"
RULES = DEPLOY / "prometheus" / "octavo.rules.yaml"
UNIT = DEPLOY / "systemd" / "octavo.service"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
HELM = Path(sysconfig.get_path("scripts")) / "helm"  # of the package helm-binary
needs_helm = pytest.mark.skipif(not HELM.exists(), reason="no helm for this processor")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def series() -> dict[str, set[str]]:
    """Name in a query → its labels, from docs/metrics.md (which is held against the code)."""
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    found = {}
    for name, kind, labels in re.findall(r"^\| `([^`]+)` \| (\w+) \| ([^|]*) \|", page, re.M):
        known = set(re.findall(r"`(\w+)`", labels))
        for suffix in SUFFIXES[kind]:
            found[name + suffix] = known | ({"le"} if suffix == "_bucket" else set())
    return found


def check_query(expr: str) -> None:
    """Every metric of ours that a query names is there, with the labels that it asks for."""
    known = series()
    used = re.findall(rf"({PREFIX}\w+)(?:\{{([^}}]*)\}})?", expr)
    for name, matchers in used:
        assert name in known, f"{name} in {expr}"
        for label in re.findall(r"(\w+)\s*[=!]", matchers):
            assert label in known[name], f"{label} of {name}"
    labels = {label for name, _ in used for label in known[name]} | {"instance", "job"}
    for group in re.findall(r"by \(([^)]*)\)", expr):
        assert set(re.split(r",\s*", group)) <= labels, expr
    assert expr.count("(") == expr.count(")")
    assert expr.count("{") == expr.count("}")
    for name in re.findall(r"rate\(([\w:]+)", expr):
        assert name.endswith(("_total", "_bucket")), expr
    assert ("histogram_quantile" in expr) == ("_bucket" in expr)


def test_the_check_sees_what_is_wrong() -> None:
    rate = "sum by (le) (rate(octavo:time_to_first_token_seconds_bucket[5m]))"
    check_query(f"histogram_quantile(0.9, {rate})")
    for wrong in (
        *("octavo:nothing", "octavo:num_preemptions", "octavo:num_requests_running{kind='x'}"),
        *("sum by (kind) (octavo:num_requests_running)", "rate(octavo:num_requests_running[1m])"),
    ):
        with pytest.raises(AssertionError):
            check_query(wrong)


def test_dashboard() -> None:
    board = json.loads((DEPLOY / "grafana" / "octavo.json").read_text("utf-8"))
    panels = board["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    plots = [p for p in panels if p["type"] != "row"]
    assert len(plots) > 15
    for panel in plots:
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            check_query(target["expr"])
    variables = {v["name"]: v for v in board["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(plots))) <= {*variables, "__rate_interval"}
    check_query(re.sub(r"label_values\(([^,]*),.*", r"\1", variables["model"]["definition"]))
    taken = [(x, y) for p in panels for x, y in _cells(p["gridPos"])]
    assert len(taken) == len(set(taken)), "panels overlap"


def _cells(position: dict[str, int]) -> list[tuple[int, int]]:
    xs = range(position["x"], position["x"] + position["w"])
    assert xs.stop <= 24
    return [(x, y) for x in xs for y in range(position["y"], position["y"] + position["h"])]


def test_alerts() -> None:
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names) > 5
    for rule in group["rules"]:
        check_query(rule["expr"])
        assert re.fullmatch(r"\d+m", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        grouped = re.findall(r"by \(([^)]*)\)", rule["expr"])
        assert shown <= (set(re.split(r",\s*", grouped[0])) if grouped else {"instance"})


def flags_of(text: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", text))


def server_flags() -> set[str]:
    names = ServerConfig.__dataclass_fields__
    return {f"--{name.replace('_', '-')}" for name in names}


def test_unit() -> None:
    text = UNIT.read_text("utf-8")
    commands = "\n".join(line for line in text.splitlines() if line.startswith("ExecStart"))
    assert flags_of(commands) <= server_flags()
    assert "ExecReload=/bin/kill -HUP $MAINPID" in text
    stop = int(re.findall(r"^TimeoutStopSec=(\d+)", text, re.M)[0])
    assert stop > ServerConfig().shutdown_timeout
    for line in ("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"):
        assert line in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text("utf-8").replace("/opt/octavo/bin/octavo", "/bin/true")
    unit = tmp_path / "octavo.service"
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "octavo.service" in line]
    assert not [line for line in ours if "Unknown" in line or "Failed to parse" in line]


def test_dockerfile() -> None:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text("utf-8"))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert sum(line.startswith("FROM") for line in lines) == 2
    last = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    assert any(re.fullmatch(r"USER [1-9]\d*", line) for line in last)
    assert any(line.startswith("HEALTHCHECK") and "/health" in line for line in last)
    entry = next(line for line in last if line.startswith("ENTRYPOINT"))
    assert flags_of(entry) <= server_flags()
    assert json.loads(entry.removeprefix("ENTRYPOINT "))[:2] == ["octavo", "serve"]
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    for name in (line[1:] for line in ignored if line.startswith("!")):
        assert (ROOT / name).exists(), name


FULL: dict[str, Any] = {
    "apiKeySecret": "keys",
    "tlsSecret": "tls",
    "otlpTracesEndpoint": "http://collector:4318/v1/traces",
    "args": ["--max-num-seqs=64"],
    "persistence": {"enabled": True, "storageClass": "fast"},
    "serviceMonitor": {"enabled": True, "keySecret": "prometheus"},
}


def render(values: dict[str, Any], tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Template's file name → the document that helm makes of it with these values."""
    given = tmp_path / "values.json"
    given.write_text(json.dumps(values), "utf-8")
    command = [str(HELM), "template", "mine", str(CHART), f"--values={given}"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parts = re.split(r"^# Source: octavo/templates/(\S+)$", text, flags=re.MULTILINE)
    bodies = (body.rstrip("-\n") for body in parts[2::2])
    return dict(zip(parts[1::2], map(yaml.safe_load, bodies)))


@needs_helm
@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "everything"])
def test_chart(values: dict[str, Any], tmp_path: Path) -> None:
    documents = render(values, tmp_path)
    deployment = documents["deployment.yaml"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    flags = {arg.partition("=")[0] for arg in container["args"] if arg.startswith("--")}
    assert flags - {"--max-num-seqs"} <= server_flags()
    assert pod["securityContext"]["runAsNonRoot"]
    user = re.findall(r"^USER (\d+)$", DOCKERFILE.read_text("utf-8"), re.M)[0]
    assert pod["securityContext"]["runAsUser"] == int(user)
    assert pod["terminationGracePeriodSeconds"] > 30
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounted = {m["name"] for m in container["volumeMounts"]}
    assert mounted == {v["name"] for v in pod["volumes"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        get = container[probe]["httpGet"]
        assert (get["path"], get["port"]) == ("/health", "http")
        assert get["scheme"] == ("HTTPS" if values else "HTTP")
    selector = documents["service.yaml"]["spec"]["selector"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    for path in re.findall(r"/etc/octavo/\w+", " ".join(container["args"])):
        assert path in {m["mountPath"] for m in container["volumeMounts"]}
    for name in ("pvc.yaml", "servicemonitor.yaml"):
        assert (name in documents) is bool(values)
    if values:
        assert documents["pvc.yaml"]["spec"]["storageClassName"] == "fast"
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == "mine"
        (endpoint,) = documents["servicemonitor.yaml"]["spec"]["endpoints"]
        assert endpoint["scheme"] == "https"
        assert endpoint["authorization"]["credentials"]["name"] == "prometheus"


@needs_helm
def test_helm_reads_the_chart() -> None:
    subprocess.run([HELM, "lint", "--strict", CHART], check=True)


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here")
def test_prometheus_reads_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", RULES], check=True)


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text("utf-8")
    for path in (DEPLOY / "grafana" / "octavo.json", RULES, UNIT, DOCKERFILE, CHART):
        assert str(path.relative_to(ROOT)) in page
    config = server_flags() | {"--create-namespace", "--set", "--rm", "--max-num-seqs"}
    assert flags_of(page) <= config | {"--from-file", "--user", "--now"}
