"""The alerts and the dashboard ask for metrics that there are, in PromQL that parses."""

import json
import re

import promql_parser

from dpserve.settings import ServeSettings
from tests.docs.test_shown_commands import parsed
from tests.owners_commands import ledger_commands

from .conftest import EVERYTHING, HA, ROOT
from .policy import pod_of
from .test_manifests import named

COMPONENT = ROOT / "k8s" / "components" / "monitoring"
OF_OTHERS = {"up"} | {
    *(f"kubelet_volume_stats_{name}_bytes" for name in ("available", "capacity")),
    *(f"kube_cronjob_{name}" for name in ("spec_suspend", "status_last_successful_time")),
    "kube_job_failed",
    *(f"kube_statefulset_{name}" for name in ("replicas", "status_replicas_ready")),
}
"""Metrics of Prometheus itself, the kubelet and kube-state-metrics."""


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
    """The alerts, and what is recorded for them."""
    return [rule for group in groups(rendered) for rule in group["rules"]]


def groups(rendered):
    """The groups of rules, as Prometheus reads them."""
    (found,) = [each for each in rendered[EVERYTHING] if each["kind"] == "PrometheusRule"]
    return found["spec"]["groups"]


def dashboard():
    """The Grafana dashboard."""
    return json.loads((COMPONENT / "dpserve.json").read_text())


def expressions(rendered):
    """Everything that is asked of Prometheus."""
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    return [rule["expr"] for rule in rules(rendered)] + [each.replace("$__rate_interval", "5m") for each in asked]


def test_every_expression_asks_for_metrics_that_there_are(rendered):
    names = exported()
    assert {"dpserve_requests_total", "dpserve_lineage_spent", "dpserve_request_seconds_bucket"} <= names
    recorded = {rule["record"] for rule in rules(rendered) if "record" in rule}
    for expression in expressions(rendered):
        asked = set(selectors(promql_parser.parse(expression)))
        assert asked, expression
        assert asked <= names | OF_OTHERS | recorded, expression


def test_the_alerts_are_those_that_an_owner_needs(rendered):
    found = {rule["alert"]: rule for rule in rules(rendered) if "alert" in rule}
    for rule in found.values():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert all(f"`{name}`" in page for name in found)


def test_a_job_made_by_hand_has_a_new_name_each_time_which_the_alert_of_failed_jobs_looks_for(rendered):
    words = annotations(rendered)
    made = re.findall(r"kubectl create job (\S+?-)(\$\(date \+%s\))? --from=cronjob/(\S+?)'", words)
    assert {job for *_, job in made} == {"dpserve-backup", "dpserve-rehearsal"}
    assert words.count("kubectl create job ") == len(made)
    (failed,) = [rule["expr"] for rule in rules(rendered) if rule.get("alert") == "DpserveJobFailed"]
    (looked_for,) = re.findall(r'job_name=~"(.*?)"', failed)
    for name, new, job in made:
        assert new
        assert re.fullmatch(looked_for, f"{name}1")
        assert named(rendered[EVERYTHING], "CronJob", job)["spec"]["jobTemplate"]["spec"]["ttlSecondsAfterFinished"] > 0


def annotations(rendered):
    """The words of all alerts."""
    return " ".join(word for rule in rules(rendered) for word in rule.get("annotations", {}).values())


def running(resources, words):
    """The containers that run a command: jobs that have it among their own, or else those of the service."""
    pods = [each for each in resources if pod_of(each)]
    jobs = [each for each in pods if each["kind"] == "CronJob"]
    own = [each for each in jobs if f"dpserve {' '.join(words)}" in str(pod_of(each)["containers"][0]["args"])]
    chosen = own or [named(pods, "Deployment", "dpserve")]
    return [pod_of(each)["containers"][0] for each in chosen]


def paths(words):
    """The words of a command that can only be files or folders."""
    return [word for word in words if not word.startswith("-") and ("/" in word or "." in word)]


def is_kept(path, container):
    """Whether a container has a volume with this path."""
    return any(f"{path.rstrip('/')}/".startswith(f"{each['mountPath']}/") for each in container["volumeMounts"])


def test_each_command_of_an_alert_runs_where_its_files_are(rendered):
    texts = annotations(rendered)
    commands = [found.split() for found in re.findall(r"'dpserve ([^']+)'", texts)]
    assert {("ledger", "status"), ("ledger", "rehearse", "/backups/ledger.backup")} <= set(map(tuple, commands))
    for words in commands:
        # What is about one account, or one file, is named without it.
        parsed([*words, "NAME"] if words[-1] in ("set-budget", "rehearse") else words)
        for container in running(rendered[EVERYTHING], words):
            assert all(is_kept(path, container) for path in paths(words)), words
    assert len([words for words in commands if paths(words)]) == 1


def test_each_command_of_an_alert_for_a_pod_of_its_own_runs_there(rendered):
    """With kubectl exec: in one of the store's."""
    found = re.findall(r"'kubectl exec (\S+) -c (\S+) -- ([^']+)'", annotations(rendered))
    assert {place for place, _, _ in found} == {"dpserve-valkey-0"}
    for _, container, command in found:
        words = command.split()
        pod = pod_of(named(rendered[HA], "StatefulSet", "dpserve-valkey"))
        (there,) = [each for each in pod["containers"] if each["name"] == container]
        assert words == [*there["command"][:-1], "status"]  # which test_ha.py runs
        assert all(is_kept(path, there) for path in paths(words)), words


def test_all_that_an_alert_names_is_there(rendered):
    texts, resources = annotations(rendered), rendered[EVERYTHING]
    for name in re.findall(r"(?:CronJob (?!of )|cronjob/)([\w-]+)", texts):
        assert named(resources, "CronJob", name)
    for name in re.findall(r"\b[\w-]+\.(?:conf|toml|acl|env)\b", texts):
        assert any(name in (each.get("data") or {}) for each in resources), name
    sources = (ROOT / "service" / "admin" / "app.py").read_text(), (ROOT / "service" / "http" / "app.py").read_text()
    for route, owner in re.findall(r"GET (/[\w/]+)( of the owner's port)?", texts):
        assert f'"{route}"' in sources[0 if owner else 1]
    settings = {f"--{name.replace('_', '-')}" for name in ServeSettings.model_fields}
    options = {name for command in ledger_commands().values() for each in command.params for name in each.opts}
    assert {name.rstrip("-") for name in re.findall(r"--[a-z-]+", texts)} - {
        "--from",
        "--replicas",
        "--timeout",
    } <= settings | options


def routes(node):
    """Every condition on the label route that an expression has, as (operator, value)."""
    return re.findall(r'route(=~?)"([^"]*)"', str(node))


def test_questions_are_counted_at_every_route_where_they_are_asked(rendered):
    asked = ["/predict", "/models/{name}/predict", "/v2/models/{name}/versions/{version}/infer"]
    others = {"/readyz", "/livez", "/budget", "/v2/models/{name}", "other"}
    conditions = [each for expression in expressions(rendered) for each in routes(expression)]
    assert len(conditions) >= 4
    for operator, value in conditions:
        chosen = {
            each for each in {*asked, *others} if re.fullmatch(value if operator == "=~" else re.escape(value), each)
        }
        assert chosen == set(asked)


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
    assert endpoint["authorization"]["credentials"]["key"] == "DPSERVE_METRICS_KEY"  # which opens nothing else
    secret = endpoint["authorization"]["credentials"]["name"]
    assert secret.startswith("dpserve-metrics-")
    assert secret in {each["metadata"]["name"] for each in rendered[EVERYTHING] if each["kind"] == "Secret"}
