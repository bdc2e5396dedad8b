"""k8s/: valid for the current Kubernetes, by a strict policy, true to the service, and of one piece."""

import base64
import copy
import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import version
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pytest
import yaml

from dpserve import configuration
from dpserve.accounting.ledger.store import RIGHTS
from dpserve.settings import ServeSettings
from dpserve.training.devices import DEVICES

from .conftest import (
    EVERYTHING,
    HA,
    LOAD_BUNDLE,
    OVERLAYS,
    ROOT,
    SECOND,
    STORES,
    commands_that_write,
    kustomize,
)
from .policy import breaches, pod_of, template_of

CUSTOM = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, which its own definitions know, and the schema of Kubernetes does not."""

NAMES = {"k8s-app": "kube-dns"}
"""The labels of the pods that resolve names, in every cluster; they have none of ours."""
THE_OWNERS = {"dpserve-tls", "dpserve-edge-tls", "dpserve-valkey-tls"}
"""Secrets that no manifest makes: docs/deploying.md has the owner make them, or have them made."""
SETS = (*OVERLAYS, SECOND, EVERYTHING, LOAD_BUNDLE)


@pytest.mark.parametrize("overlay", ["embedded", HA, EVERYTHING, LOAD_BUNDLE])
def test_every_resource_is_valid(rendered, overlay):
    version = kubernetes_validate.latest_version()
    assert tuple(map(int, version.split(".")))[:2] >= (1, 37)
    for resource in rendered[overlay]:
        if resource["kind"] in CUSTOM:
            assert lost(resource) == []
        elif resource["kind"] not in ("HTTPRoute", "BackendTLSPolicy"):  # which other tests look at
            kubernetes_validate.validate(resource, version, strict=True)


def test_the_route_is_of_the_gateways_standard_fields(rendered):
    """The fields of gateway.networking.k8s.io/v1 that it may have: no package brings the definitions."""
    route = named(rendered[EVERYTHING], "HTTPRoute", "dpserve")
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
    spec = route["spec"]
    assert spec.keys() <= {"parentRefs", "hostnames", "rules"}
    assert all(each.keys() <= {"name", "namespace", "sectionName"} for each in spec["parentRefs"])
    for rule in spec["rules"]:
        assert rule.keys() <= {"matches", "backendRefs", "timeouts"}
        assert rule["timeouts"].keys() <= {"request", "backendRequest"}
        assert [each["path"]["type"] for each in rule["matches"]] == ["PathPrefix"]


def lost(resource):
    """Read a resource as the Prometheus operator's own definition has it; return the fields that it does not know.

    Raises an error for a value that the definition refuses.
    """
    from cloudcoil.models.prometheus_operator import v1 as operator  # seconds: not where tests are only collected

    model = getattr(operator, resource["kind"]).model_validate(resource)
    return sorted(fields(resource) - fields(model.model_dump(mode="json", by_alias=True, exclude_unset=True)))


def fields(value, path=""):
    """The paths of all fields."""
    found = set()
    for name, each in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found |= {f"{path}/{name}"} | fields(each, f"{path}/{name}")
    return found


@pytest.mark.parametrize("overlay", SETS)
def test_every_pod_keeps_the_policy(rendered, overlay):
    pods = [resource for resource in rendered[overlay] if pod_of(resource) is not None]
    assert pods
    assert [wrong for resource in pods for wrong in breaches(resource)] == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda pod: pod["securityContext"].pop("runAsNonRoot"), "root"),
        (lambda pod: pod["securityContext"].pop("seccompProfile"), "seccomp"),
        (lambda pod: pod.pop("automountServiceAccountToken"), "token"),
        (lambda pod: pod.update(hostNetwork=True), "host"),
        (lambda pod: pod["volumes"].append({"name": "host", "hostPath": {"path": "/"}}), "host's files"),
        (lambda pod: pod["containers"][0].update(image="dpserve:latest"), "tag"),
        (lambda pod: pod["containers"][0].update(image="dpserve"), "tag"),
        (lambda pod: pod["containers"][0]["resources"].pop("limits"), "limits"),
        (lambda pod: pod["containers"][0]["resources"].pop("requests"), "requests"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"), "written"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("allowPrivilegeEscalation"), "privileges"),
        (lambda pod: pod["containers"][0]["securityContext"].pop("capabilities"), "capabilities"),
        (lambda pod: pod["containers"][0]["securityContext"].update(runAsUser=0), "root"),
        (lambda pod: pod["containers"][0]["securityContext"].update(privileged=True), "privileged"),
    ],
)
def test_the_policy_finds_every_breach(rendered, change, said):
    deployment = copy.deepcopy(named(rendered["redis"], "Deployment", "dpserve"))
    change(pod_of(deployment))
    (found,) = breaches(deployment)
    assert said in found


def named(resources, kind, name):
    """The one resource of a kind and name."""
    (found,) = [each for each in resources if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def selects(selector, labels):
    """Whether a selector of labels picks a pod."""
    return selector.items() <= labels.items()


@pytest.mark.parametrize("overlay", [*OVERLAYS, EVERYTHING])
def test_what_points_at_something_points_at_what_is_there(rendered, overlay):
    resources = rendered[overlay]
    pods = [template for each in resources if (template := template_of(each)) is not None]
    named_ports = [port for pod in pods for each in containers(pod) for port in each.get("ports", [])]
    ports = {port["name"]: port["containerPort"] for port in named_ports}
    for each in resources:
        if each["kind"] == "Service":
            chosen = [pod for pod in pods if selects(each["spec"]["selector"], pod["metadata"]["labels"])]
            assert len(chosen) == 1, each["metadata"]["name"]
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= ports.keys()
        if each["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            selector = each["spec"].get("selector") or each["spec"]["podSelector"]
            assert [pod for pod in pods if selects(selector["matchLabels"], pod["metadata"]["labels"])]
        if each["kind"] == "NetworkPolicy":
            opened = {port["port"] for rule in each["spec"].get("ingress", []) for port in rule["ports"]}
            assert opened <= set(ports.values())
        if each["kind"] == "HorizontalPodAutoscaler":
            assert named(resources, "Deployment", each["spec"]["scaleTargetRef"]["name"])
            assert "replicas" not in named(resources, "Deployment", "dpserve")["spec"]
    policies = [each for each in resources if each["kind"] == "NetworkPolicy"]
    for pod in pods:
        covering = [e for e in policies if selects(e["spec"]["podSelector"]["matchLabels"], pod["metadata"]["labels"])]
        assert {"Ingress", "Egress"} <= {kind for each in covering for kind in each["spec"]["policyTypes"]}
    claimed = {
        v["persistentVolumeClaim"]["claimName"] for p in pods for v in volumes(p) if "persistentVolumeClaim" in v
    }
    assert claimed == {each["metadata"]["name"] for each in resources if each["kind"] == "PersistentVolumeClaim"}
    for kind, where in (("ConfigMap", "configMap"), ("Secret", "secret")):
        wanted = {v[where].get("name") or v[where]["secretName"] for pod in pods for v in volumes(pod) if where in v}
        assert wanted - THE_OWNERS <= {each["metadata"]["name"] for each in resources if each["kind"] == kind}


@pytest.mark.parametrize("overlay", [*OVERLAYS, EVERYTHING])
def test_the_service_is_let_out_to_names_and_its_store_alone(rendered, overlay):
    resources = rendered[overlay]
    ours = [each["spec"]["template"] for each in resources if each["kind"] in ("Deployment", "StatefulSet")]
    found = []
    for rule in named(resources, "NetworkPolicy", "dpserve")["spec"]["egress"]:
        for peer in rule["to"]:
            selector, names = peer["podSelector"]["matchLabels"], "namespaceSelector" in peer
            assert selects(selector, NAMES) if names else any(selects(selector, p["metadata"]["labels"]) for p in ours)
            ports = {(port["protocol"], port["port"]) for port in rule["ports"]}
            assert not names or ports == {("UDP", 53), ("TCP", 53)}
            found.append(names)
    assert sorted(found) == [False] * (overlay != "embedded") + [True]


def test_the_service_has_a_certificate_where_it_looks_for_it_and_the_page_makes_it(rendered):
    """Who speaks HTTPS to whom, test_combinations.py asks of every combination."""
    (container,) = containers(named(rendered[EVERYTHING], "Deployment", "dpserve")["spec"]["template"])
    paths = [container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")]
    assert paths == ["/readyz", "/readyz", "/livez"]
    told = {each["name"]: each.get("value", "") for each in container["env"]}
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
    for name, file in (("DPSERVE_TLS_CERT", "tls.crt"), ("DPSERVE_TLS_KEY", "tls.key")):
        assert told[name] == f"{mount['mountPath']}/{file}"
    assert "kubectl create secret tls dpserve-tls " in (ROOT / "docs" / "deploying.md").read_text()


def containers(pod):
    """A pod template's containers."""
    return pod["spec"]["containers"]


def volumes(pod):
    """A pod template's volumes."""
    return pod["spec"].get("volumes", [])


def test_the_embedded_ledger_has_one_writer_on_a_volume(rendered):
    spec = named(rendered["embedded"], "Deployment", "dpserve")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}
    (state,) = [each for each in spec["template"]["spec"]["volumes"] if each["name"] == "state"]
    claim = named(rendered["embedded"], "PersistentVolumeClaim", state["persistentVolumeClaim"]["claimName"])
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert not [each for each in rendered["embedded"] if each["kind"] == "HorizontalPodAutoscaler"]


def test_replicas_keep_their_journals_where_the_backup_finds_them(rendered):
    for overlay in ("redis", "gpu"):
        kept = set()
        for kind, name in (("Deployment", "dpserve"), ("CronJob", "dpserve-backup")):
            pod = template_of(named(rendered[overlay], kind, name))
            (claimed,) = [each for each in volumes(pod) if each["name"] == "journals"]
            (mount,) = [each for each in containers(pod)[0]["volumeMounts"] if each["name"] == "journals"]
            kept.add((claimed["persistentVolumeClaim"]["claimName"], mount["mountPath"]))
            assert mount.get("readOnly", False) == (kind == "CronJob")
        assert kept == {("dpserve-journals", "/var/lib/dpserve/journals")}
        claim = named(rendered[overlay], "PersistentVolumeClaim", "dpserve-journals")
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "DPSERVE_HOME=/var/lib/dpserve " in (ROOT / "Dockerfile").read_text()


def test_the_owners_pod_restores_from_where_backups_and_journals_are(rendered):
    resources = rendered["redis"]
    deployment = named(resources, "Deployment", "dpserve-owner")
    assert deployment["spec"]["replicas"] == 0
    backup, owner = template_of(named(resources, "CronJob", "dpserve-backup")), deployment["spec"]["template"]
    (policy,) = [
        each
        for each in resources
        if each["kind"] == "NetworkPolicy"
        and selects(each["spec"]["podSelector"]["matchLabels"], owner["metadata"]["labels"])
    ]
    assert policy["metadata"]["name"] == "dpserve-backup"  # which lets it reach the store
    kept = [
        {mount["name"]: mount["mountPath"] for mount in containers(pod)[0]["volumeMounts"]} for pod in (backup, owner)
    ]
    assert kept[0].items() <= kept[1].items()
    page = (ROOT / "docs" / "deploying.md").read_text()
    commands = re.findall(r"kubectl exec deployment/dpserve-owner -- dpserve (.*)", page)
    assert [words.split()[1] for words in commands] == ["restore", "reconcile", "verify"]
    places = {word for words in commands for word in words.split() if "/" in word}
    assert places == {"/backups/ledger.backup"}
    assert "dpserve ledger backup /backups/ledger.backup\n" in " ".join(containers(backup)[0]["args"])


def test_pods_that_share_a_claim_of_one_node_run_on_one_node(rendered):
    resources = rendered["redis"]
    modes = {
        each["metadata"]["name"]: each["spec"]["accessModes"]
        for each in resources
        if each["kind"] == "PersistentVolumeClaim"
    }
    shared = {}
    for pod in filter(None, map(template_of, resources)):
        volumes = pod["spec"].get("volumes", [])
        for claim in (each["persistentVolumeClaim"] for each in volumes if "persistentVolumeClaim" in each):
            if modes[claim["claimName"]] == ["ReadWriteOnce"]:
                shared.setdefault(claim["claimName"], []).append(pod)
    assert {name: len(pods) for name, pods in shared.items()} == {"dpserve-backups": 3}
    for pods in shared.values():
        for pod in pods:
            (term,) = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            assert term["topologyKey"] == "kubernetes.io/hostname"
            assert all(selects(term["labelSelector"]["matchLabels"], each["metadata"]["labels"]) for each in pods)


def test_pods_have_room_for_what_verify_and_backup_note(rendered):
    """Each question of a full store takes 120 bytes there, and 74 in the store (docs/ledger.md, docs/scaling.md)."""
    conf, *_ = store_of(rendered["redis"])
    megabytes = int(re.search(r"^maxmemory (\d+)mb$", conf, re.MULTILINE)[1])
    needed = megabytes * 2**20 / 74 * 120
    for kind, name in (("Deployment", "dpserve"), ("Deployment", "dpserve-owner"), ("CronJob", "dpserve-backup")):
        pod = template_of(named(rendered["redis"], kind, name))["spec"]
        sizes = {each["name"]: each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if "emptyDir" in each}
        assert in_bytes(sizes["tmp"]) >= needed, name
        room = pod["containers"][0]["resources"]["limits"]["ephemeral-storage"]
        assert in_bytes(room) > sum(map(in_bytes, sizes.values())), name  # which count, and the log with them


def in_bytes(quantity):
    """A quantity of Kubernetes."""
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return int(number) * {"Mi": 2**20, "Gi": 2**30}[unit]


def test_the_gpu_overlay_asks_for_a_gpu_and_an_image_with_cuda(rendered):
    (container,) = containers(named(rendered["gpu"], "Deployment", "dpserve")["spec"]["template"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["image"].endswith("-gpu")
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["DPSERVE_DEVICE"] in DEVICES
    assert environment["CUBLAS_EMULATE_DOUBLE_PRECISION"] == "0"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    for overlay in ("embedded", "redis"):
        assert "nvidia" not in str(rendered[overlay])


def test_what_the_page_lets_out_is_added_to_what_an_overlay_lets_out(k8s):
    page = (ROOT / "docs" / "deploying.md").read_text()
    name, written = re.search(r'^```yaml title="(.*?)"\n(.*?)^```$', page, re.DOTALL | re.MULTILINE).groups()
    folder = k8s / "overlays" / "redis-outside"
    folder.mkdir()
    (folder / name).write_text(written)
    (folder / "kustomization.yaml").write_text(
        f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../redis, {name}]\n"
    )
    done = kustomize(folder)
    assert (done.returncode, done.stderr) == (0, "")
    resources = list(yaml.safe_load_all(done.stdout))
    outside = named(resources, "NetworkPolicy", "dpserve-outside")
    kubernetes_validate.validate(outside, kubernetes_validate.latest_version(), strict=True)
    pod = named(resources, "Deployment", "dpserve")["spec"]["template"]
    assert selects(outside["spec"]["podSelector"]["matchLabels"], pod["metadata"]["labels"])
    assert outside["spec"]["policyTypes"] == ["Egress"]
    assert {port["port"] for rule in outside["spec"]["egress"] for port in rule["ports"]} == {6379, 26379, 4318, 443}


def images(resources):
    """Every image that is started, except the store's."""
    found = {each["image"] for one in resources if (pod := pod_of(one)) for each in pod["containers"]}
    return {image for image in found if not image.startswith("valkey/")}


def test_the_image_is_renamed_in_one_place_for_all_that_start_it(rendered, k8s, tmp_path):
    renamed = shutil.copytree(k8s, tmp_path / "k8s")
    (said,) = re.findall(r"`k8s/(components/\S+)`, which every overlay", (ROOT / "docs" / "deploying.md").read_text())
    written = (renamed / said).read_text()
    (renamed / said).write_text(written.replace("newName: dpserve", "newName: registry.example:5000/team/dpserve"))
    for folder in (*OVERLAYS, EVERYTHING, LOAD_BUNDLE):
        own = version("dpserve")
        tag = f"{own}-gpu" if folder in ("gpu", EVERYTHING) else own
        tags = {tag} if folder in ("embedded", LOAD_BUNDLE) else {tag, own}  # backups need no CUDA
        assert images(rendered[folder]) == {f"dpserve:{each}" for each in tags}
        done = kustomize(renamed / folder if folder == LOAD_BUNDLE else renamed / "overlays" / folder)
        there = {f"registry.example:5000/team/dpserve:{each}" for each in tags}
        assert images(yaml.safe_load_all(done.stdout)) == there, done.stderr


@pytest.mark.parametrize("overlay", [*OVERLAYS, EVERYTHING])
def test_the_configuration_is_one_that_the_service_takes(rendered, overlay, tmp_path, monkeypatch):
    for name in os.environ.keys() - configuration.environment_without_settings().keys():
        monkeypatch.delenv(name)
    (found,) = [
        each
        for each in rendered[overlay]
        if each["kind"] == "ConfigMap" and each["metadata"]["name"].startswith("dpserve-config")
    ]
    (tmp_path / "dpserve.toml").write_text(found["data"]["dpserve.toml"])
    monkeypatch.setenv("DPSERVE_CONFIG", str(tmp_path / "dpserve.toml"))
    (container,) = containers(named(rendered[overlay], "Deployment", "dpserve")["spec"]["template"])
    for each in container["env"]:
        if each["name"].startswith("DPSERVE_") and each["name"] != "DPSERVE_CONFIG":
            assert each["name"] in configuration.variables_read(ServeSettings.model_fields)
            is_number = each["name"] == "DPSERVE_LEDGER_REPLICAS"
            monkeypatch.setenv(
                each["name"], each.get("value", "1" if is_number else "redis://of:a-secret@store:6379/0")
            )
    settings = ServeSettings.of_words({})
    assert {"bundle", "epsilon", "delta", "price"} <= settings.model_fields_set
    mounts = {each["mountPath"] for each in container["volumeMounts"]}
    assert set(map(str, settings.bundle)) <= mounts
    assert tomllib.loads(found["data"]["dpserve.toml"])


def test_an_overlay_without_the_owners_secrets_is_not_rendered():
    for overlay in ("redis", "gpu"):
        done = kustomize(ROOT / "k8s" / "overlays" / overlay)
        if not (ROOT / "k8s" / "overlays" / "redis" / "secret.env").exists():
            assert done.returncode != 0
            assert ".env" in done.stderr or "users.acl" in done.stderr
    listed = subprocess.run(["git", "ls-files", "k8s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not re.search(r"\.env$|users\.acl$", listed, re.MULTILINE)
    ignored = (ROOT / "k8s" / ".gitignore").read_text().split()
    assert {"components/monitoring/admin.env", "components/monitoring/metrics.env"} <= set(ignored)


def test_the_bundles_volume_can_be_made_first(rendered):
    selector = re.search(r"--selector (\S+)=(\S+)", (ROOT / "docs" / "deploying.md").read_text())
    for overlay in OVERLAYS:
        chosen = [
            each for each in rendered[overlay] if each["metadata"].get("labels", {}).get(selector[1]) == selector[2]
        ]
        assert [(each["kind"], each["metadata"]["name"]) for each in chosen] == [
            ("PersistentVolumeClaim", "dpserve-bundle")
        ]


def test_both_pages_name_the_rights_that_the_ledger_looks_for(k8s):
    default, *users = (k8s / "overlays" / "redis" / "users.acl").read_text().splitlines()
    assert default == "user default off ~* &* +@all"  # with the rights by which older ones read their file
    rights = {each.split()[1]: each.split(maxsplit=4)[4] for each in users}
    assert rights == {"dpserve": RIGHTS, "owner": RIGHTS}
    assert f"`{RIGHTS}`" in (ROOT / "docs" / "ledger.md").read_text()


def store_of(resources):
    """Return the store's configuration, its users, and the address of the service and of the owner."""
    data = {re.sub("-[a-z0-9]{10}$", "", each["metadata"]["name"]): each.get("data") or {} for each in resources}
    users = base64.b64decode(data["dpserve-valkey-users"]["users.acl"]).decode()
    secrets = ("dpserve-ledger", "dpserve-ledger-owner")
    urls = {name: base64.b64decode(data[name]["DPSERVE_LEDGER"]).decode().strip() for name in secrets}
    return data["dpserve-valkey-config"]["valkey.conf"], users, urls


def test_pods_have_the_address_of_their_own_user_and_who_signs_the_stores_certificate(rendered):
    resources = rendered[EVERYTHING]
    _, users, urls = store_of(resources)
    user = {"dpserve-ledger": "dpserve", "dpserve-ledger-owner": "owner"}
    assert {name: urlsplit(url).username for name, url in urls.items()} == user
    assert len({urlsplit(url).password for url in urls.values()}) == len(user)
    assert {f"user {each} on " in users for each in user.values()} == {True}
    asked = {}
    for each in resources:
        if (pod := pod_of(each)) is None or each["metadata"]["name"] == "dpserve-valkey":
            continue
        (container,) = pod["containers"]
        (told,) = [env for env in container["env"] if env["name"] == "DPSERVE_LEDGER"]
        name = re.sub("-[a-z0-9]{10}$", "", told["valueFrom"]["secretKeyRef"]["name"])
        asked[each["metadata"]["name"]] = user[name]
        authority = parse_qs(urlsplit(urls[name]).query)["ssl_ca_certs"][0]
        (mount,) = [each for each in container["volumeMounts"] if authority.startswith(f"{each['mountPath']}/")]
        (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
        # The authority alone, and not the store's key.
        assert volume["secret"]["items"] == [{"key": "ca.crt", "path": authority.rpartition("/")[2]}]
        assert volume["secret"]["secretName"] == "dpserve-valkey-tls"
    jobs = dict.fromkeys(("dpserve-backup", "dpserve-rehearsal", "dpserve-owner"), "owner")
    assert asked == {"dpserve": "dpserve", **jobs}


@pytest.mark.parametrize("file", ["secret.env", "ha.env"])
def test_what_the_page_writes_no_other_user_reads_and_no_command_line_shows(k8s_of_ha, tmp_path, file):
    written = tmp_path / "k8s"
    shutil.copytree(k8s_of_ha, written)
    secrets = [written / "components" / "ha" / "ha.env", written / "overlays" / "redis" / "users.acl"]
    secrets += [written / "overlays" / "redis" / name for name in STORES]
    for each in secrets:
        each.chmod(0o644)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sed", "grep"):
        (programs / name).write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/seen\nexec {shutil.which(name)} "$@"\n')
        (programs / name).chmod(0o755)
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    words = ["bash", "-ec", f"umask 022\n{commands_that_write(file)}"]
    subprocess.run(words, cwd=tmp_path, env=os.environ | path, check=True, timeout=60)
    ours = secrets if file == "ha.env" else secrets[1:]
    assert {each.stat().st_mode & 0o777 for each in ours} == {0o600}
    seen = (tmp_path / "seen").read_text() if (tmp_path / "seen").exists() else ""
    assert not re.search(r"[0-9a-f]{48}", seen)
    assert re.search(r"[0-9a-f]{48}", ours[0].read_text())


def test_what_the_page_stops_it_starts_again_and_it_waits_long_enough(rendered):
    page = (ROOT / "docs" / "deploying.md").read_text()
    found = re.findall(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    blocks = [block.splitlines() for language, block in found if not language]
    lines = [line.strip() for block in blocks for line in block]
    grace = pod_of(named(rendered["redis"], "Deployment", "dpserve"))["terminationGracePeriodSeconds"]
    waits = [line for line in lines if line.startswith("kubectl wait ")]
    assert len(waits) == 3
    assert all(int(re.search(r" --timeout=(\d+)s", line)[1]) > 2 * grace for line in waits)
    stop, start = (lines.index(f"kubectl scale deployment/dpserve --replicas={n}") for n in (0, 2))
    halted, goes_on = (
        lines.index(f"""kubectl patch cronjob/dpserve-backup --patch '{{"spec":{{"suspend":{said}}}}}'""")
        for said in ("true", "false")
    )
    restored = lines.index("kubectl exec deployment/dpserve-owner -- dpserve ledger restore /backups/ledger.backup")
    again = lines.index("kubectl scale deployment/dpserve --replicas=2", restored)
    assert halted < stop < restored < again < goes_on
    assert start < stop  # that of the way back from `ha` to `redis`
    assert all(lines[each + 1] == "kubectl rollout status deployment/dpserve" for each in (start, again))
    owner = lines.index("kubectl scale deployment/dpserve-owner --replicas=1")
    assert lines[owner + 1].startswith("kubectl rollout status deployment/dpserve-owner --timeout=")
    assert named(rendered["redis"], "CronJob", "dpserve-backup")["spec"].get("suspend") is None  # so apply leaves it
    for block in blocks:
        uses = [number for number, line in enumerate(block) if "$overlay" in line]
        assert not uses or any(line.strip().startswith("overlay=") for line in block[: uses[0]])
