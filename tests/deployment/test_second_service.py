"""Two services in one namespace on one store: no name is both's, and what points at something points at its own."""

import base64

import pytest
import yaml

from dpserve.accounting.ledger.store import RIGHTS

from .conftest import SECOND, kustomize
from .test_manifests import containers, named, selects, store_of, template_of, volumes

EDGE = ("gateway", "ingress", "monitoring", "tls", "gateway-tls")


@pytest.fixture(scope="module")
def both(k8s):
    """The resources of both services, each with every component that makes names of its own."""
    found = []
    for overlay in ("redis", SECOND):
        folder = k8s / "overlays" / f"{overlay}-of-two"
        folder.mkdir()
        document = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
        document |= yaml.safe_load((k8s / "overlays" / overlay / "kustomization.yaml").read_text())
        for file in (k8s / "overlays" / overlay).iterdir():
            if file.name != "kustomization.yaml":
                (folder / file.name).write_text(file.read_text())
        document["components"] = [*document["components"], *(f"../../components/{each}" for each in EDGE)]
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
        done = kustomize(folder)
        assert (done.returncode, done.stderr) == (0, "")
        found.append(list(yaml.safe_load_all(done.stdout)))
    return found


def pods_of(resources):
    """The templates of the pods that stay."""
    return [template_of(each) for each in resources if each["kind"] in ("Deployment", "StatefulSet")]


def test_no_name_is_both_services(both):
    first, second = ({(each["kind"], each["metadata"]["name"]) for each in one} for one in both)
    assert first & second == set()
    assert all(name.startswith("second-") for _, name in second)


@pytest.mark.parametrize("own", [0, 1])
def test_what_selects_pods_selects_those_of_its_own_service(both, own):
    pods = [(place, template) for place, one in enumerate(both) for template in pods_of(one)]
    for each in both[own]:
        spec = each.get("spec", {})
        chosen = {
            "Service": spec.get("selector"),
            "Deployment": spec.get("selector", {}).get("matchLabels"),
            "PodDisruptionBudget": spec.get("selector", {}).get("matchLabels"),
            "NetworkPolicy": spec.get("podSelector", {}).get("matchLabels"),
        }.get(each["kind"])
        if chosen:
            places = {place for place, pod in pods if selects(chosen, pod["metadata"]["labels"])}
            assert places <= {own}, (each["kind"], each["metadata"]["name"])
            assert places or each["metadata"]["name"] == "dpserve-backup"  # of jobs, which come and go
    services = {each["metadata"]["name"]: each for each in both[own] if each["kind"] == "Service"}
    (monitor,) = [each for each in both[own] if each["kind"] == "ServiceMonitor"]
    labels = [each["metadata"]["labels"] for one in both for each in one if each["kind"] == "Service"]
    watched = [each for each in labels if selects(monitor["spec"]["selector"]["matchLabels"], each)]
    assert watched == [services[["dpserve-admin", "second-dpserve-admin"][own]]["metadata"]["labels"]]


@pytest.mark.parametrize("own", [0, 1])
def test_what_names_something_names_that_of_its_own_service(both, own):
    prefix = ["", "second-"][own]
    ingress = named(both[own], "Ingress", f"{prefix}dpserve")
    (rule,) = ingress["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == f"{prefix}dpserve"
    assert ingress["metadata"]["annotations"]["nginx.org/ssl-services"] == f"{prefix}dpserve"
    (backend,) = named(both[own], "HTTPRoute", f"{prefix}dpserve")["spec"]["rules"][0]["backendRefs"]
    assert backend["name"] == f"{prefix}dpserve"
    (target,) = named(both[own], "BackendTLSPolicy", f"{prefix}dpserve")["spec"]["targetRefs"]
    assert target["name"] == f"{prefix}dpserve"
    scaled = named(both[own], "HorizontalPodAutoscaler", f"{prefix}dpserve")["spec"]["scaleTargetRef"]
    assert scaled["name"] == f"{prefix}dpserve"
    pod = named(both[own], "Deployment", f"{prefix}dpserve")["spec"]["template"]
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"]
        for each in volumes(pod)
        if "persistentVolumeClaim" in each
    }
    # What was acknowledged to either lies where the one backup finds it.
    assert claims == {"bundle": f"{prefix}dpserve-bundle", "journals": "dpserve-journals"}
    secrets = {each["metadata"]["name"] for each in both[own] if each["kind"] == "Secret"}
    for told in containers(pod)[0]["env"]:
        if "valueFrom" in told:
            assert told["valueFrom"]["secretKeyRef"]["name"] in secrets


def test_both_reach_the_one_store_and_nobody_else_does(both):
    (store,) = [template for template in pods_of(both[0]) if "valkey" in str(template["metadata"]["labels"])]
    let_in = []
    for each in (*both[0], *both[1]):
        is_ingress = each["kind"] == "NetworkPolicy" and "Ingress" in each["spec"]["policyTypes"]
        if is_ingress and of_the_store(each["spec"]["podSelector"], store["metadata"]["labels"]):
            let_in += [peer["podSelector"]["matchLabels"] for rule in each["spec"]["ingress"] for peer in rule["from"]]
    services = [named(both[n], "Deployment", f"{['', 'second-'][n]}dpserve")["spec"]["template"] for n in (0, 1)]
    for pod in services:
        assert any(selects(peer, pod["metadata"]["labels"]) for peer in let_in)
    assert len(let_in) == 3  # and the backup
    egress = named(both[1], "NetworkPolicy", "second-dpserve")["spec"]["egress"]
    peers = [peer["podSelector"]["matchLabels"] for rule in egress for peer in rule["to"]]
    assert {"k8s-app": "kube-dns"} in peers
    assert any(selects(peer, store["metadata"]["labels"]) for peer in peers)
    assert RIGHTS in store_of(both[0])[1]
    (url,) = [each["data"]["DPSERVE_LEDGER"] for each in both[1] if "DPSERVE_LEDGER" in (each.get("data") or {})]
    assert base64.b64decode(url).decode().strip() == store_of(both[0])[2]["dpserve-ledger"]


def of_the_store(selector, labels):
    """Whether a selector picks the store's pod."""
    terms = selector.get("matchExpressions", [])
    return selects(selector.get("matchLabels", {}), labels) and all(
        labels.get(each["key"]) in each["values"] for each in terms if each["operator"] == "In"
    )
