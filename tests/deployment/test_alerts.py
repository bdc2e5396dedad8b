"""Every alert fires once in a Prometheus, and none where all is well; what it asks a service for is there."""

import shutil
import subprocess

import httpx
import pytest
import yaml

from tests.dpserve.conftest import CommandLine
from tests.faults.servers import DURABLE, StoreServer, free_port
from tests.topologies import wait_until

from .test_monitoring import groups, rules
from .test_replicas import small_bundle

PROMTOOL = shutil.which("promtool")
needs_prometheus = pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH: apt-get install prometheus")

DAY = 86_400
MINUTES = 3 * 24 * 60
"""Length of the series, at whose end the alert is looked for."""

QUESTIONS = 'dpserve_requests_total{route="/predict",model="m",status="%s"}'
WELL = {
    'up{job="dpserve-admin"}': "1+0x{n}",
    "dpserve_ledger_up": "1+0x{n}",
    'dpserve_lineage_spent{lineage="people",currency="rho"}': "0.1+0.000001x{n}",
    'dpserve_lineage_limit{lineage="people",currency="rho"}': "1+0x{n}",
    'dpserve_refusals_total{model="m",type="ledger-unavailable"}': "0+0x{n}",
    QUESTIONS % 200: "0+6000x{n}",
    QUESTIONS % 503: "0+0x{n}",
    'dpserve_waiting_rows{model="m"}': "10+0x{n}",
    "dpserve_store_memory_bytes": "100000000+100x{n}",
    "dpserve_store_memory_limit_bytes": "1500000000+0x{n}",
    "dpserve_store_writes_ok": "1+0x{n}",
    "dpserve_store_replicas": "2+0x{n}",
    "dpserve_store_replicas_needed": "1+0x{n}",
    "dpserve_store_can_promote": "1+0x{n}",
    'kube_statefulset_replicas{namespace="n",statefulset="dpserve-valkey"}': "3+0x{n}",
    'kube_statefulset_status_replicas_ready{namespace="n",statefulset="dpserve-valkey"}': "3+0x{n}",
    'dpserve_folder_free_bytes{folder="journals"}': "4000000000+0x{n}",
    'dpserve_folder_size_bytes{folder="journals"}': "5000000000+0x{n}",
    'kubelet_volume_stats_available_bytes{namespace="n",persistentvolumeclaim="data-dpserve-valkey-0"}': "18+0x{n}",
    'kubelet_volume_stats_capacity_bytes{namespace="n",persistentvolumeclaim="data-dpserve-valkey-0"}': "20+0x{n}",
    'dpserve_upkeep_timestamp_seconds{task="backup"}': "0+60x{n}",
    'dpserve_upkeep_timestamp_seconds{task="rehearsal"}': "0+60x{n}",
    'kube_job_status_failed{namespace="n",job_name="dpserve-backup-29"}': "1+0x{n}",  # a pod, which was tried again
    'kube_job_failed{namespace="n",job_name="dpserve-backup-29",condition="true"}': "0+0x{n}",
    'kube_job_failed{namespace="n",job_name="dpserve-backup-29",condition="false"}': "1+0x{n}",
    'kube_job_failed{namespace="n",job_name="dpserve-backup-now-1",condition="true"}': "0+0x{n}",
    'kube_cronjob_spec_suspend{namespace="n",cronjob="dpserve-backup"}': "0+0x{n}",
    'kube_cronjob_status_last_successful_time{namespace="n",cronjob="dpserve-backup"}': "0+60x{n}",
}
"""Series of a service that is well, a value a minute, in the notation of promtool."""

LINEAGE = 'dpserve_lineage_spent{lineage="people",currency="rho"}'
ILL = {
    "DpserveBudgetNearlyGone": {LINEAGE: "0.95+0x{n}"},
    "DpserveLedgerRefused": {"dpserve_ledger_up": "0+0x{n}"},
    "DpserveDown": {'up{job="dpserve-admin"}': "0+0x{n}"},
    "DpserveQueueLong": {'dpserve_waiting_rows{model="m"}': "20000+0x{n}"},
    "DpserveBudgetGoneSoon": {LINEAGE: "0.1+0.0001x{n}"},
    "DpserveStoreFullSoon": {"dpserve_store_memory_bytes": "100000000+100000x{n}"},
    "DpserveStoreNearlyFull": {"dpserve_store_memory_bytes": "1300000000+1x{n}"},
    "DpserveStoreReplicasFew": {"dpserve_store_replicas": "0+0x{n}"},
    "DpserveStoreCannotFailOver": {"dpserve_store_can_promote": "0+0x{n}"},
    "DpserveStorePodAway": {
        'kube_statefulset_status_replicas_ready{namespace="n",statefulset="dpserve-valkey"}': "2+0x{n}"
    },
    "DpserveStoreWritesFail": {"dpserve_store_writes_ok": "0+0x{n}"},
    "DpserveFolderNearlyFull": {'dpserve_folder_free_bytes{folder="journals"}': "400000000+0x{n}"},
    "DpserveVolumeNearlyFull": {
        'kubelet_volume_stats_available_bytes{namespace="n",persistentvolumeclaim="data-dpserve-valkey-0"}': "2+0x{n}"
    },
    "DpserveBackupOld": {'dpserve_upkeep_timestamp_seconds{task="backup"}': "0+0x{n}"},
    "DpserveRehearsalOld": {'dpserve_upkeep_timestamp_seconds{task="rehearsal"}': f"-{16 * DAY}+0x{{n}}"},
    "DpserveJobFailed": {'kube_job_failed{namespace="n",job_name="dpserve-backup-now-1",condition="true"}': "1+0x{n}"},
    "DpserveCronJobIdle": {'kube_cronjob_spec_suspend{namespace="n",cronjob="dpserve-backup"}': "1+0x{n}"},
    "DpserveErrorsFast": {QUESTIONS % 503: "0+100x{n}"},
    "DpserveErrors": {QUESTIONS % 503: "0+40x{n}"},
    "DpserveErrorsSlow": {QUESTIONS % 503: "0+9x{n}"},
}
"""For each alert the series that are other ones where it is to fire."""


def test_every_alert_is_tried(rendered):
    assert ILL.keys() == {rule["alert"] for rule in rules(rendered) if "alert" in rule}


def fires(folder, rendered, alert, series):
    """Let Prometheus evaluate the rules on these series; return whether the alert fires in the end."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups(rendered)}))
    said = [{"series": name, "values": values.format(n=MINUTES)} for name, values in series.items()]
    query = {"expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > 0', "eval_time": f"{MINUTES}m"}
    trial = {"interval": "1m", "input_series": said, "promql_expr_test": [query | {"exp_samples": []}]}
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "30m", "tests": [trial]}
    (folder / "trial.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "trial.yaml"], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 or "got: {} " in done.stdout + done.stderr, done.stdout + done.stderr
    return done.returncode != 0


@needs_prometheus
def test_prometheus_takes_the_rules(rendered, tmp_path):
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups(rendered)}))
    done = subprocess.run(
        [PROMTOOL, "check", "rules", "rules.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_nothing_fires_where_all_is_well(rendered, tmp_path):
    assert not fires(tmp_path, rendered, '",alertname=~".*', WELL)


@needs_prometheus
@pytest.mark.parametrize("alert", ILL)
def test_each_alert_fires_where_its_reason_is(rendered, tmp_path, alert):
    assert ILL[alert].keys() <= WELL.keys()
    assert fires(tmp_path, rendered, alert, WELL | ILL[alert])


PROMETHEUS = shutil.which("prometheus")


@pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH: apt-get install prometheus")
def test_a_prometheus_reads_a_service_and_says_that_its_store_does_not_answer(rendered, tmp_path):
    """A real one, on a real service whose store is killed."""
    run, port, admin = CommandLine(tmp_path), free_port(), free_port()
    run.environment |= {"DPSERVE_ADMIN_KEY": "the-admin-key-of-this-test", "DPSERVE_ADMIN_PORT": str(admin)}
    # As they are, but for how long each waits.
    soon = [{**group, "interval": "1s"} for group in groups(rendered)]
    for group in soon:
        group["rules"] = [{name: each for name, each in rule.items() if name != "for"} for rule in group["rules"]]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": soon}))
    job = {
        "job_name": "dpserve-admin",
        "scrape_interval": "1s",
        "authorization": {"credentials": "the-admin-key-of-this-test"},
        "static_configs": [{"targets": [f"127.0.0.1:{admin}"]}],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "scrape_configs": [job]}))
    words = [PROMETHEUS, f"--config.file={tmp_path}/prometheus.yaml", f"--storage.tsdb.path={tmp_path}/data"]
    words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    bundle = small_bundle(tmp_path)
    with StoreServer(tmp_path / "store", DURABLE) as store, subprocess.Popen(words) as prometheus:
        run.environment["DPSERVE_LEDGER"] = f"redis://127.0.0.1:{store.port}/0"
        try:
            run.start(bundle, "--port", 0, "--rho", 1, "--delta", 1e-6)
            wait_until(lambda: asked(port, "query?query=dpserve_ledger_up==1"))
            assert {each["metric"]["task"] for each in asked(port, "query?query=dpserve_upkeep_timestamp_seconds")} == {
                "backup",
                "rehearsal",
            }
            wait_until(lambda: {"DpserveBackupOld", "DpserveRehearsalOld"} == firing(port))
            run("ledger", "backup", "ledger.backup")
            assert "can be restored" in run("ledger", "rehearse", "ledger.backup").stdout
            wait_until(lambda: not firing(port))
            store.kill()
            wait_until(lambda: "DpserveLedgerRefused" in firing(port))
            assert {rule["health"] for group in asked(port, "rules") for rule in group["rules"]} == {"ok"}
        finally:
            prometheus.terminate()
            run.end()


def asked(port, what):
    """Ask a Prometheus; return what it has, nothing while it starts."""
    try:
        data = httpx.get(f"http://127.0.0.1:{port}/api/v1/{what}", timeout=60).json()["data"]
    except (httpx.HTTPError, ValueError):
        return []
    return data.get("result") or data.get("groups") or data.get("alerts") or []


def firing(port):
    """The names of the alerts that fire."""
    return {each["labels"]["alertname"] for each in asked(port, "alerts") if each["state"] == "firing"}
