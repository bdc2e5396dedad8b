"""Tokens of an OpenID Connect provider over real HTTP: who they name is answered, and nothing else is taken for one."""

import asyncio
import base64
import http.server
import json
import threading
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dpserve.accounting.ledger import KeyExpired, key_digest
from dpserve.service.errors import CannotServe
from dpserve.service.http.app import HttpOptions
from dpserve.service.http.authentication import Authentication
from dpserve.service.http.problems import Problem, ProblemType
from dpserve.service.http.requests import RequestHeader
from dpserve.service.http.tokens import Tokens, TokenSettings
from dpserve.service.predictor import Caller, RowsRequest

from .test_http import PRICE, ROW, problem

ISSUER, AUDIENCE = "https://provider.example", "dpserve"
BODY = {"instances": [ROW]}


def private_key():
    return ec.generate_private_key(ec.SECP256R1())


def public_jwk(key, name):
    algorithm = (
        jwt.algorithms.ECAlgorithm if isinstance(key, ec.EllipticCurvePrivateKey) else jwt.algorithms.RSAAlgorithm
    )
    return algorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": name, "use": "sig"}


def token(key, *, kid="one", algorithm="ES256", drop=(), **claims):
    now = int(time.time())
    all_claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 300} | claims
    kept = {name: value for name, value in all_claims.items() if name not in drop}
    return jwt.encode(kept, key, algorithm=algorithm, headers={"kid": kid} if kid else None)


@pytest.fixture
def provider():
    return private_key()


@pytest.fixture
def keys(provider, tmp_path):
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [public_jwk(provider, "one")]}))
    return path


@pytest.fixture
def service(start, head, keys):
    settings = TokenSettings(ISSUER, AUDIENCE, str(keys))
    return start(head, options=HttpOptions(tokens=asyncio.run(Tokens.open(settings))))


def test_a_tokens_subject_is_the_client_as_it_is(service, provider):
    for subject in ("auth0|5f7c8ec7d3b1", "ann+test@example.org", "tenant/7 users/Zoë", "%2e%2e/{a}:b", "é" * 128):
        service.add_client(subject)
        http = service.http(token(provider, sub=subject))
        assert http.post("/predict", json=BODY).status_code == 200
        assert service.spent(subject) == PRICE
        assert len(http.get("/budget/receipts").json()["receipts"]) == 1


def test_a_subject_that_can_be_no_client_is_refused(service, provider):
    for subject in ("Zoe\u0308", "ann\n", "\ud800", "é" * 129, " ann", 7, ["alice"], None):
        problem(service.http(token(provider, sub=subject)).post("/predict", json=BODY), 401, "unauthenticated")


def test_the_client_that_a_token_names_is_answered_and_charged(service, provider):
    key = service.add_client()
    http = service.http(token(provider))
    assert http.post("/predict", json=BODY).status_code == 200
    assert http.get("/budget").status_code == http.get("/budget/receipts").status_code == 200
    assert service.spent() == PRICE
    # Keys go on being good, and the row that was paid for with a token is a replay.
    assert service.http(key).post("/predict", json=BODY).json()["receipt"]["charged_rows"] == 0


def test_a_token_names_only_clients_that_the_ledger_knows(service, provider):
    service.add_client()
    service.add_client("bob")
    for name in ("eve", "", "../alice", "a b", "x" * 300):
        problem(service.http(token(provider, sub=name)).post("/predict", json=BODY), 401, "unauthenticated")
    service.call(service.ledger.acting("owner").revoke(service.predictor.lineage, "alice"))
    problem(service.http(token(provider)).post("/predict", json=BODY), 401, "key-revoked")
    assert service.spent() == service.spent("bob") == 0


def forged(provider):
    """Tokens that are none of this provider's for this service, by what is wrong with them."""
    stranger = private_key()
    now = int(time.time())
    public = provider.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT","kid":"one"}').rstrip(b"=").decode()
    body = token(provider).split(".")[1]
    by_secret = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 300}
    hs_header = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"one"}').rstrip(b"=").decode()
    hs_body = base64.urlsafe_b64encode(json.dumps(by_secret).encode()).rstrip(b"=").decode()
    signer = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    mac = base64.urlsafe_b64encode(signer.sign(f"{hs_header}.{hs_body}".encode(), public)).rstrip(b"=").decode()
    return {
        "another's signature": token(stranger),
        "an unknown key": token(stranger, kid="two"),
        "no signature": f"{header}.{body}.",
        "the public key as a secret": f"{hs_header}.{hs_body}.{mac}",
        "an algorithm that is not allowed": token(
            rsa.generate_private_key(public_exponent=65537, key_size=2048), algorithm="RS256"
        ),
        "another issuer": token(provider, iss="https://other.example"),
        "another audience": token(provider, aud="other"),
        "no audience": token(provider, drop=["aud"]),
        "no issuer": token(provider, drop=["iss"]),
        "no expiry": token(provider, drop=["exp"]),
        "no subject": token(provider, drop=["sub"]),
        "not yet": token(provider, nbf=now + 1000),
        "issued later": token(provider, iat=now + 1000),
        "an expiry that is a text": token(provider, exp=str(now + 300)),
        "an issue that is a text": token(provider, iat=str(now)),
        "an issue that is true": token(provider, iat=True),
        "altered": token(provider)[:-6] + "AAAAAA",
        "no token": "a.b.c",
        "an expiry that no clock reaches": token(provider, exp=10**400),
        "an infinite expiry": token(provider, exp=float("inf")),
        "a beginning that no clock reaches": token(provider, nbf=float("inf")),
        "an expiry of too many digits": token(provider, exp=10**4200),
        "a header that is nested too deep": base64.urlsafe_b64encode(b"[" * 5000).decode().rstrip("=") + ".b.c",
    }


def test_what_is_no_token_for_this_service_opens_nothing(service, provider):
    service.add_client()
    for what, bad in forged(provider).items():
        for response in (service.http(bad).post("/predict", json=BODY), service.http(bad).get("/budget")):
            assert response.status_code == 401, what
            assert response.headers["dpserve-problem"] == "unauthenticated", what
    problem(service.http(token(provider, exp=int(time.time()) - 1)).post("/predict", json=BODY), 401, "key-expired")
    assert service.spent() == 0


def test_before_its_model_is_known_a_token_stands_for_no_lineage_and_a_forged_one_for_nobody(service, provider, keys):
    """As a gRPC call is admitted before its message is read."""
    authentication = Authentication(
        service.ledger, asyncio.run(Tokens.open(TokenSettings(ISSUER, AUDIENCE, str(keys))))
    )

    def admitted(shown):
        header = RequestHeader({b"authorization": f"Bearer {shown}".encode()}, {}, "")
        return service.call(authentication.admit(header, {service.predictor.lineage}))

    assert admitted(token(provider, sub="bob")) == ("", "bob")
    with pytest.raises(Problem) as refused:
        admitted(token(private_key()))
    assert refused.value.kind is ProblemType.UNAUTHENTICATED


def test_without_settings_no_token_is_taken(start, head, provider):
    service = start(head)
    service.add_client()
    problem(service.http(token(provider)).get("/budget"), 401, "unauthenticated")


def test_the_claim_that_names_the_client_is_the_owners_choice(start, head, provider, keys):
    settings = TokenSettings(ISSUER, AUDIENCE, str(keys), claim="azp")
    service = start(head, options=HttpOptions(tokens=asyncio.run(Tokens.open(settings))))
    service.add_client()
    assert service.http(token(provider, azp="alice", sub="x")).get("/budget").status_code == 200
    problem(service.http(token(provider)).get("/budget"), 401, "unauthenticated")


def test_a_new_key_of_the_provider_is_looked_up_but_not_for_every_stranger(provider, monkeypatch):
    """The provider is a real HTTP server; the clock between two looks is shortened."""
    served = {"keys": [public_jwk(provider, "one")]}
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            body = json.dumps(served).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    async def run():
        tokens = await Tokens.open(TokenSettings(ISSUER, AUDIENCE, f"http://127.0.0.1:{server.server_port}/keys"))
        newer = private_key()
        served["keys"].append(public_jwk(newer, "two"))
        for _ in range(5):
            with pytest.raises(Exception, match="known key"):
                await tokens.verify(token(newer, kid="two"))
        assert len(asked) == 1
        monkeypatch.setattr("dpserve.service.http.tokens._SECONDS_BETWEEN_LOOKS", 0.0)
        assert (await tokens.verify(token(newer, kid="two"))).client == "alice"
        assert len(asked) == 2

    try:
        asyncio.run(run())
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"algorithms": ("HS256",)}, "not HS256"),
        ({"algorithms": ("none",)}, "not none"),
        ({"algorithms": ()}, "not nothing"),
        ({"keys": "http://provider.example/keys"}, "https://"),
        ({"audience": ""}, "audience"),
    ],
)
def test_settings_that_would_take_anybodys_tokens_are_refused(change, said):
    with pytest.raises(CannotServe, match=said):
        TokenSettings(**({"issuer": ISSUER, "audience": AUDIENCE, "keys": "keys.json"} | change))


def test_keys_that_cannot_be_read_are_said_at_the_start(tmp_path):
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "empty.json").write_text('{"keys": []}')
    (tmp_path / "secret.json").write_text('{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one", "alg": "HS256"}]}')
    for name in ("none.json", "list.json", "empty.json", "secret.json"):
        with pytest.raises(CannotServe, match="cannot be read"):
            asyncio.run(Tokens.open(TokenSettings(ISSUER, AUDIENCE, str(tmp_path / name))))


@pytest.fixture
def clock(monkeypatch):
    """The clock by which keys age, to be moved by hand."""
    ahead = [0.0]
    true = time.monotonic
    monkeypatch.setattr("dpserve.service.http.tokens.monotonic", lambda: true() + ahead[0])
    return ahead


def refusal_of(tokens, shown):
    with pytest.raises(Problem) as refused:
        asyncio.run(tokens.verify(shown))
    return refused.value.status, refused.value.kind


KNOWN_NOT, UNAVAILABLE = (401, ProblemType.UNAUTHENTICATED), (503, ProblemType.TOKENS_UNAVAILABLE)


def test_keys_that_cannot_be_read_again_are_trusted_for_a_while_and_no_longer(provider, keys, clock):
    tokens = asyncio.run(Tokens.open(TokenSettings(ISSUER, AUDIENCE, str(keys))))
    shown, content = token(provider, exp=int(time.time()) + 9999), keys.read_text()
    keys.unlink()
    clock[0] = 3700
    assert asyncio.run(tokens.verify(shown)).client == "alice"
    clock[0] = 7300
    assert refusal_of(tokens, shown) == UNAVAILABLE
    keys.write_text(content)
    clock[0] = 7330
    assert refusal_of(tokens, shown) == UNAVAILABLE, "it is tried once a minute"
    clock[0] = 7361
    assert asyncio.run(tokens.verify(shown)).client == "alice"


def test_a_look_that_failed_is_made_again_in_a_minute_so_that_a_withdrawn_key_goes(provider, keys, clock):
    tokens = asyncio.run(Tokens.open(TokenSettings(ISSUER, AUDIENCE, str(keys))))
    shown = token(provider, exp=int(time.time()) + 9999)
    keys.unlink()
    clock[0] = 3700
    assert asyncio.run(tokens.verify(shown)).client == "alice"
    keys.write_text(json.dumps({"keys": [public_jwk(private_key(), "two")]}))
    clock[0] = 3761
    assert refusal_of(tokens, shown) == KNOWN_NOT


def test_whether_an_unknown_key_is_the_providers_is_not_known_while_its_keys_cannot_be_read(provider, keys, clock):
    tokens = asyncio.run(Tokens.open(TokenSettings(ISSUER, AUDIENCE, str(keys))))
    newer = private_key()
    content = json.dumps({"keys": [public_jwk(newer, "two")]})
    keys.unlink()
    assert refusal_of(tokens, token(newer, kid="two")) == KNOWN_NOT
    for seconds in (61, 90):
        clock[0] = seconds
        assert refusal_of(tokens, token(newer, kid="two")) == UNAVAILABLE
        assert asyncio.run(tokens.verify(token(provider))).client == "alice"
    keys.write_text(content)
    clock[0] = 122
    assert asyncio.run(tokens.verify(token(newer, kid="two"))).client == "alice"


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256"])
def test_a_key_that_names_no_algorithm_is_good_for_all_that_are_allowed(tmp_path, algorithm):
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [public_jwk(key, "one")]}))
    allowed = ("RS512", "PS256")
    tokens = asyncio.run(Tokens.open(TokenSettings(ISSUER, AUDIENCE, str(tmp_path / "keys.json"), algorithms=allowed)))
    shown = token(key, algorithm=algorithm)
    if algorithm in allowed:
        assert asyncio.run(tokens.verify(shown)).client == "alice"
    else:
        assert refusal_of(tokens, shown) == KNOWN_NOT


@pytest.mark.parametrize("change", [{"use": "enc"}, {"key_ops": ["encrypt"]}, {"alg": "ES384"}, {"kty": "RSA"}])
def test_a_key_for_something_else_verifies_nothing(provider, tmp_path, change):
    other = public_jwk(private_key(), "other")
    content = {"keys": [public_jwk(provider, "one") | change, other]}
    (tmp_path / "keys.json").write_text(json.dumps(content))
    tokens = asyncio.run(Tokens.open(TokenSettings(ISSUER, AUDIENCE, str(tmp_path / "keys.json"))))
    assert refusal_of(tokens, token(provider)) == KNOWN_NOT


def test_the_password_of_the_keys_url_is_not_in_the_error():
    with pytest.raises(CannotServe) as refusal:
        asyncio.run(Tokens.open(TokenSettings(ISSUER, AUDIENCE, "http://name:pass@word@127.0.0.1:1/keys")))
    assert "(hidden)" in str(refusal.value)
    assert not [part for part in ("pass", "word", "name") if part in str(refusal.value)]


def test_a_token_is_good_for_what_its_scopes_say(start, head, provider, keys):
    settings = TokenSettings(ISSUER, AUDIENCE, str(keys), scope_claim="scope")
    service = start(head, options=HttpOptions(tokens=asyncio.run(Tokens.open(settings))))
    service.add_client()

    def statuses(**claims):
        http = service.http(token(provider, **claims))
        asked = http.post("/predict", json=BODY), http.get("/budget")
        for each in asked:
            if each.status_code != 200:
                problem(each, 403, "insufficient-scope")
        return tuple(each.status_code for each in asked)

    assert statuses(scope="openid budget-read") == (403, 200)
    assert statuses() == statuses(scope="") == statuses(scope=7) == statuses(scope="prediction") == (403, 403)
    assert service.spent() == 0
    assert statuses(scope=["predict"]) == (200, 403)
    assert statuses(scope="predict budget-read") == (200, 200)


def test_a_token_that_expires_while_its_request_waits_is_charged_nothing(service, provider):
    """The charge is asked for directly: by then the request was let in."""
    key = service.add_client()
    plane = service.predictor
    X = plane.check_rows([ROW])
    now = time.time()
    with pytest.raises(KeyExpired):
        service.call(plane.predict(Caller("alice", expires=now - 1), RowsRequest(X)))
    with pytest.raises(KeyExpired):
        service.call(plane.confirm(Caller("alice", expires=now - 1)))
    assert service.spent() == 0

    async def together():
        callers = (
            Caller("alice", expires=now - 1),
            Caller("alice", expires=now + 3600),
            Caller("alice", key_digest(key)),
        )
        rows = (plane.check_rows([[0.1 * place] * 4]) for place in range(3))
        asked = [plane.predict(caller, RowsRequest(X)) for caller, X in zip(callers, rows, strict=True)]
        return await asyncio.gather(*asked, return_exceptions=True)

    expired, *answered = service.call(together())
    assert isinstance(expired, KeyExpired)
    assert [each.charge.charged for each in answered] == [PRICE, PRICE]
    assert service.spent() == 2 * PRICE
