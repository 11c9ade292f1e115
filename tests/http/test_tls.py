"""TLS: what the defaults offer and refuse, certificates, their reload, and clients of both kinds.

The first half is what `testssl` checks, with the standard library. The server is attacked with a
client that accepts everything (`SECLEVEL=0`), so that a refusal is the server's own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect as connect_websocket

from dragoman.http.network import tls
from dragoman.runtime import StartupError
from dragoman.testing import Reply, ScriptedEngine
from tests.support.certificates import Authority, CertificateFiles
from tests.support.command_line import run_command
from tests.support.logs import collect_logs
from tests.support.serving import (
    RunningServer,
    make_chat,
    make_scripted_app,
    parse_events,
    poll_until,
    serve_scripted,
)

GET = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
CHAT = "/v1/chat/completions"
# Ciphers of TLS 1.2 and before that nobody should offer, as OpenSSL names their kinds.
WEAK_CIPHERS = (
    "RC4",
    "3DES",
    "eNULL",
    "aNULL",
    "EXPORT",
    "LOW",
    "MD5",
    "PSK",
    "SRP",
    "CAMELLIA",
    "kRSA",  # no forward secrecy
    "DHE",
    "SHA1",  # with CBC
    "SHA256",  # likewise
    "SHA384",
    "AESCCM",
    "ARIA",
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> CertificateFiles:
    return authority.issue("server")


def make_options(files: CertificateFiles, **options: Any) -> dict[str, Any]:
    return {"tls_cert": str(files.cert), "tls_key": str(files.key), **options}


@pytest.fixture(scope="module")
def server(files: CertificateFiles) -> Iterator[RunningServer]:
    with serve_scripted(ScriptedEngine("Hello there!"), **make_options(files)) as running:
        yield running


def trust(authority: Authority, client: CertificateFiles | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    return context


def accept_anything(ciphers: str = "ALL:@SECLEVEL=0") -> ssl.SSLContext:
    """A client that would speak every protocol and cipher."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers(ciphers)
    return context


@contextmanager
def shake_hands(server: RunningServer, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as wrapped,
    ):
        yield wrapped


# What testssl checks


@pytest.mark.parametrize("version", ["SSLv3", "TLSv1", "TLSv1_1"])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_protocols_are_refused(server: RunningServer, version: str) -> None:
    context = accept_anything()
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion[version]
    with pytest.raises((ssl.SSLError, OSError)), shake_hands(server, context):
        pass
    # not only the library of this client: a hello of that version, byte by byte
    code = {"SSLv3": b"\x03\x00", "TLSv1": b"\x03\x01", "TLSv1_1": b"\x03\x02"}[version]
    suites = b"\x00\x2f\x00\x35\xc0\x13\xc0\x14\x00\x0a"
    answer = exchange_raw(server, make_hello(code, suites))
    assert answer[:1] in (b"", b"\x15")  # closed, or an alert; never a server hello


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_new_protocols_are_offered(server: RunningServer, version: str) -> None:
    context = accept_anything()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with shake_hands(server, context) as connection:
        assert connection.version() == version.replace("_", ".")
        assert connection.compression() is None
        connection.sendall(GET)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("ciphers", WEAK_CIPHERS)
def test_weak_ciphers_are_refused(server: RunningServer, ciphers: str) -> None:
    try:
        context = accept_anything(f"{ciphers}:-ECDHE+AESGCM:-ECDHE+CHACHA20:@SECLEVEL=0")
    except ssl.SSLError:
        return  # the library of both sides does not have such ciphers at all
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, OSError)), shake_hands(server, context):
        pass


def test_all_ciphers_have_forward_secrecy_and_authenticated_encryption(
    server: RunningServer,
) -> None:
    accepted = []
    for cipher in accept_anything().get_ciphers():
        if cipher["protocol"] == "TLSv1.3":
            continue
        single = accept_anything(f"{cipher['name']}:@SECLEVEL=0")
        single.maximum_version = ssl.TLSVersion.TLSv1_2
        try:
            with shake_hands(server, single) as connection:
                negotiated = connection.cipher()
                assert negotiated is not None
                accepted.append(negotiated[0])
        except OSError:
            continue
    assert accepted
    for name in accepted:
        assert name.startswith("ECDHE-"), accepted
        assert "GCM" in name or "CHACHA20" in name, accepted


def test_server_chooses_the_cipher_and_the_protocol(server: RunningServer) -> None:
    context = accept_anything("ECDHE+CHACHA20:ECDHE+AESGCM")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2", "http/1.1"])
    with shake_hands(server, context) as connection:
        negotiated = connection.cipher()
        assert negotiated is not None
        assert "GCM" in negotiated[0]  # not what this client prefers
        assert connection.selected_alpn_protocol() == "http/1.1"


def make_hello(version: bytes, suites: bytes, extensions: bytes = b"") -> bytes:
    """A client hello, byte by byte, which offers compression, too."""
    body = version + bytes(32) + b"\x00" + len(suites).to_bytes(2, "big") + suites + b"\x02\x01\x00"
    if extensions:
        body += len(extensions).to_bytes(2, "big") + extensions
    hello = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(hello).to_bytes(2, "big") + hello


def exchange_raw(server: RunningServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(data)
        return connection.recv(4096)


def test_renegotiation_is_secure_and_compression_off(
    server: RunningServer, files: CertificateFiles
) -> None:
    suites = b"\xc0\x2b\xc0\x2c\x00\xff"  # the last one asks for secure renegotiation
    groups = b"\x00\x0a\x00\x04\x00\x02\x00\x17"
    signatures = b"\x00\x0d\x00\x04\x00\x02\x04\x03"
    answer = exchange_raw(server, make_hello(b"\x03\x03", suites, groups + signatures))
    assert answer[:1] == b"\x16"  # a server hello, of TLS 1.2
    assert answer[9:11] == b"\x03\x03"
    end = 44 + answer[43]  # of the session id
    assert answer[end + 2] == 0  # no compression
    assert b"\xff\x01\x00\x01\x00" in answer[end:]  # secure renegotiation
    certificate = tls.make_certificate(make_scripted_app(**make_options(files)).settings)
    assert certificate is not None
    assert certificate.context.options & ssl.OP_NO_RENEGOTIATION


def test_chain_is_sent_and_verified(server: RunningServer, authority: Authority) -> None:
    with shake_hands(server, trust(authority)) as connection:  # trusts the root alone
        certificate = connection.getpeercert()
        assert certificate is not None
        assert ("DNS", "localhost") in certificate["subjectAltName"]
    stranger = ssl.create_default_context()
    with pytest.raises(ssl.SSLCertVerificationError), shake_hands(server, stranger):
        pass


# Requests


def test_url_says_https(server: RunningServer) -> None:
    assert server.url.startswith("https://")


def test_answers_streams_and_websockets_over_tls(
    server: RunningServer, authority: Authority
) -> None:
    context = trust(authority)
    with httpx.Client(base_url=server.url, verify=context) as client:
        whole = client.post(CHAT, json=make_chat()).json()
        assert whole["choices"][0]["message"]["content"] == "Hello there!"
        assert parse_events(client.post(CHAT, json=make_chat(stream=True)))
        large = client.post(CHAT, json=make_chat("x" * 500_000))
        assert large.status_code == 200
    url = f"{server.url.replace('https', 'wss')}/v1/responses"
    with connect_websocket(url, ssl=context) as websocket:
        websocket.send(json.dumps({"type": "response.create", "model": "scripted", "input": "hi"}))
        for message in websocket:
            event = json.loads(message)
            if event["type"] == "response.completed":
                break
        assert event["response"]["output"]


def test_disconnect_over_tls_stops_the_engine(
    files: CertificateFiles, authority: Authority
) -> None:
    engine = ScriptedEngine(Reply("never done", hang_at=0))
    with serve_scripted(engine, **make_options(files)) as server:
        for streamed in (True, False):
            body = json.dumps(make_chat(stream=streamed)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            with shake_hands(server, trust(authority)) as connection:
                connection.sendall(head.encode() + body)
                poll_until(lambda: engine.active == 1)
            poll_until(lambda: engine.active == 0)
        assert engine.cancelled == 2


def test_refused_body_over_tls_gets_its_answer(
    files: CertificateFiles, authority: Authority
) -> None:
    with serve_scripted("x", body_limit=1000, **make_options(files)) as server:
        with httpx.Client(base_url=server.url, verify=trust(authority)) as client:
            assert client.post(CHAT, json=make_chat("x" * 2000)).status_code == 413
            assert client.post(CHAT, json=make_chat("x" * 200_000)).status_code == 413
        poll_until(lambda: not server._server.server_state.connections)


# Clients that do not speak TLS, or speak it slowly


def test_plain_http_is_told_to_use_https(server: RunningServer) -> None:
    response = httpx.get(f"{server.url.replace('https', 'http')}/health/live")
    assert response.status_code == 400
    assert "https://" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "data",
    [b"\x00", b"SSH-2.0-x\r\n", b"\x16\x03\x01\xff\xff", b"\x16" * 100, b"\x80\x2e\x01\x00\x02"],
    ids=["null", "ssh", "huge record", "noise", "SSLv2"],
)
def test_what_is_no_handshake_is_closed(files: CertificateFiles, data: bytes) -> None:
    with (
        collect_logs("json") as logs,
        serve_scripted("x", receive_timeout=0.3, **make_options(files)) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection,
    ):
        connection.sendall(data)
        answer = b""
        with suppress(ConnectionError):
            while part := connection.recv(4096):
                answer += part
        assert answer[:1] in (b"", b"\x15") or answer.startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in "\n".join(logs.lines)


def test_slow_handshakes_are_closed_and_delay_nobody(
    files: CertificateFiles, authority: Authority
) -> None:
    with serve_scripted("x", receive_timeout=0.5, **make_options(files)) as server:
        silent = [
            socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(200)
        ]
        for connection in silent[::2]:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01")  # half of a hello
        verify = trust(authority)
        assert httpx.get(f"{server.url}/health/live", verify=verify).status_code == 200
        for connection in silent:
            with closing(connection), suppress(ConnectionError):
                assert not connection.recv(100)
        assert httpx.get(f"{server.url}/health/live", verify=verify).status_code == 200


# Client certificates


def test_client_certificate_is_required(files: CertificateFiles, authority: Authority) -> None:
    stranger = Authority(files.cert.parent, "stranger").issue("eve")
    client = authority.issue("alice")
    options = make_options(files, tls_client_ca=str(authority.file))
    with serve_scripted("x", **options) as server:
        url = f"{server.url}{CHAT}"
        accepted = httpx.post(url, json=make_chat(), verify=trust(authority, client))
        assert accepted.status_code == 200
        for other in (None, stranger):
            with pytest.raises(httpx.TransportError):
                httpx.post(url, json=make_chat(), verify=trust(authority, other))


# Files


def copy_files(files: CertificateFiles, directory: Path) -> CertificateFiles:
    return CertificateFiles(*(Path(shutil.copy(path, directory)) for path in files))


def read_serial(server: RunningServer) -> str:
    with shake_hands(server, accept_anything("DEFAULT")) as connection:
        certificate = connection.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate.hex()


@pytest.mark.slow
def test_changed_certificate_is_served_without_a_restart(
    files: CertificateFiles, authority: Authority, tmp_path: Path
) -> None:
    served = copy_files(files, tmp_path)
    engine = ScriptedEngine(Reply("one two three"), pace=None)
    with (
        serve_scripted(engine, **make_options(served)) as server,
        httpx.Client(base_url=server.url, verify=trust(authority)) as client,
        client.stream("POST", CHAT, json=make_chat(stream=True)) as response,
    ):
        poll_until(lambda: engine.active == 1)
        before = read_serial(server)
        renewed = authority.issue("renewed")
        with collect_logs("text") as logs:
            shutil.copy(renewed.cert, served.cert)  # for a moment, the key is another one's
            logs.wait_for("keeping the previous certificate")
            assert read_serial(server) == before
            shutil.copy(renewed.key, served.key)
            logs.wait_for("loaded the certificate")
        assert read_serial(server) != before
        for _ in range(5):  # the stream that was open goes on
            server.loop.call_soon_threadsafe(engine.tick)
        assert list(response.iter_lines())[-2] == "data: [DONE]"


def test_reload_reads_the_files_again(files: CertificateFiles, tmp_path: Path) -> None:
    served = copy_files(files, tmp_path)
    app = make_scripted_app(**make_options(served))
    certificate = tls.make_certificate(app.settings)
    assert certificate is not None
    before = certificate.context
    certificate.refresh()
    assert certificate.context is before
    certificate.refresh(is_forced=True)
    assert certificate.context is not before


def break_files(kind: str, authority: Authority, directory: Path) -> dict[str, str]:
    """Make settings with one mistake."""
    files = authority.issue("mistake", password="secret" if kind == "encrypted" else "")
    good = copy_files(files, directory)
    text = directory / "text.pem"
    text.write_text("no certificate")
    cert, key = str(good.cert), str(good.key)
    return {
        "missing": {"tls_cert": str(directory / "absent.pem"), "tls_key": key},
        "missing key": {"tls_cert": cert, "tls_key": str(directory / "absent.pem")},
        "directory": {"tls_cert": str(directory), "tls_key": key},
        "no certificate": {"tls_cert": str(text), "tls_key": key},
        "no key": {"tls_cert": cert, "tls_key": str(text)},
        "key not in the certificate's file": {"tls_cert": cert},
        "mismatch": {"tls_cert": cert, "tls_key": str(authority.issue("other").key)},
        "encrypted": {"tls_cert": cert, "tls_key": key},
        "key alone": {"tls_key": key},
        "client CA alone": {"tls_client_ca": cert},
        "no client CA": {"tls_cert": cert, "tls_key": key, "tls_client_ca": str(text)},
    }[kind]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", r"--tls-cert: cannot read '.*absent.pem': No such file or directory\."),
        ("missing key", r"--tls-key: cannot read '.*absent.pem': No such file or directory\."),
        ("directory", r"--tls-cert: cannot read '.*': Is a directory\."),
        ("no certificate", r"--tls-cert: '.*text.pem' contains no PEM certificate\."),
        ("no key", r"--tls-key: '.*text.pem' contains no PEM private key\."),
        ("key not in the certificate's file", r"--tls-key: '.*' contains no PEM private key\."),
        ("mismatch", r"--tls-key: the key in '.*' does not belong to the certificate in '.*'\."),
        ("encrypted", r"--tls-key: the key in '.*' is encrypted\. Decrypt it with `openssl pkey"),
        ("key alone", r"--tls-key needs a certificate: set --tls-cert\."),
        ("client CA alone", r"--tls-client-ca needs a certificate: set --tls-cert\."),
        ("no client CA", r"--tls-client-ca: '.*' contains no PEM certificate\."),
    ],
)
def test_mistakes_are_explained_at_start_up(
    authority: Authority, tmp_path: Path, kind: str, message: str
) -> None:
    app = make_scripted_app(**break_files(kind, authority, tmp_path))
    with pytest.raises(StartupError, match=message):
        tls.make_certificate(app.settings)


@pytest.mark.parametrize(
    ("days", "warning"),
    [(-1, "has expired"), (3.2, "expires in 3 days"), (90, None)],
)
def test_certificate_that_clients_will_not_accept_draws_a_warning(
    authority: Authority, days: float, warning: str | None
) -> None:
    files = authority.issue("dated", days=days)
    with collect_logs("text") as logs:
        tls.make_certificate(make_scripted_app(**make_options(files)).settings)
        if warning is not None:
            logs.wait_for(warning)
    assert (warning is None) == ("the certificate" not in "\n".join(logs.lines))


def test_key_may_be_in_the_file_of_the_certificate(files: CertificateFiles, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    assert tls.make_certificate(make_scripted_app(tls_cert=str(both)).settings) is not None


# Commands


def test_commands_use_https(
    server: RunningServer,
    authority: Authority,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trusted = ("--url", server.url, "--ca-file", str(authority.file))
    health = run_command(capsys, "health", *trusted)
    assert (health.code, health.out) == (0, "ready\n")
    assert "scripted" in run_command(capsys, "ps", *trusted).out
    with open(os.devnull, encoding="utf-8") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert "Hello there!" in run_command(capsys, "run", "scripted", "hi", *trusted).out
    untrusted = run_command(capsys, "health", "--url", server.url)
    assert untrusted.code == 1
    assert "is not trusted" in untrusted.err
    assert "--ca-file" in untrusted.err


def test_commands_know_the_certificate_of_the_server_of_this_machine(
    server: RunningServer,
    authority: Authority,
    files: CertificateFiles,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAGOMAN_PORT", str(server.port))
    monkeypatch.setenv("DRAGOMAN_TLS_CERT", str(files.cert))
    assert run_command(capsys, "health").out == "ready\n"
    monkeypatch.setenv("DRAGOMAN_TLS_CERT", str(authority.issue("another").cert))
    other = run_command(capsys, "health")
    assert other.code == 1
    assert "not that of --tls-cert" in other.err


def test_commands_show_a_client_certificate(
    files: CertificateFiles, authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    client = authority.issue("operator")
    with serve_scripted("x", **make_options(files, tls_client_ca=str(authority.file))) as server:
        command = ("health", "--url", server.url, "--ca-file", str(authority.file))
        own = ("--client-cert", str(client.cert), "--client-key", str(client.key))
        assert run_command(capsys, *command, *own).out == "ready\n"
        assert run_command(capsys, *command).code == 1
