"""Models, plans, their files and pickles."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import weights

import gatestream


def test_properties(model: gatestream.Model) -> None:
    assert (model.input_size, model.output_size, model.hidden_sizes) == (12, 24, [24])
    assert (model.bidirectional, model.batch_first, model.precision) == (False, False, "f32")
    assert model.weight_bytes >= 4 * (96 * 12 + 96 * 24)
    assert "lstm 24" in repr(model)


def test_files_and_pickles_keep_models_and_plans(model: gatestream.Model, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    model.save(path)
    assert gatestream.Model.open(path) == model
    assert pickle.loads(pickle.dumps(model)) == model
    assert gatestream.Model.open(path, precision="int8") == model.in_precision("int8") != model

    plan = gatestream.Plan.estimate(model, 2, 30, threads=1)
    plan.save(tmp_path / "model.plan")
    assert gatestream.Plan.load(tmp_path / "model.plan", model) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert (plan.threads, plan.sizes, plan.is_tuned) == (1, [(2, 30)], False)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(gatestream.ModelError, match="no such|No such"):
        gatestream.Model.open(tmp_path / "absent.onnx")
    (tmp_path / "noise.safetensors").write_bytes(b"noise")
    with pytest.raises(gatestream.ModelError):
        gatestream.Model.open(tmp_path / "noise.safetensors")
    with pytest.raises(ValueError, match="weight_hh"):
        gatestream.Model.from_state_dict({"weight_ih_l0": np.zeros((16, 4))})
    with pytest.raises(gatestream.InputError, match="lstm, gru"):
        gatestream.Model.from_state_dict(weights("gru", 4, 8), cell="transformer")


def test_a_plan_of_another_model_is_refused(model: gatestream.Model, tmp_path: Path) -> None:
    other = gatestream.Model.from_state_dict(weights("gru", 4, 8))
    gatestream.Plan.estimate(other, 1, 1).save(tmp_path / "other.plan")
    with pytest.raises(gatestream.PlanError):
        gatestream.Plan.load(tmp_path / "other.plan", model)
    assert not gatestream.Plan.load_or_estimate(tmp_path / "other.plan", model).is_tuned
    with pytest.raises(gatestream.PlanError):
        gatestream.Session(model, gatestream.Plan.estimate(other, 1, 1))


def test_tuning_reports_progress_and_stops_when_told(model: gatestream.Model) -> None:
    seen: list[float] = []

    def progress(fraction: float, stage: str) -> bool:
        assert 0 <= fraction <= 1 and stage
        seen.append(fraction)
        return len(seen) < 2

    plan = gatestream.tune(model, [(1, 20)], seconds=30, threads=1, progress=progress)
    assert plan.sizes == [(1, 20)] and len(seen) >= 2

    def broken(fraction: float, stage: str) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        gatestream.tune(model, [(1, 20)], seconds=30, threads=1, progress=broken)
    with pytest.raises(gatestream.InputError):
        gatestream.tune(model, [], seconds=0.1)


def test_ctrl_c_ends_a_tuning() -> None:
    program = """
import os, signal, threading, gatestream, numpy as np
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
model = gatestream.Model.from_state_dict({"weight_ih_l0": np.zeros((1024, 8)), "weight_hh_l0": np.zeros((1024, 256))})
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    gatestream.tune(model, [(1, 50), (1, 60), (1, 70)], seconds=600, effort="exhaustive")
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert ended.stdout == "interrupted\n", ended.stderr


def test_the_program_comes_with_the_package() -> None:
    ended = subprocess.run([sys.executable, "-m", "gatestream", "machine"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and "core" in ended.stdout, ended.stderr
    refused = subprocess.run([sys.executable, "-m", "gatestream", "run"], capture_output=True, timeout=60)
    assert refused.returncode == 2
