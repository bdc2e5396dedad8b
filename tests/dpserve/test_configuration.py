"""Flags stand above the environment, the environment above the file, the file above the defaults."""

import json
import os
from pathlib import Path

import pytest

from dpserve import configuration
from dpserve.configuration import ConfigurationError
from dpserve.settings import ServeSettings, documentation


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("DPSERVE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DPSERVE_HOME", str(tmp_path))
    return tmp_path


def write(home, text):
    (home / "dpserve.toml").write_text(text)


def test_the_environment_stands_above_the_file(home, monkeypatch):
    write(home, '[serve]\nport = 9000\nhost = "::1"\nlargest-batch = 9\n')
    monkeypatch.setenv("DPSERVE_PORT", "9001")
    found = ServeSettings.of_words({"workers": 2, "rho": None})
    sources = found.sources({"workers": 2, "rho": None})
    assert (found.port, sources["port"]) == (9001, "environment DPSERVE_PORT")
    assert (found.host, sources["host"]) == ("::1", str(home / "dpserve.toml"))
    assert (found.workers, sources["workers"], sources["rho"]) == (2, "flag", "default")
    assert found.largest_batch == 9
    assert found.model_fields_set == {"port", "host", "largest_batch", "workers"}


def test_every_option_of_serve_may_stand_in_the_file_and_in_the_environment(home, monkeypatch):
    names = ServeSettings.model_fields
    assert {"bundle", "price", "ledger", "epsilon", "rehearsal", "largest_batch"} <= set(names)
    for name, field in names.items():
        value = {"log_format": "json", "selection": "exponential"}.get(name, "1")
        monkeypatch.setenv(configuration.variable(name), value)
        assert getattr(ServeSettings(), name) != field.get_default() or name in ("workers", "admin")
    assert ServeSettings().model_fields_set == set(names)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[serve]\nprise = 1\n", "nothing is called 'prise' in \\[serve\\]; did you mean 'price'"),
        ("[serve]\nlargest_batch = 1\n", "did you mean 'largest-batch'"),
        ("[srve]\nport = 1\n", "nothing is called 'srve'; did you mean 'serve'"),
        ("[serve]\nledger = 'x'\n", "nothing is called 'ledger' in \\[serve\\]"),
        ("xylophone = 1\n", "known are ledger, ledger-replicas, serve"),
        ("serve = 1\n", "must be a table"),
        ("[serve]\nport = 'many'\n", "port = 'many': .*whole number"),
        ("[serve]\nprice = ['rho:1']\n", "price = .*must be a word"),
        ("[serve\n", "is not TOML"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(home, text, said):
    write(home, text)
    with pytest.raises(ConfigurationError, match=said) as caught:
        ServeSettings.of_words({})
    assert str(home) in str(caught.value)


def test_a_misspelt_variable_is_refused_and_a_foreign_one_is_not(monkeypatch):
    monkeypatch.setenv("DPSERVE_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("DPSERVE_DATA_DIR", "/data")
    monkeypatch.setenv("DPSERVE_ADMIN_KEY", "of twenty characters")
    assert not ServeSettings.of_words({}).model_fields_set
    monkeypatch.setenv("DPSERVE_EPSILOM", "3")
    with pytest.raises(ConfigurationError, match="did you mean DPSERVE_EPSILON"):
        ServeSettings.of_words({})


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("DPSERVE_LEDGR", "DPSERVE_LEDGER"),
        ("DPSERVE_CONFG", "DPSERVE_CONFIG"),
        ("DPSERVE_METRICS_KYE", "DPSERVE_METRICS_KEY"),
        ("DPSERVE_HOEM", "DPSERVE_HOME"),
        ("DPSERVE_DATA_DIRR", "DPSERVE_DATA_DIR"),
        ("DPSERVE_LEDGER_URL", "DPSERVE_LEDGER"),
        ("DPSERVE_LEGDER", "DPSERVE_LEDGER"),
        ("DPSERVE_MECANISMS", "DPSERVE_MECHANISM"),
    ],
)
def test_every_variable_that_is_read_is_missed_where_it_is_misspelt(monkeypatch, misspelt, meant):
    monkeypatch.setenv(misspelt, "redis://nowhere")
    with pytest.raises(ConfigurationError, match=f"did you mean {meant}\\?"):
        ServeSettings.of_words({})


@pytest.mark.parametrize(
    ("foreign", "value"),
    [
        *((name, "1") for name in ("VERSION", "URL", "KEY", "API_KEY", "NAME", "IMAGE", "SERVICE", "UI", "DB", "GPU")),
        ("API_PORT", "tcp://10.0.0.1:80"),
        ("WEB_PORT", "8080"),
        ("SVC_PORT", "tcp://10.0.0.1:80"),
        ("SVC_PORT_80_TCP_PROTO", "tcp"),
        ("LEDGER_SERVICE_HOST", "10.0.0.1"),
        ("LEDGER_SERVICE_PORT_RESP", "6379"),
        ("LEDGER_PORT", "tcp://10.0.0.1:6379"),
        ("LEDGER_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ("ADMINS_PORT", "tcp://10.0.0.1:80"),
    ],
)
def test_what_other_programs_and_services_beside_a_pod_are_called_is_no_slip(monkeypatch, foreign, value):
    monkeypatch.setenv(f"DPSERVE_{foreign}", value)
    assert not ServeSettings.of_words({}).model_fields_set


def test_every_command_refuses_a_misspelt_variable(run):
    run.environment["DPSERVE_LEDGR"] = "redis://nowhere"
    for command in (("clients", "list"), ("plan", "--epsilon", 1, "--delta", 1e-6)):
        assert "did you mean DPSERVE_LEDGER?" in run.fails(*command)


def test_one_budget_replaces_another(home, monkeypatch):
    write(home, "[serve]\nepsilon = 3.0\ndelta = 1e-6\n")
    assert ServeSettings().model_fields_set == {"epsilon", "delta"}
    monkeypatch.setenv("DPSERVE_RHO", "0.5")
    assert ServeSettings().model_fields_set == {"rho", "delta"}
    assert ServeSettings(mu=0.5).model_fields_set == {"mu", "delta"}
    assert ServeSettings(port=1).model_fields_set == {"rho", "delta", "port"}


def test_paths_are_seen_from_the_file(home):
    write(home, 'ledger = "books"\n[serve]\nbundle = "model"\njwt-keys = "keys.json"\ntls-key = "key.pem"\n')
    found = ServeSettings()
    assert (found.jwt_keys, found.tls_key) == (str(home / "keys.json"), home / "key.pem")
    assert found.ledger == configuration.stated_ledger() == str(home / "books")
    assert found.bundle == [home / "model"]
    write(home, 'ledger = "redis://store:6379/0"\n')
    assert configuration.stated_ledger() == "redis://store:6379/0"


def test_a_named_file_must_be_there(home, monkeypatch):
    assert not ServeSettings.of_words({}).model_fields_set
    monkeypatch.setenv("DPSERVE_CONFIG", str(home / "other.toml"))
    with pytest.raises(ConfigurationError, match="there is no file"):
        ServeSettings.of_words({})
    with pytest.raises(ConfigurationError, match="there is no file"):
        configuration.stated_ledger()


def test_the_page_lists_every_setting():
    """Written anew by: python -c 'from dpserve.settings import documentation; print(documentation())'."""
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert documentation() in page


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("redis://user:very_secret@host:6379/0", "redis://(hidden)@host:6379/0"),
        ("redis://host/0?password=very_secret&db=1", "redis://host/0?password=(hidden)&db=1"),
        ("redis://:very@secret@host:6379/0", "redis://(hidden)@host:6379/0"),
        ("redis://:very/secret@host:6379/0", "redis://(hidden)@host:6379/0"),
        ("redis://:very/@sec?ret#@host:6379/0", "redis://(hidden)@host:6379/0"),
        ("redis://:very secret@host:6379/0", "redis://(hidden)@host:6379/0"),
        ("redis:/:very_secret@host:6379/0", "redis:/(hidden)@host:6379/0"),
        ("redis://:very?password=secret@host/0", "redis://(hidden)"),
        ("redis://host/0?password=very@secret", "redis://(hidden)"),
        ("redis://:very/sec@ret@host:6379/1", "redis://(hidden)@host:6379/1"),
        ("epsilon:0.1@1e-6", "epsilon:0.1@1e-6"),
        ("/var/lib/ledger", "/var/lib/ledger"),
        (Path("/tls/key.pem"), "/tls/key.pem"),
        (1, 1),
    ],
)
def test_no_secret_is_shown(value, shown):
    assert configuration.redact(value) == shown


def test_config_show_names_every_source_and_no_secret(run):
    (run.folder / "own.toml").write_text(
        'ledger = "redis://:very_secret@store:6379/0"\n[serve]\nport = 9000\nprice = "rho:0.1"\nlargest-batch = 7\n'
    )
    run.environment |= {"DPSERVE_JWT_KEYS": "https://:very_secret@keys.example/1", "DPSERVE_PRICE": "rho:0.2"}
    arguments = ("--config", "own.toml", "config", "show", "--json", "--port", 9001)
    printed = run(*arguments).stdout
    rows = {row["setting"]: (row["value"], row["source"]) for row in json.loads(printed)["settings"]}
    file = str(run.folder / "own.toml")
    assert rows["port"] == (9001, "flag")
    assert rows["price"] == ("rho:0.2", "environment DPSERVE_PRICE")
    assert rows["largest-batch"] == (7, file)
    assert rows["ledger"] == ("redis://(hidden)@store:6379/0", file)
    assert rows["jwt-keys"] == ("https://(hidden)@keys.example/1", "environment DPSERVE_JWT_KEYS")
    assert rows["host"] == ("127.0.0.1", "default")
    table = run("--config", "own.toml", "config", "show").stdout
    assert "very_secret" not in printed + table
    assert "environment DPSERVE_PRICE" in table


def test_a_service_is_started_from_the_file_alone(run, bundle):
    (run.folder / "home" / "dpserve.toml").write_text(
        f'ledger = "books"\n[serve]\nbundle = "{bundle}"\nport = 0\nepsilon = 3\ndelta = 1e-6\nprice = "rho:0.001"\n'
    )
    process, _ = run.start()
    assert (run.folder / "home" / "books").is_dir()
    run("clients", "add", "alice", "--epsilon", 1, "--delta", 1e-6)
    assert "alice" in run("clients", "list").stdout
    process.terminate()
    process.communicate()
    assert not (run.folder / "home" / "ledger").exists()


def test_a_value_out_of_range_is_refused_wherever_it_stands(run):
    run.environment["DPSERVE_PORT"] = "70000"
    assert run.fails("serve", "model").startswith("the environment's DPSERVE_PORT: ")
    assert "--port" in run("serve", "model", "--port", 70000, status=2).stderr
    del run.environment["DPSERVE_PORT"]
    (run.folder / "home").mkdir(exist_ok=True)
    (run.folder / "home" / "dpserve.toml").write_text("[serve]\nprise = 1\n")
    assert "did you mean 'price'" in run.fails("serve", "model")
    assert "Usage" in run("serve", "--help").stdout


def test_how_many_replicas_a_write_waits_for_stands_beside_the_ledger(home, monkeypatch):
    assert configuration.stated_replicas() == 0
    write(home, 'ledger = "redis://store:6379/0"\nledger-replicas = 2\n')
    assert configuration.stated_replicas() == ServeSettings().ledger_replicas == 2
    monkeypatch.setenv("DPSERVE_LEDGER_REPLICAS", "1")
    assert configuration.stated_replicas() == ServeSettings().ledger_replicas == 1
    for wrong in ("-1", "one", "1.5", "\N{ARABIC-INDIC DIGIT ONE}"):
        monkeypatch.setenv("DPSERVE_LEDGER_REPLICAS", wrong)
        with pytest.raises(ConfigurationError, match="DPSERVE_LEDGER_REPLICAS must be a whole number"):
            configuration.stated_replicas()
    monkeypatch.delenv("DPSERVE_LEDGER_REPLICAS")
    for wrong in ("-1", "'1'", "true"):
        write(home, f"ledger-replicas = {wrong}\n")
        with pytest.raises(ConfigurationError, match="ledger-replicas must be a whole number"):
            configuration.stated_replicas()
    write(home, "[serve]\nledger-replicas = 1\n")
    with pytest.raises(ConfigurationError, match="stands above that table"):
        ServeSettings()
