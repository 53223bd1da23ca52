"""The dashboard and the rules use metrics and labels that exist, and say what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.metrics_table import documented

FOLDER = Path(__file__).parents[3] / "deploy" / "observability"
# What Prometheus adds to every series, or to those of a local cluster.
TARGET_LABELS = {"job", "instance", "component", "process"}
# For whoever looks closer: of one worker, of one request's way, or told by others as well.
LEFT_OUT = {
    "orchid_build_info",
    "orchid_cgroup_throttled_seconds_total",
    "orchid_decode_first_token_seconds",
    "orchid_decode_pending_prompt_tokens",
    "orchid_decode_queue_seconds",
    "orchid_generation_duration_seconds",
    "orchid_generation_queue_seconds",
    "orchid_generation_tokens_total",
    "orchid_generations_redispatched_total",
    "orchid_preprocess_refused_total",
    "orchid_preprocess_texts",
    "orchid_request_tokens_total",
    "orchid_requests_dispatched_total",
    "orchid_requests_redispatched_total",
    "orchid_results_late_total",
    "orchid_results_unknown_total",
    "orchid_uptime_seconds",
    "orchid_worker_batch_size",
    "orchid_worker_completed_total",
    "orchid_worker_draining",
    "orchid_worker_outcomes_total",
    "orchid_worker_queue_seconds",
    "orchid_worker_run_cpu_seconds_total",
    "orchid_worker_variant_cpu_seconds_total",
    "orchid_workers_joined_total",
}
WORDS = {"by", "on", "and", "or", "unless", "group_left", "group_right", "ignoring", "bool"}

Expression = tuple[str, str]


def rules() -> list[dict[str, Any]]:
    """Every recording and alerting rule."""
    files = (yaml.safe_load((FOLDER / f).read_text()) for f in ("recording.yml", "alerts.yml"))
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    return found


def expressions() -> Iterator[Expression]:
    """Where each PromQL expression stands, and it."""
    for rule in rules():
        yield rule.get("record") or rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def names_in(expression: str) -> set[str]:
    """The metrics and recorded series of an expression."""
    plain = re.sub(r"\{[^}]*\}|\[[^]]*\]|\"[^\"]*\"", " ", expression)
    plain = re.sub(r"\b(by|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", plain)
    found = re.findall(r"(?<![\w:.])([a-zA-Z_:][\w:]*)\b(?!\s*\()", plain)
    return set(found) - WORDS


def family_of(name: str) -> str:
    """The metric of a table that a series belongs to."""
    listed = documented()
    if name in listed:
        return name
    return re.sub(r"_(bucket|sum|count)$", "", name)


def labels_of(name: str) -> frozenset[str]:
    kind, labels = documented()[family_of(name)]
    return labels | {"le"} if kind == "histogram" else labels


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_only_what_exists_is_asked_for(place: str, expression: str) -> None:
    listed, recorded = documented(), {rule["record"] for rule in rules() if "record" in rule}
    names = names_in(expression)
    assert names, "an expression without a metric"
    for name in names - {"up"}:
        assert name in recorded if ":" in name else family_of(name) in listed, name
    plain = [name for name in names if ":" not in name and name != "up"]
    for name, matchers in re.findall(r"([\w:]+)\{([^}]*)\}", expression):
        if name in plain:
            asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
            assert asked <= labels_of(name) | TARGET_LABELS, (name, asked)
    known = TARGET_LABELS.union(*(labels_of(name) for name in plain))
    if len(plain) == len(names):
        grouped = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression)
        used = {word.strip() for group in grouped for word in group.split(",")} - {""}
        assert used <= known, (used - known, place)


def test_every_metric_of_ours_is_looked_at_or_left_out_on_purpose() -> None:
    asked = {family_of(n) for _, e in expressions() for n in names_in(e) if ":" not in n}
    ours = {name for name in documented() if name.startswith("orchid_")}
    assert ours - asked == LEFT_OUT


def test_series_of_histograms_are_asked_for_as_such() -> None:
    kinds = {name: kind for name, (kind, _) in documented().items()}
    for place, expression in expressions():
        for name in names_in(expression) - {"up"}:
            if ":" not in name:
                assert (kinds[family_of(name)] == "histogram") == (name not in kinds), (place, name)


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({alert["alert"] for alert in alerts}) == len(alerts) > 10
    for alert in alerts:
        assert alert["labels"]["severity"] in ("warning", "critical")
        assert alert["annotations"]["summary"] and alert["annotations"]["description"]


def test_the_dashboard_is_laid_out_without_overlap() -> None:
    found = panels()
    assert len({panel["id"] for panel in found}) == len(found)
    taken: dict[tuple[int, int], str] = {}
    for panel in found:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"] and all(t["legendFormat"] for t in panel["targets"])


def test_the_dashboard_brings_its_variables() -> None:
    document = json.loads((FOLDER / "dashboard.json").read_text())
    variables = {each["name"] for each in document["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)\b", json.dumps(document["panels"])))
    assert used == variables == {"datasource", "model"}


def test_the_names_of_an_expression_are_found() -> None:
    expression = 'sum by (a, b) (rate(x_total{c="y_z"}[5m])) / on (a) group_left m:q:r or up > 0.5'
    assert names_in(expression) == {"x_total", "m:q:r", "up"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_can_read_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    asked = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, (_, expression) in enumerate(expressions())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": asked}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
