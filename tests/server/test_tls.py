"""The API beyond loopback: under TLS, or not at all."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from headgate.cli import run_command
from headgate.errors import InputError
from headgate.server.app import app_of, listen, served
from headgate.server.client import Access, Client
from headgate.server.home import Home
from headgate.server.listening import Tls, check_listening
from headgate.server.tenants import Tenant
from tests.server.conftest import Bench


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    """A certificate for 127.0.0.1 that nobody has signed but its owner."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    found = Tls(tmp_path / "cert.pem", tmp_path / "key.pem")
    command = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -subj /CN=headgate"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(found.key), "-out", str(found.certificate)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return found


@pytest.fixture
def home(bench: Bench, tls: Tls, tmp_path: Path) -> Iterator[Home]:
    """A service that answers under TLS."""
    home = Home(tmp_path)
    bench.service.tenants.put(Tenant("shop"))
    with (
        closing(listen()) as listening,
        served(app_of(bench.service, home.new_token()), listening, tls=tls) as url,
        home.announced(url, tls.certificate),
    ):
        yield home


def url_of(home: Home) -> str:
    address = home.read_address()
    assert address is not None
    return address.url


def test_client_of_the_home_trusts_the_certificate_of_its_service(bench, home):
    bench.submit()
    assert url_of(home).startswith("https://127.0.0.1:")
    assert list(Client(home, Access()).status().jobs) == ["orders"]


def test_tenant_elsewhere_needs_address_token_and_certificate(bench, home, tls, tmp_path, monkeypatch, capsys):
    bench.submit(tenant="shop", name="mine")
    bench.submit(name="other")
    token = tmp_path / "shop.token"
    token.write_text(bench.service.tenants.new_token("shop", "viewer", 1)[0] + "\n")
    arguments = ["status", "--home", str(tmp_path / "nowhere"), "--server", url_of(home), "--token-file", str(token)]
    assert run_command(arguments) == 2
    assert "HEADGATE_CERTIFICATE names the file with the one to trust" in capsys.readouterr().err
    monkeypatch.setenv("HEADGATE_CERTIFICATE", str(tls.certificate))
    run_command(arguments)
    shown = capsys.readouterr().out
    assert "mine" in shown
    assert "other" not in shown
    assert run_command(["pause", "mine", *arguments[1:]]) == 2
    assert "needs the role editor; this token has the role viewer" in capsys.readouterr().err


def test_plain_http_is_not_answered_under_tls(home):
    with pytest.raises(httpx.HTTPError):
        httpx.get(url_of(home).replace("https", "http") + "/health", trust_env=False, timeout=10)


def test_cookie_is_sent_under_tls_only_and_is_no_business_of_scripts(home, tls):
    trust = ssl.create_default_context(cafile=str(tls.certificate))
    with httpx.Client(base_url=url_of(home), verify=trust, trust_env=False) as client:
        answer = client.post("/api/v1/session", json={"secret": home.read_token()})
        cookie = answer.headers["set-cookie"]
        assert "Secure" in cookie and "HttpOnly" in cookie and "SameSite=strict" in cookie
        policy = client.get("/").headers["content-security-policy"]
        assert "script-src 'self'" in policy and "unsafe" not in policy
        assert client.post("/api/v1/login-links").status_code == 403, "without X-CSRF-Token"
        assert client.get("/status").status_code == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.7", "::"])
def test_plain_http_beyond_loopback_is_refused_before_anything_starts(address, tmp_path, capsys):
    assert run_command(["run", "--listen", address, "--home", str(tmp_path / "home")]) == 2
    assert "give --tls-cert FILE and --tls-key FILE, or listen on 127.0.0.1" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_certificate_that_cannot_be_used_is_told(tls, tmp_path):
    with pytest.raises(InputError, match="cannot be used: No such file"):
        check_listening("0.0.0.0", Tls(tmp_path / "none.pem", tls.key))
    tls.certificate.write_text("nothing")
    with pytest.raises(InputError, match="cannot be used"):
        check_listening("0.0.0.0", tls)


def test_certificate_without_key_is_told(capsys, tmp_path):
    assert run_command(["run", "--tls-cert", "cert.pem", "--home", str(tmp_path)]) == 2
    assert "--tls-cert and --tls-key belong together" in capsys.readouterr().err
