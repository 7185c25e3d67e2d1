"""The certificate and the tokens of the guide, as its commands make them, with clients that check them."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from conftest import FEATURES, ROOT, Addresses, Lstm, serving
from playwright.sync_api import Browser, sync_playwright
from tritonclient.utils import InferenceServerException

both = pytest.mark.parametrize("module", [tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])


def guide() -> list[str]:
    """The commands after the words on certificate and tokens, each in a line."""
    text = (ROOT / "docs" / "deploy.md").read_text()
    block = re.search(r"certificate and tokens:\n\n```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    commands = block.group(1).replace("\\\n", " ").splitlines()
    assert [command.split()[0] for command in commands] == ["openssl", "openssl", "gatestream", "curl"]
    return commands


def run(command: str, folder: Path) -> str:
    ended = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guide")
    certificate, tokens, *_ = guide()
    run(certificate, folder)
    run(tokens, folder)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, folder: Path) -> Iterator[Addresses]:
    # The options of the guide; its ports may be in use.
    options = shlex.split(guide()[2])[3:]
    assert options[0] == "--http" and options[2] == "--grpc"
    with serving(repository, *options[4:], folder=folder) as addresses:
        yield addresses


def client(module: ModuleType, server: Addresses, folder: Path):  # type: ignore[no-untyped-def]
    certificate = str(folder / "certificate.pem")
    if module is tritonclient.http:
        address = server.http.replace("127.0.0.1", "localhost")
        return module.InferenceServerClient(address, ssl=True, ssl_options={"ca_certs": certificate})
    address = server.grpc.replace("127.0.0.1", "localhost")
    return module.InferenceServerClient(address, ssl=True, root_certificates=certificate)


def infer(module: ModuleType, triton, token: str, steps: np.ndarray, **options: object) -> np.ndarray:  # type: ignore[no-untyped-def]
    x = module.InferInput("input", steps.shape, "FP32")
    x.set_data_from_numpy(steps)
    headers = {"authorization": f"Bearer {token}"}
    return triton.infer("lstm", [x], headers=headers, **options).as_numpy("output")


@both
def test_clients_of_triton(module: ModuleType, server: Addresses, folder: Path, lstm: Lstm) -> None:
    token = (folder / "tokens").read_text().strip()
    triton = client(module, server, folder)
    assert triton.is_server_ready()
    steps = np.random.default_rng(1).normal(size=(1, 6, FEATURES)).astype(np.float32)
    np.testing.assert_allclose(infer(module, triton, token, steps), lstm.run(steps), rtol=1e-5, atol=1e-6)
    with pytest.raises(InferenceServerException, match="token is unknown"):
        infer(module, triton, token[1:], steps)


def test_curl_as_the_guide_has_it(server: Addresses, folder: Path) -> None:
    command = guide()[3]
    assert ":8000/" in command
    port = server.http.rpartition(":")[2]
    assert "sequence" in run(command.replace(":8000/", f":{port}/"), folder)


@pytest.fixture(scope="module")
def chromium(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that trusts the certificate, as one does after its import."""
    home = tmp_path_factory.mktemp("home")
    database = home / ".pki" / "nssdb"
    database.mkdir(parents=True)
    for arguments in (["-N", "--empty-password"], ["-A", "-n", "guide", "-t", "C,,", "-i", "certificate.pem"]):
        subprocess.run(["certutil", "-d", f"sql:{database}", *arguments], cwd=folder, check=True)
    with sync_playwright() as playwright:
        environment = {**os.environ, "HOME": str(home)}
        options = {"executable_path": "/usr/bin/chromium", "args": ["--no-sandbox"]}
        browser = playwright.chromium.launch(env=environment, **options)
        yield browser
        browser.close()


def test_chromium(chromium: Browser, server: Addresses, folder: Path) -> None:
    page = chromium.new_page()
    page.goto(f"https://{server.http.replace('127.0.0.1', 'localhost')}/")
    page.fill("#token", (folder / "tokens").read_text().strip())
    page.click("text=Show")
    page.wait_for_selector("#models tr")


@both
def test_a_hangup_reads_the_files_again(
    module: ModuleType, repository: Path, tmp_path: Path, lstm: Lstm
) -> None:
    certificate, tokens, serve, _ = guide()
    run(certificate, tmp_path)
    run(tokens, tmp_path)
    first = (tmp_path / "tokens").read_text().strip()
    steps = np.random.default_rng(1).normal(size=(1, 3, FEATURES)).astype(np.float32)
    with serving(repository, *shlex.split(serve)[7:], folder=tmp_path) as server:
        triton = client(module, server, tmp_path)
        outputs = [infer(module, triton, first, steps[:, :1], sequence_id=1, sequence_start=True)]
        # A file that is wrong changes nothing.
        (tmp_path / "key.pem").write_text("")
        os.kill(server.pid, signal.SIGHUP)
        time.sleep(0.2)
        # The old certificate is still that of a new connection.
        new = client(module, server, tmp_path)
        outputs.append(infer(module, new, first, steps[:, 1:2], sequence_id=1))
        run(certificate, tmp_path)
        (tmp_path / "tokens").write_text(f"second\n{first}\n")
        os.kill(server.pid, signal.SIGHUP)
        end = time.monotonic() + 60
        while True:
            try:
                # It trusts only the new certificate, and has only the new token.
                infer(module, client(module, server, tmp_path), "second", steps)
                break
            except (InferenceServerException, OSError):
                assert time.monotonic() < end
                time.sleep(0.1)
        # The connection with the old certificate, and its sequence.
        outputs.append(infer(module, triton, first, steps[:, 2:], sequence_id=1, sequence_end=True))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), lstm.run(steps), rtol=1e-5, atol=1e-6)
