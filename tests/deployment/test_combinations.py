"""Every combination of components, rendered and read for what it means: who speaks what to which port."""

import itertools
import re
import subprocess

import pytest
import yaml

from benchmarks.replicas import NGINX

from .conftest import ROOT, kustomize
from .test_manifests import containers, named, template_of

EDGES = ("", "gateway", "ingress", "gateway ingress")
LIMITS = set(
    """
    client_header_timeout client_body_timeout send_timeout keepalive_timeout reset_timedout_connection
    large_client_header_buffers limit_conn limit_conn_status limit_conn_zone client_max_body_size
    proxy_request_buffering proxy_buffering proxy_next_upstream proxy_next_upstream_tries
    """.split()  # noqa: SIM905 - a list of so many words is not read
)
"""The directives of deploy/nginx.conf that protect the service, which docs/serving.md counts on."""


def components(edge, *, tls, monitoring):
    """The names of a combination's components, in the order that their comments ask for."""
    chosen = edge.split() + ["monitoring"] * monitoring + ["tls"] * tls
    return chosen + ["gateway-tls"] * (tls and "gateway" in chosen)


AT_ONCE = {
    ("embedded", "", False),
    ("redis", "gateway", True),
    ("ha", "ingress", True),
    ("ha", "gateway ingress", False),
}
"""Overlays, edges and whether there is TLS: combinations in which each stands once. The others take half a minute."""
COMBINATIONS = [
    pytest.param(
        overlay,
        components(edge, tls=tls, monitoring=monitoring),
        marks=[] if (overlay, edge, tls) in AT_ONCE and monitoring == tls else [pytest.mark.slow],
    )
    for overlay, edge, tls, monitoring in itertools.product(
        ("embedded", "redis", "ha"), EDGES, (False, True), (False, True)
    )
]


@pytest.fixture(scope="module")
def combined(k8s):
    """Render an overlay with components."""

    def render(overlay, chosen):
        folder = k8s / "overlays" / "-".join([overlay, *chosen, "combined"])
        folder.mkdir(exist_ok=True)  # of a combination that another test renders, too
        document = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
        document |= {"resources": [f"../{overlay}"], "components": [f"../../components/{each}" for each in chosen]}
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
        done = kustomize(folder)
        assert (done.returncode, done.stderr) == (0, "")
        return list(yaml.safe_load_all(done.stdout))

    return render


@pytest.mark.parametrize(
    ("overlay", "chosen"), COMBINATIONS, ids=lambda each: each if isinstance(each, str) else "-".join(each)
)
def test_each_combination_is_of_one_piece(combined, overlay, chosen):
    resources = combined(overlay, chosen)
    names = [(each["kind"], each["metadata"]["name"]) for each in resources]
    assert len(set(names)) == len(names)
    pod = named(resources, "Deployment", "dpserve")["spec"]["template"]
    (container,) = containers(pod)
    open_ports = {port["name"] for port in container["ports"]}
    assert open_ports == {"http"} | ({"admin"} if "monitoring" in chosen else set())
    encrypted = "tls" in chosen
    (port,) = named(resources, "Service", "dpserve")["spec"]["ports"]
    assert (port["name"], port["port"], port["targetPort"]) == ("http", 443 if encrypted else 80, "http")
    assert port.get("appProtocol") == ("https" if encrypted else None)
    scheme = "HTTPS" if encrypted else None
    assert {container[f"{probe}Probe"]["httpGet"].get("scheme") for probe in ("startup", "readiness", "liveness")} == {
        scheme
    }
    assert ("DPSERVE_TLS_CERT" in {each["name"] for each in container["env"]}) == encrypted
    for kind in ("Ingress", "HTTPRoute", "ServiceMonitor", "BackendTLSPolicy"):
        if (kind, "dpserve") in names:
            {"Ingress": check_ingress, "HTTPRoute": check_route}.get(kind, lambda *_: None)(
                named(resources, kind, "dpserve"), port, encrypted
            )
    assert (("BackendTLSPolicy", "dpserve") in names) == (encrypted and "gateway" in chosen)
    if encrypted and "gateway" in chosen:
        (target,) = named(resources, "BackendTLSPolicy", "dpserve")["spec"]["targetRefs"]
        assert target == {"group": "", "kind": "Service", "name": "dpserve"}
    if "monitoring" in chosen:
        (endpoint,) = named(resources, "ServiceMonitor", "dpserve")["spec"]["endpoints"]
        assert endpoint.get("scheme") == ("https" if encrypted else None)
        (admin,) = named(resources, "Service", "dpserve-admin")["spec"]["ports"]
        assert endpoint["port"] == admin["name"] == admin["targetPort"] == "admin"
    for one in resources:
        template = template_of(one)
        for each in containers(template) if template else ():
            assert ":" in each["image"], one["metadata"]["name"]


def check_ingress(ingress, port, encrypted):
    """An Ingress takes keys over HTTPS alone, and speaks to the service as the service listens."""
    said = ingress["metadata"]["annotations"]
    assert said["ingress.kubernetes.io/ssl-redirect"] == "true"
    hosts = {rule["host"] for rule in ingress["spec"]["rules"]}
    assert {host for each in ingress["spec"]["tls"] for host in each["hosts"]} == hosts
    assert all(each["secretName"] for each in ingress["spec"]["tls"])
    for rule in ingress["spec"]["rules"]:
        for path in rule["http"]["paths"]:
            assert path["backend"]["service"] == {"name": "dpserve", "port": {"name": port["name"]}}
    assert said.get("nginx.org/ssl-services") == ("dpserve" if encrypted else None)


def check_route(route, port, encrypted):
    """A route hangs on a listener of HTTPS, and goes to the port that the service has."""
    del encrypted
    assert {parent["sectionName"] for parent in route["spec"]["parentRefs"]} == {"https"}
    backends = [backend for rule in route["spec"]["rules"] for backend in rule["backendRefs"]]
    assert {(each["name"], each["port"]) for each in backends} == {("dpserve", port["port"])}


def directives(text):
    """The first directive of each name of LIMITS: its words."""
    found = {}
    for line in text.splitlines():
        words = line.partition("#")[0].strip().rstrip(";").split()
        if words and words[0] in LIMITS:
            found.setdefault(words[0], words[1:])
    return found


def of_the_ingress(ingress):
    """The directives that NGINX's controller makes of an Ingress: in its http, server and location blocks."""
    said = ingress["metadata"]["annotations"]
    page = (ROOT / "docs" / "deploying.md").read_text()
    (http,) = re.findall(r"`http-snippets: (limit_conn_zone .*?;)`", page)
    assert http in (ROOT / "k8s" / "components" / "ingress" / "kustomization.yaml").read_text()
    server = f"client_max_body_size {said['nginx.org/client-max-body-size']};\n{said['nginx.org/server-snippets']}"
    buffering = {"true": "on", "false": "off"}[said["nginx.org/proxy-buffering"]]
    return http, server, f"proxy_buffering {buffering};\n{said['nginx.org/location-snippets']}"


def test_the_ingress_has_every_limit_of_the_tested_proxy(combined):
    ingress = named(combined("embedded", ["ingress"]), "Ingress", "dpserve")
    tested = directives((ROOT / "deploy" / "nginx.conf").read_text())
    assert tested.keys() == LIMITS
    assert directives("\n".join(of_the_ingress(ingress))) == tested


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_nginx_takes_what_the_controller_makes_of_the_ingress(combined, tmp_path):
    ingress = named(combined("redis", ["ingress"]), "Ingress", "dpserve")
    http, server, location = of_the_ingress(ingress)
    conf = f"""
        pid {tmp_path}/pid; error_log stderr; events {{}}
        http {{ access_log off; {http}
            server {{ listen 127.0.0.1:1; {server}
                location / {{ proxy_pass http://127.0.0.1:2; {location} }}
            }}
        }}"""
    (tmp_path / "nginx.conf").write_text(conf)
    done = subprocess.run(
        [NGINX, "-t", "-p", tmp_path, "-c", tmp_path / "nginx.conf"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
