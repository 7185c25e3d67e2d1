"""Load generators of others, unmodified: perf_analyzer and MLPerf's LoadGen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlperf_loadgen as loadgen
import numpy as np
import pytest
import tritonclient.grpc
from conftest import FEATURES, Addresses
from tritonclient.grpc import InferenceServerClient, InferInput

PERF_ANALYZER = Path(sys.prefix) / "bin" / "perf_analyzer"
SITE = Path(tritonclient.grpc.__file__).parents[2]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("lstm", ["-i", "http", "--concurrency-range", "3"]),
        ("lstm", ["-i", "grpc", "--request-rate-range", "50", "--request-distribution", "poisson"]),
        ("frames", ["-i", "grpc", "--streaming", "--concurrency-range", "3", "--sequence-length", "5"]),
    ],
    ids=["concurrency", "poisson", "sequences"],
)
def test_perf_analyzer(server: Addresses, model: str, options: list[str]) -> None:
    address = server.http if "http" in options else server.grpc
    command = [str(PERF_ANALYZER), "-m", model, "-u", address, "--shape", f"input:1,{FEATURES}", *options]
    # Short windows, all of them stable: the figures are of no interest here.
    command += ["-p", "300", "-r", "10", "-s", "100000"]
    environment = {"LD_LIBRARY_PATH": str(SITE / "nvidia" / "cuda_runtime" / "lib")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert "Throughput:" in ended.stdout and "error" not in ended.stdout.lower(), ended.stdout + ended.stderr


def test_loadgen_in_the_server_scenario(server: Addresses, tmp_path: Path) -> None:
    client = InferenceServerClient(server.grpc)
    random = np.random.default_rng(1)
    samples = [random.normal(size=(1, steps, FEATURES)).astype(np.float32) for steps in range(1, 65)]
    errors = []

    def issue(queries: list[loadgen.QuerySample]) -> None:
        for query in queries:
            x = samples[query.index]
            given = InferInput("input", x.shape, "FP32")
            given.set_data_from_numpy(x)

            def complete(result, error, identifier=query.id) -> None:  # type: ignore[no-untyped-def]
                if error is not None:
                    errors.append(error)
                loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(identifier, 0, 0)])

            client.async_infer("lstm", [given], complete)

    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = 50
    settings.server_target_latency_ns = 1_000_000_000
    settings.min_duration_ms = 1000
    settings.min_query_count = 50
    logs = loadgen.LogSettings()
    logs.log_output.outdir = str(tmp_path)
    under_test = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(len(samples), len(samples), lambda _: None, lambda _: None)
    loadgen.StartTestWithLogSettings(under_test, library, settings, logs)
    assert not errors
    summary = (tmp_path / "mlperf_log_summary.txt").read_text()
    assert "Completed samples per second" in summary, summary
