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

from service.errors import CannotServe
from service.http.front import Front
from service.http.tokens import Tokens, TokenSettings

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
    return start(head, front=Front(tokens=asyncio.run(Tokens.open(settings))))


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
    for name in (["alice"], 7, None):
        problem(service.http(token(provider, sub=name)).post("/predict", json=BODY), 401, "unauthenticated")
    service.call(service.ledger.revoke(service.data_plane.lineage, "alice"))
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
        "altered": token(provider)[:-6] + "AAAAAA",
        "no token": "a.b.c",
    }


def test_what_is_no_token_for_this_service_opens_nothing(service, provider):
    service.add_client()
    for what, bad in forged(provider).items():
        for response in (service.http(bad).post("/predict", json=BODY), service.http(bad).get("/budget")):
            assert response.status_code == 401, what
            assert response.headers["dpserve-problem"] == "unauthenticated", what
    problem(service.http(token(provider, exp=int(time.time()) - 1)).post("/predict", json=BODY), 401, "key-expired")
    assert service.spent() == 0


def test_without_settings_no_token_is_taken(start, head, provider):
    service = start(head)
    service.add_client()
    problem(service.http(token(provider)).get("/budget"), 401, "unauthenticated")


def test_the_claim_that_names_the_client_is_the_owners_choice(start, head, provider, keys):
    settings = TokenSettings(ISSUER, AUDIENCE, str(keys), claim="azp")
    service = start(head, front=Front(tokens=asyncio.run(Tokens.open(settings))))
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
                await tokens.client(token(newer, kid="two"))
        assert len(asked) == 1
        monkeypatch.setattr("service.http.tokens._SECONDS_BETWEEN_LOOKS", 0.0)
        assert await tokens.client(token(newer, kid="two")) == "alice"
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
