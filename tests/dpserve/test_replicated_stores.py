"""Every command that opens the ledger, on a primary with a replica and on Sentinels, under the ACL."""

import ast
import socket
from pathlib import Path

import pytest
import typer

import dpserve
from dpserve.accounting.ledger import UnsafeStore
from dpserve.accounting.ledger.store import RIGHTS
from dpserve.commands.options import lineage_names, open_ledger
from dpserve.training.errors import WrongOption
from tests.owners_commands import BUDGET, COLUMNS, LEDGER_OPTIONS, Owner, ledger_commands, use_every_command
from tests.topologies import primary_and_sentinels

USER = ("clerk", "secret", *RIGHTS.split())


@pytest.fixture(scope="module")
def primary_and_sentinel(tmp_path_factory):
    with primary_and_sentinels(tmp_path_factory.mktemp("replicated"), USER) as found:
        yield found


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("DPSERVE_LEDGER", "DPSERVE_LEDGER_REPLICAS", "DPSERVE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    return tmp_path


def refused(folder, *more):
    assert isinstance(Owner(folder, more).error("lineage", "list"), UnsafeStore)


def test_every_command_works_on_a_primary_with_a_replica_by_its_flags(home, primary_and_sentinel):
    store, _ = primary_and_sentinel
    refused(home, "--ledger", store.url)
    (home / "dpserve.toml").write_text(f'ledger = "{store.url}"\n')
    refused(home)
    (home / "dpserve.toml").unlink()
    store.empty()
    use_every_command(Owner(home, ("--ledger", store.url, "--ledger-replicas", "1")), store.empty)


@pytest.mark.slow
def test_every_command_works_on_sentinels_by_the_environment(home, primary_and_sentinel, monkeypatch):
    _, store = primary_and_sentinel
    monkeypatch.setenv("DPSERVE_LEDGER", store.url)
    refused(home)
    store.empty()
    monkeypatch.setenv("DPSERVE_LEDGER_REPLICAS", "1")
    owner = Owner(home)
    use_every_command(owner, store.empty)
    assert ledger_commands().keys() - owner.ran == {("serve",), ("demo",)}


def test_a_sentinel_that_is_silent_leaves_time_for_the_others(home, primary_and_sentinel):
    """As one on a node that is switched off: a connection to it is made, or waited for, and nothing comes back."""
    _, store = primary_and_sentinel
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = f"127.0.0.1:{silent.getsockname()[1]}"
        replicas = ("--ledger-replicas", "1")
        with_it = Owner(home, ("--ledger", store.url.replace("@", f"@{there},"), *replicas))("lineage", "list")
        assert with_it == Owner(home, ("--ledger", store.url, *replicas))("lineage", "list")


def test_every_command_that_opens_the_ledger_takes_the_number_of_replicas():
    found = ledger_commands()
    assert {("serve",), ("export",), ("ledger", "verify"), ("clients", "revoke")} <= found.keys()
    for words, command in found.items():
        options = {parameter.name: parameter for parameter in command.params}
        (ledger,) = options.keys() & LEDGER_OPTIONS.keys()
        replicas = options[LEDGER_OPTIONS[ledger]]
        if words == ("demo",):  # which never takes the owner's ledger by itself
            continue
        assert replicas.default is None, words
        if words != ("serve",):  # which reads its variables itself
            assert (options[ledger].envvar, replicas.envvar) == ("DPSERVE_LEDGER", "DPSERVE_LEDGER_REPLICAS")


def test_nothing_but_the_one_declaration_opens_an_owners_ledger():
    """Services that are started here have ledgers of their own, and so has a rehearsal of a restore."""
    package = Path(dpserve.__file__).parent
    own = {"commands/options.py", "commands/ledger.py", "local_services.py"}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Ledger":
                assert node.attr not in ("open", "connect") or str(path.relative_to(package)) in own, path


def test_the_embedded_ledger_has_no_replicas(home, monkeypatch):
    with pytest.raises(WrongOption, match="embedded"):
        open_ledger(None, 1)
    monkeypatch.setenv("DPSERVE_LEDGER_REPLICAS", "1")
    assert Owner(home, ("--ledger", str(home / "books"), "--ledger-replicas", "0"))("lineage", "list")


def test_names_are_completed_from_a_replicated_store(home, primary_and_sentinel, monkeypatch):
    store, _ = primary_and_sentinel
    store.empty()
    owner = Owner(home, ("--ledger", store.url, "--ledger-replicas", "1"))
    train = ("train", "--data", str(owner.rows()), *COLUMNS, "head", "--lam", "1", "--lineage", "people")
    owner(*train, "--features", "identity", "--out", str(home / "model"))
    owner("lineage", "set-budget", str(home / "model"), *BUDGET)
    context = typer.Context(ledger_commands()["lineage", "set-budget"])
    context.params = {"ledger": store.url, "ledger_replicas": 1}
    assert lineage_names(context, "pe") == ["people"]
    context.params = {"ledger": store.url}
    assert lineage_names(context, "pe") == []
    monkeypatch.setenv("DPSERVE_LEDGER_REPLICAS", "1")
    assert lineage_names(context, "pe") == ["people"]
