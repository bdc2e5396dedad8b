"""The alerts and the dashboard ask for metrics that there are, in PromQL that parses."""

import json
import re

import promql_parser
import pytest

from .conftest import EVERYTHING, ROOT

COMPONENT = ROOT / "k8s" / "components" / "monitoring"
OF_PROMETHEUS = {"up"}


def exported():
    """The names that docs/metrics.md lists, as Prometheus stores them; a test of the service's holds the list true."""
    names = set()
    for name, kind in re.findall(
        r"^\| `(dpserve_\w+)` \| (\w+)", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE
    ):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(kind, ("",))
        names |= {name + suffix for suffix in suffixes}
    return names


def selectors(node):
    """Every metric that an expression asks for."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node.name
    for attribute in ("expr", "lhs", "rhs", "vector_selector", "vs"):
        inner = getattr(node, attribute, None)
        if isinstance(inner, promql_parser.Expr):
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


def rules(rendered):
    """The alerts."""
    (found,) = [each for each in rendered[EVERYTHING] if each["kind"] == "PrometheusRule"]
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


def dashboard():
    """The Grafana dashboard."""
    return json.loads((COMPONENT / "dpserve.json").read_text())


def expressions(rendered):
    """Everything that is asked of Prometheus."""
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in rules(rendered)] + [each.replace("$__rate_interval", "5m") for each in asked]


def test_every_expression_asks_for_metrics_that_there_are(rendered):
    names = exported()
    assert {"dpserve_requests_total", "dpserve_lineage_rho_spent", "dpserve_request_seconds_bucket"} <= names
    for expression in expressions(rendered):
        asked = set(selectors(promql_parser.parse(expression)))
        assert asked, expression
        assert asked <= names | OF_PROMETHEUS, expression


def test_the_parser_finds_what_is_wrong():
    with pytest.raises(ValueError, match=r"invalid|unexpected|unclosed"):
        promql_parser.parse("sum(rate(dpserve_rows_total[5m]) by (outcome")
    assert set(selectors(promql_parser.parse("rate(a[5m]) / (b > 1) or histogram_quantile(0.5, sum(c) by (le))"))) == {
        "a",
        "b",
        "c",
    }


def test_the_alerts_are_those_that_an_owner_needs(rendered):
    found = {rule["alert"]: rule for rule in rules(rendered)}
    for name in ("DpserveBudgetNearlyGone", "DpserveLedgerRefused", "DpserveAuditConviction"):
        assert found[name]["labels"]["severity"] in ("warning", "critical")
        assert found[name]["annotations"]["description"]
    page = (ROOT / "docs" / "deploying.md").read_text()
    assert all(f"`{name}`" in page for name in found)
    commands = re.findall(r"dpserve (\w+ [\w-]+)", " ".join(str(rule["annotations"]) for rule in found.values()))
    assert {"ledger status", "ledger verify", "lineage set-budget"} == set(commands)


def test_the_dashboard_is_one_that_grafana_reads():
    found = dashboard()
    assert len({panel["id"] for panel in found["panels"]}) == len(found["panels"])
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]]
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in found["panels"])
    (variable,) = found["templating"]["list"]
    assert all(panel["datasource"]["uid"] == "${" + variable["name"] + "}" for panel in found["panels"])


def test_only_the_monitoring_namespace_reaches_the_owners_port(rendered):
    policies = [each for each in rendered[EVERYTHING] if each["kind"] == "NetworkPolicy"]
    rules_of_all = [rule for each in policies for rule in each["spec"].get("ingress", [])]
    opened = [rule for rule in rules_of_all if {"protocol": "TCP", "port": 8001} in rule["ports"]]
    (rule,) = opened
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    (monitor,) = [each for each in rendered[EVERYTHING] if each["kind"] == "ServiceMonitor"]
    (endpoint,) = monitor["spec"]["endpoints"]
    services = {each["metadata"]["name"]: each for each in rendered[EVERYTHING] if each["kind"] == "Service"}
    service = services["dpserve-admin"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    secret = endpoint["authorization"]["credentials"]["name"]
    assert secret in {each["metadata"]["name"] for each in rendered[EVERYTHING] if each["kind"] == "Secret"}
