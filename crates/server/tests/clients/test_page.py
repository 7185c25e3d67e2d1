"""The status page in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
from conftest import FEATURES, Addresses, serving
from playwright.sync_api import Page, expect, sync_playwright


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with sync_playwright() as playwright:
        # As root, as in containers, Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)
        yield page
        browser.close()


def infer(server: Addresses, model: str, **options: object) -> None:
    client = tritonclient.http.InferenceServerClient(server.http)
    x = tritonclient.http.InferInput("input", [1, 2, FEATURES], "FP32")
    x.set_data_from_numpy(np.zeros((1, 2, FEATURES), np.float32))
    client.infer(model, [x], **options)


def test_it_shows_models_load_and_open_sequences(page: Page, server: Addresses) -> None:
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"http://{server.http}/")
    expect(page.locator("#state")).to_contain_text("ready")
    expect(page.locator("#workers tr").first).to_contain_text("ebatch")
    row = page.locator("#models tr", has_text="frames")
    expect(row.locator("td").nth(8)).to_have_text("0")

    infer(server, "frames", sequence_id=1, sequence_start=True)
    expect(row.locator("td").nth(8)).to_have_text("1")
    infer(server, "frames", sequence_id=1, sequence_end=True)
    expect(row.locator("td").nth(8)).to_have_text("0")
    # A chart for each model with requests, and a line in it.
    chart = page.locator("#charts figure", has_text="frames 1, requests/s")
    expect(chart).to_have_count(1)
    assert len((chart.locator("polyline").get_attribute("points") or "").split()) >= 1
    assert not errors
    # Nothing comes from elsewhere.
    assert asked and all(url.startswith(f"http://{server.http}/") for url in asked), asked


def test_it_asks_for_a_token_and_says_when_the_server_has_gone(page: Page, repository: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-secret\n")
    with serving(repository, "--tokens", str(tokens)) as secret:
        page.goto(f"http://{secret.http}/")
        expect(page.locator("#login")).to_be_visible()
        expect(page.locator("#models tr")).to_have_count(0)
        page.fill("#token", "a-secret")
        page.click("text=Show")
        expect(page.locator("#login")).to_be_hidden()
        expect(page.locator("#models tr")).to_have_count(3)
    expect(page.locator("#state")).to_have_text("the server does not answer")


def test_it_shows_models_that_failed(page: Page, repository: Path, tmp_path: Path) -> None:
    for name in ("lstm", "broken"):
        (tmp_path / name).mkdir()
    (tmp_path / "lstm" / "1").symlink_to(repository / "lstm" / "1")
    (tmp_path / "broken" / "1").mkdir()
    (tmp_path / "broken" / "1" / "model.safetensors").write_text("no model")
    with serving(tmp_path) as server:
        page.goto(f"http://{server.http}/")
        expect(page.locator("#models tr")).to_have_count(1)
        expect(page.locator("#failures tr", has_text="broken")).to_have_count(1)
        expect(page.locator("#failed")).to_be_visible()
