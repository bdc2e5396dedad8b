"""The overlay `ha`, whose pods are started as the processes that it says: failovers, stops of all, and lost volumes.

Each pod has an address of its own on loopback, and a name that resolves to it: `127.66051` is 127.1.2.3 to a resolver,
and no address to whoever compares strings.
"""

import base64
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import httpx
import pytest
import redis
import yaml

from dpserve.accounting.ledger.embedded import server_binary
from tests import topologies
from tests.faults.servers import Services, encrypting_server, free_port, ran_to_its_end

from .conftest import HA, ROOT, SECOND, commands_that_write, kustomize
from .test_manifests import containers, named, store_of, template_of
from .test_replicas import small_bundle

ADMINISTRATOR = {"username": "administrator", "password": "of-the-test"}
TLS_LINES = r"^tls-(?!port).*\n|^port 0\n| --tls --cacert \S+"
PRICE = 0.001
WAITS = "waits for the primary, %s\n"
ADMIN_KEY = "the-admin-key-of-this-test"
BUDGET = ("--rho", "1", "--delta", "1e-6")


def kept(resources, kind, name):
    """The files of a ConfigMap or Secret, whose name kustomize gave a suffix."""
    found = [
        each["data"]
        for each in resources
        if each["kind"] == kind and re.fullmatch(f"{name}-[a-z0-9]{{10}}", each["metadata"]["name"])
    ]
    (data,) = found
    return data if kind == "ConfigMap" else {key: base64.b64decode(value).decode() for key, value in data.items()}


def wait_until(holds):
    """Return as soon as it holds: a step here starts dozens of processes, and a failover takes its time."""
    topologies.wait_until(holds, patience=300)


@dataclass
class Pod:
    """A pod of the store, in a folder that has its volumes, and the processes of its containers."""

    store: "Store"
    name: str
    address: str
    folder: Path
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def host(self):
        return self.store.hosts[f"{self.name}.dpserve-valkey"]

    def place(self, text):
        """Put this pod's folders, the hosts' names and what the server can in place of what the manifests say."""
        mounts = {each["mountPath"] for container in self.store.containers for each in container["volumeMounts"]}
        longest = sorted(mounts, key=len, reverse=True)
        text = re.sub("|".join(longest), lambda found: f"{self.folder}{found[0]}", text)
        for name, host in self.store.hosts.items():
            text = text.replace(name, host)
        if not self.store.authority:
            text = re.sub(TLS_LINES, "", text, flags=re.MULTILINE).replace("tls-port", "port")
            text = text.replace("tls-replication yes\n", "")
        return text

    def write_volumes(self):
        resources = self.store.resources
        users = kept(resources, "Secret", "dpserve-valkey-users")["users.acl"]
        users += "user administrator on >of-the-test ~* &* +@all\n"
        files = {"valkey-users/users.acl": users}
        files |= {
            f"valkey/{name}": text for name, text in kept(resources, "ConfigMap", "dpserve-valkey-config").items()
        }
        for path, text in files.items():
            file = self.folder / "etc" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.place(text))
        (self.folder / "data").mkdir(exist_ok=True)
        if self.store.authority:
            shutil.copytree(self.store.authority, self.folder / "etc" / "valkey-tls", dirs_exist_ok=True)

    def environment(self, container):
        told = {"POD_NAME": self.name, "POD_IP": self.address}
        secret = kept(self.store.resources, "Secret", "dpserve-valkey-ha")
        for each in container["env"]:
            if "value" in each:
                told[each["name"]] = self.place(re.sub(r"\$\((\w+)\)", lambda found: told[found[1]], each["value"]))
            elif "secretKeyRef" in each["valueFrom"]:
                told[each["name"]] = secret[each["valueFrom"]["secretKeyRef"]["key"]]
        return os.environ | told | {"PATH": f"{self.store.programs}:{os.environ['PATH']}"}

    def start(self, *names):
        """Start the containers of these names, or all."""
        self.write_volumes()  # anew: in a pod no server can rewrite them
        for container in self.store.containers:
            if names and container["name"] not in names:
                continue
            with (self.folder / f"{container['name']}.log").open("ab") as log:
                self.processes[container["name"]] = subprocess.Popen(
                    [self.place(word) for word in container["command"]],
                    env=self.environment(container),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # with all that a script starts
                )

    def start_alone(self, resources):
        """Start the Valkey of another overlay on this pod's volume."""
        (container,) = containers(template_of(named(resources, "StatefulSet", "dpserve-valkey")))
        words = [self.place(word) for word in container["command"]]
        with (self.folder / "alone.log").open("ab") as log:
            self.processes["alone"] = subprocess.Popen(
                [*words, "--bind", self.address],
                env=self.environment({"env": []}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, *names, how=signal.SIGKILL):
        """End the containers of these names, or all."""
        ended = {name: process for name, process in self.processes.items() if not names or name in names}
        for process in ended.values():
            os.killpg(process.pid, how)
        for name, process in ended.items():
            process.wait(60)
            del self.processes[name]

    def run(self, *words):
        """Run a command in the container of Valkey, as a probe or the owner does; return its status and output."""
        done = subprocess.run(
            [self.place(word) for word in words],
            env=self.environment(self.store.containers[0]),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    def is_ready(self, *names):
        """Whether the probes say so of the containers of these names, or of all."""
        return all(
            self.run(*each["readinessProbe"]["exec"]["command"])[0] == 0
            for each in self.store.containers
            if not names or each["name"] in names
        )

    def role(self):
        """The role and the primary that its Valkey says, or nothing."""
        try:
            with redis.Redis(self.address, 6379, **ADMINISTRATOR, **self.store.tls, protocol=2) as client:
                return [each.decode() for each in client.execute_command("ROLE")[:2] if isinstance(each, bytes)]
        except redis.RedisError:
            return []

    def ask_sentinel(self, *words):
        password = kept(self.store.resources, "Secret", "dpserve-valkey-ha")["SENTINEL_PASSWORD"].partition(",")[0]
        user = {"username": "sentinel", "password": password}
        with redis.Redis(self.address, 26379, **user, **self.store.tls, protocol=2) as client:
            return client.execute_command("SENTINEL", *words)

    def replicas_in_log(self, event):
        """The replicas of which its Sentinel logged this."""
        return re.findall(rf"\+{event} slave (\S+):6379 ", (self.folder / "sentinel.log").read_text())

    def log(self):
        return "".join((self.folder / f"{each['name']}.log").read_text() for each in self.store.containers)


@dataclass
class Store:
    """The pods of the StatefulSet."""

    resources: list
    folder: Path
    hosts: dict[str, str]
    programs: Path
    authority: Path | None
    pods: list[Pod] = field(default_factory=list)

    @property
    def containers(self):
        return containers(template_of(named(self.resources, "StatefulSet", "dpserve-valkey")))

    @property
    def tls(self):
        own = {"ssl": True, "ssl_check_hostname": False}
        return own | {"ssl_ca_certs": self.authority / "ca.crt"} if self.authority else {}

    def authority_in(self, folder):
        """A folder with a new authority and the store's certificate, by the commands of the page."""
        script = commands_that_write("tls.csr")
        for name, host in self.hosts.items():
            script = script.replace(name, host)
        folder.mkdir()
        subprocess.run(["bash", "-ec", script], cwd=folder, check=True, timeout=60, capture_output=True)
        return folder

    def address(self, user):
        """The ledger's address of a user, as a process here takes it."""
        url = store_of(self.resources)[2][user]
        for name, host in self.hosts.items():
            url = url.replace(name, host)
        if self.authority:
            return url.replace("/etc/dpserve-valkey-tls", str(self.authority))
        return re.sub("^rediss", "redis", re.sub("&ssl_ca_certs=.*", "", url))

    def primary(self):
        """The one pod that all that are there take for the primary."""
        roles = {pod.name: pod.role() for pod in self.pods if pod.processes}
        (found,) = [pod for pod in self.pods if roles.get(pod.name, [])[:1] == ["master"]]
        return found

    def is_whole(self):
        """Whether all pods are ready, and one is the primary of the others."""
        roles = [pod.role() for pod in self.pods]
        primaries = [pod for pod, role in zip(self.pods, roles, strict=True) if role[:1] == ["master"]]
        following = [role[1] for role in roles if role[:1] == ["slave"]]
        whole = len(primaries) == 1 and following == [primaries[0].host] * 2
        return whole and all(pod.is_ready() for pod in self.pods)

    def start(self):
        for pod in self.pods:
            pod.start()

    def update(self):
        """Start one pod after another anew, the last first, as the StatefulSet does; return once all are ready."""
        for pod in reversed(self.pods):
            pod.end(how=signal.SIGTERM)
            pod.start()
            wait_until(self.is_whole)

    def end(self, how=signal.SIGKILL):
        for pod in self.pods:
            pod.end(how=how)


@contextmanager
def ended(store):
    try:
        yield store
    finally:
        store.end()


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["without TLS", "TLS"])
def store(request, rendered, tmp_path):
    """The store's pods, not started; without the lines on TLS where the server has none."""
    binary = encrypting_server() if request.param else str(server_binary())
    if binary is None or "Valkey" not in ran_to_its_end(binary, "--version"):
        pytest.skip("no Valkey with TLS: install one, or name it in DPSERVE_TEST_TLS_STORE")
    resources = rendered[HA]
    stateful = named(resources, "StatefulSet", "dpserve-valkey")
    block = secrets.randbelow(1 << 21) + (1 << 20)  # tests run side by side
    hosts = {f"dpserve-valkey-{number}.dpserve-valkey": f"127.{4 * block + number}" for number in range(3)}
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "valkey-server").symlink_to(binary)
    own_client = Path(binary).with_name("valkey-cli")
    if own_client.exists():
        (programs / "valkey-cli").symlink_to(own_client)
    else:
        client = programs / "valkey-cli"
        client.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("valkey_cli.py")} "$@"\n')
        client.chmod(0o755)
    found = Store(resources, tmp_path, hosts, programs, None)
    if request.param:
        found.authority = found.authority_in(tmp_path / "tls")
    for number in range(stateful["spec"]["replicas"]):
        address = str(IPv4Address((127 << 24) + 4 * block + number))
        pod = Pod(found, f"dpserve-valkey-{number}", address, tmp_path / f"pod-{number}")
        pod.folder.mkdir()
        found.pods.append(pod)
    with ended(found):
        yield found


@dataclass
class Client:
    """Asks rows of a service, and asks them again."""

    url: str
    key: str
    answers: dict = field(default_factory=dict)

    def ask(self, number):
        return httpx.post(
            f"{self.url}/predict",
            json={"instances": [[number / 1000, 1 - number / 1000]]},
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=60,
        )

    def is_answered(self, number):
        response = self.ask(number)
        if response.status_code == 200:
            self.answers[number] = response.json()["predictions"]
        else:
            assert response.status_code == 503, response.text
        return response.status_code == 200

    def has_its_answers(self):
        """Every answer is there, the same, and costs nothing more."""
        for number, predictions in self.answers.items():
            answer = self.ask(number).json()
            assert (answer["receipt"]["charged_rows"], answer["predictions"]) == (0, predictions)


def gauges(admin):
    """The gauges of a service that tell of its store's replicas and Sentinels."""
    text = httpx.get(admin, headers={"Authorization": f"Bearer {ADMIN_KEY}"}, timeout=60).text
    return {
        name: float(value) for name, value in re.findall(r"^dpserve_store_(replicas\w*|can_promote) (\S+)", text, re.M)
    }


def test_a_pod_of_the_store_waits_for_the_primary_and_no_drain_takes_the_last_that_has_its_data(rendered):
    stateful = named(rendered[HA], "StatefulSet", "dpserve-valkey")
    (probe,) = [each["startupProbe"] for each in containers(template_of(stateful)) if "startupProbe" in each]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 7 * 86_400
    # A primary is ready once it has a replica, which finds it by a name: neither waits for the other to be ready.
    assert stateful["spec"]["podManagementPolicy"] == "Parallel"
    assert named(rendered[HA], "Service", "dpserve-valkey")["spec"]["publishNotReadyAddresses"] is True
    budget = named(rendered[HA], "PodDisruptionBudget", "dpserve-valkey")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "IfHealthyBudget")
    # An update does not look at the pods that it comes to later: a failover is over before it goes on.
    conf = kept(rendered[HA], "ConfigMap", "dpserve-valkey-config")["sentinel.conf"]
    milliseconds = sum(
        int(each) for each in re.findall(r"(?:down-after-milliseconds|failover-timeout) \w+ (\d+)", conf)
    )
    assert stateful["spec"]["minReadySeconds"] >= milliseconds / 1000


@pytest.mark.slow
def test_the_gauge_of_failovers_follows_the_sentinels(store, served):
    hung = [pod.processes["sentinel"] for pod in store.pods[1:]]
    for how, can_promote in ((signal.SIGSTOP, 0), (signal.SIGCONT, 1)):
        for process in hung:
            process.send_signal(how)
        wanted = {"replicas": 2, "replicas_needed": 1, "can_promote": can_promote}
        wait_until(lambda: gauges(served.admin) == wanted)  # noqa: B023 - called at once


def test_ha_goes_with_gpu_and_a_second_service_goes_beside_it(owners_files):
    both = owners_files / "overlays" / "gpu-and-ha"
    both.mkdir()
    (both / "kustomization.yaml").write_text(
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../gpu]\n"
        "components: [../../components/ha, ../../components/monitoring, ../../components/image]\n"
    )
    shutil.copy(owners_files / "overlays" / "redis" / "secret.env", owners_files / "overlays" / SECOND)
    found = {}
    for overlay in ("gpu-and-ha", SECOND):
        done = kustomize(owners_files / "overlays" / overlay)
        assert done.returncode == 0, done.stderr
        found[overlay] = list(yaml.safe_load_all(done.stdout))
    stateful = named(found["gpu-and-ha"], "StatefulSet", "dpserve-valkey")
    assert stateful["spec"]["replicas"] == 3
    images = [each["image"].partition(":")[0] for each in containers(template_of(stateful))]
    assert images == ["valkey/valkey"] * 2
    assert all(":" in each["image"] for each in containers(template_of(stateful)))
    (container,) = containers(template_of(named(found["gpu-and-ha"], "Deployment", "dpserve")))
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    for resources, name in ((found["gpu-and-ha"], "dpserve-ledger"), (found[SECOND], "second-dpserve-ledger")):
        told = kept(resources, "Secret", name)
        assert told["DPSERVE_LEDGER_REPLICAS"] == "1"
        assert told["DPSERVE_LEDGER"].count("dpserve-valkey:26379") == 3


@pytest.fixture
def owners_files(k8s_of_ha, tmp_path):
    """A copy of k8s/ with what the owner wrote, to change."""
    folder = tmp_path / "owner" / "k8s"
    shutil.copytree(k8s_of_ha, folder)
    return folder


def write_users_of_ha(owners_files):
    """Run the commands of the page again, and return the files that they write."""
    subprocess.run(["bash", "-ec", commands_that_write("ha.env")], cwd=owners_files.parent, check=True, timeout=60)
    names = ("secret.env", "owner.env", "users.acl")
    of_redis = [owners_files / "overlays" / "redis" / name for name in names]
    return [file.read_text() for file in (owners_files / "components" / HA / "ha.env", *of_redis)]


def test_the_commands_that_write_the_users_of_ha_may_run_again(owners_files):
    own = owners_files / "components" / HA / "ha.env"
    before = write_users_of_ha(owners_files)
    assert write_users_of_ha(owners_files) == before
    one = re.search(r"^SENTINEL_PASSWORD=(\w+)$", own.read_text(), re.M)[1]
    own.write_text(own.read_text().replace(f"={one}", f"=another,{one}"))
    *_, users = write_users_of_ha(owners_files)
    assert re.findall(r"^user sentinel on (.*?) &", users, re.M) == [f">another >{one}"]


@pytest.mark.slow
def test_passwords_of_the_stores_own_users_change_while_it_is_asked(store, owners_files, tmp_path):
    services = Services(small_bundle(tmp_path), tmp_path / "home", "", tmp_path / "log", f"rho:{PRICE}")
    replicas = ("--ledger-replicas", "1")
    own = owners_files / "components" / HA / "ha.env"
    before = dict(line.split("=") for line in own.read_text().split())
    after = {name: secrets.token_hex(24) for name in before}
    store.start()
    wait_until(store.is_whole)
    services.ledger = store.address("dpserve-ledger-owner")
    services.command_line("lineage", "list", *replicas)
    for first, second in ((before, after), (after, before), (after, None)):
        both = {name: ",".join(each[name] for each in (first, second) if each) for name in before}
        own.write_text("".join(f"{name}={passwords}\n" for name, passwords in both.items()))
        write_users_of_ha(owners_files)
        done = kustomize(owners_files / "overlays" / HA)
        assert done.returncode == 0, done.stderr
        former, store.resources = store.address("dpserve-ledger"), list(yaml.safe_load_all(done.stdout))
        store.update()
        if second is before:  # a service that was not yet started anew
            services.ledger = former
            services.command_line("lineage", "list", *replicas)
        services.ledger = store.address("dpserve-ledger")
        services.command_line("lineage", "list", *replicas)
    assert not any(password in services.ledger for password in before.values())
    services.ledger = former.replace(after["LOOKUP_PASSWORD"], before["LOOKUP_PASSWORD"])
    assert services.ledger != former
    with pytest.raises(AssertionError, match="no Sentinel names a primary"):
        services.command_line("lineage", "list", *replicas)


@pytest.mark.slow
@pytest.mark.parametrize("store", [True], ids=["TLS"], indirect=True)
def test_an_authority_and_certificates_change_while_the_store_is_asked(store, tmp_path):
    another = store.authority_in(tmp_path / "another")
    one = {name: (store.authority / name).read_text() for name in ("ca.crt", "tls.crt", "tls.key")}
    new = {name: (another / name).read_text() for name in one}
    both = one["ca.crt"] + new["ca.crt"]
    services = Services(
        small_bundle(tmp_path), tmp_path / "home", store.address("dpserve-ledger"), tmp_path / "log", f"rho:{PRICE}"
    )
    replicas = ("--ledger-replicas", "1")
    store.start()
    wait_until(store.is_whole)
    with services.serving(*BUDGET, *replicas) as (url, _):
        client = Client(url, services.command_line("clients", "add", "ann", *BUDGET, *replicas).splitlines()[-1])
        assert client.is_answered(0)
        for number, files in enumerate((one | {"ca.crt": both}, new | {"ca.crt": both}, new), start=1):
            for name, text in files.items():
                (store.authority / name).write_text(text)
            store.update()
            wait_until(lambda number=number: client.is_answered(number))
        client.has_its_answers()


@pytest.mark.slow
def test_a_primary_is_ready_while_it_takes_writes_and_its_volume_is_one_of_redis(store, rendered):
    primary, *others = store.pods
    others[0].start()
    wait_until(lambda: others[0].role() == ["slave", primary.host])
    assert not others[0].is_ready("valkey")
    primary.start()
    others[1].start()
    wait_until(store.is_whole)
    with redis.Redis(primary.address, 6379, **ADMINISTRATOR, **store.tls) as administrator:
        assert administrator.set("dpserve:a-charge", "1")
        for pod in others:
            pod.end()
        wait_until(lambda: not primary.is_ready("valkey"))
        with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
            administrator.set("dpserve:a-charge", "2")
        others[0].start()
        wait_until(lambda: primary.is_ready("valkey"))
        assert administrator.set("dpserve:a-charge", "2")
    store.end(how=signal.SIGTERM)
    primary.start_alone(rendered["redis"])
    wait_until(lambda: primary.role()[:1] == ["master"])
    with redis.Redis(primary.address, 6379, **ADMINISTRATOR, **store.tls) as administrator:
        assert administrator.get("dpserve:a-charge") == b"2"
        assert administrator.set("dpserve:a-charge", "3")


@pytest.mark.slow
def test_a_sentinel_that_starts_while_the_primary_is_away_helps_to_choose_another(store):
    store.start()
    wait_until(store.is_whole)
    primary, first, second = store.pods
    for pod in (first, second):
        pod.end("sentinel")
    primary.end()
    for pod in (first, second):
        pod.start("sentinel")
    wait_until(lambda: "master" in (*first.role(), *second.role()))


@dataclass
class ServedStore:
    """The store of a service that has answered a client: the owner's commands, the client, and the metrics' address."""

    owner: Services
    replicas: tuple[str, str]
    client: Client
    admin: str

    def is_right(self):
        self.client.has_its_answers()
        return ": right" in self.owner.command_line("ledger", "verify", *self.replicas)


@pytest.fixture
def served(store, tmp_path, monkeypatch):
    monkeypatch.setenv("DPSERVE_ADMIN_KEY", ADMIN_KEY)
    replicas = ("--ledger-replicas", kept(store.resources, "Secret", "dpserve-ledger")["DPSERVE_LEDGER_REPLICAS"])
    owner = Services(small_bundle(tmp_path), tmp_path / "home", store.address("dpserve-ledger-owner"), tmp_path / "log")
    services = Services(owner.bundle, owner.home, store.address("dpserve-ledger"), owner.log, f"rho:{PRICE}")
    port = free_port()
    store.start()
    wait_until(store.is_whole)
    assert store.primary() is store.pods[0]
    with services.serving(*BUDGET, *replicas, "--admin-port", port) as (url, _):
        client = Client(url, owner.command_line("clients", "add", "ann", *BUDGET, *replicas).splitlines()[-1])
        assert all(client.is_answered(number) for number in range(5))
        yield ServedStore(owner, replicas, client, f"http://127.0.0.1:{port}/metrics")


@pytest.mark.slow
def test_no_charge_is_lost_where_the_primary_fails(store, served):
    first = store.primary()
    wait_until(lambda: gauges(served.admin) == {"replicas": 2, "replicas_needed": 1, "can_promote": 1})
    first.end()
    wait_until(lambda: served.client.is_answered(5))
    assert store.primary() is not first
    assert served.is_right()


@pytest.mark.slow
def test_no_charge_is_lost_where_all_pods_stop_or_a_volume_is_emptied(store, served):
    first = store.primary()
    first.end()
    wait_until(lambda: served.client.is_answered(5))
    second = store.primary()
    first.start()
    wait_until(store.is_whole)
    assert store.primary() is second
    assert served.client.is_answered(6)

    # All stop; those that are back wait for the one that has most.
    store.end(how=signal.SIGTERM)
    others = [pod for pod in store.pods if pod is not second]
    for pod in others:
        pod.start()
    wait_until(lambda: all(pod.role()[:1] == ["slave"] for pod in others))
    wait_until(lambda: all("waits for the primary" in pod.log() for pod in others))
    second.start()
    wait_until(store.is_whole)
    assert store.primary() is second
    wait_until(lambda: served.client.is_answered(7))
    served.client.has_its_answers()

    # The primary comes back at once, and its volume is empty.
    second.end()
    shutil.rmtree(second.folder / "data")
    second.start()
    wait_until(lambda: served.client.is_answered(8))
    wait_until(store.is_whole)
    assert store.primary() is not second
    assert served.is_right()


@pytest.mark.slow
def test_a_pod_that_asks_while_a_failover_ends_hears_its_number_with_the_new_primary(store):
    """A failover ends once each other replica follows or is down: one is ended, and is not seen as down."""
    store.start()
    wait_until(store.is_whole)
    first, *others = store.pods
    for pod in others:
        pod.ask_sentinel("SET", "ledger", "failover-timeout", "60000")
    first.end()
    wait_until(lambda: any(pod.replicas_in_log("selected-slave") for pod in others))
    (leader,) = (pod for pod in others if pod.replicas_in_log("selected-slave"))
    (chosen,) = leader.replicas_in_log("selected-slave")
    (left,) = (pod for pod in others if pod.host != chosen)
    left.end("valkey")
    wait_until(lambda: leader.replicas_in_log("promoted-slave"))
    leader.ask_sentinel("SET", "ledger", "down-after-milliseconds", "60000")
    status, said = first.run("sh", "/etc/valkey/store.sh", "status")
    assert status == 0
    (of_leader,) = re.findall(rf"^{re.escape(leader.host)}: .* primary (.*)$", said, re.M)
    assert of_leader == f"1 {chosen}"
    left.start("valkey")
    first.start()
    wait_until(store.is_whole)
    assert store.primary().host == chosen


@pytest.mark.slow
def test_the_owner_says_that_the_primary_is_lost_for_good_where_all_had_stopped(store):
    store.start()
    wait_until(store.is_whole)
    lost, *others = store.pods
    with redis.Redis(lost.address, 6379, **ADMINISTRATOR, **store.tls) as administrator:
        administrator.set("dpserve:a-charge", "1")
        assert administrator.execute_command("WAITAOF", 1, 2, 30_000) == [1, 2]
    page = (ROOT / "docs" / "deploying.md").read_text()
    owner_says = re.findall(r"exec (\S+) -c sentinel -- (touch \S+)", page)
    for pod, (_, words) in zip(others, owner_says, strict=True):
        assert pod.run(*words.split())[0] == 0  # which is not what decides of a later loss
    store.end(how=signal.SIGTERM)
    shutil.rmtree(lost.folder / "data")
    store.start()
    # It has nothing, and the others do: nobody is the primary, and nobody is chosen.
    wait_until(lambda: "waits until the others say who is the primary" in (lost.folder / "valkey.log").read_text())
    wait_until(lambda: all((pod.folder / "sentinel.log").read_text().endswith(WAITS % lost.host) for pod in store.pods))
    lost.processes["valkey"].terminate()
    assert lost.processes.pop("valkey").wait(60) == 143  # by a trap: a container's first process dies of no signal
    lost.start("valkey")
    for pod, (name, words) in zip(others, owner_says, strict=True):
        assert pod.name == name
        assert pod.run(*words.split())[0] == 0
    wait_until(store.is_whole)
    assert store.primary() is not lost
    with redis.Redis(lost.address, 6379, **ADMINISTRATOR, **store.tls) as administrator:
        assert administrator.get("dpserve:a-charge") == b"1"
    (words,) = set(re.findall(r"kubectl exec dpserve-valkey-0 -c valkey -- (sh \S+ status)", page))

    def all_agree() -> bool:
        status, said = store.pods[0].run(*words.split())
        seen = re.findall(rf"OK 3 usable Sentinels.*, primary (\d+) {re.escape(store.primary().host)}$", said, re.M)
        all_see = len(seen) == 3 and len(set(seen)) == 1
        return status == 0 and all_see

    wait_until(all_agree)
