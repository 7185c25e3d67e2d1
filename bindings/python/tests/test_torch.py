"""gatestream.torch against PyTorch's own layers."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.fx  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence  # noqa: E402

import gatestream  # noqa: E402
import gatestream.torch as gt  # noqa: E402
from gatestream.torch import _operators  # noqa: E402

LAYERS = [
    (nn.LSTM, {}),
    (nn.LSTM, {"num_layers": 3, "bidirectional": True, "batch_first": True, "dropout": 0.5}),
    (nn.LSTM, {"proj_size": 5, "num_layers": 2, "bidirectional": True}),
    (nn.LSTM, {"bias": False}),
    (nn.GRU, {"num_layers": 2}),
    (nn.GRU, {"bidirectional": True, "bias": False, "batch_first": True}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu", "bidirectional": True, "num_layers": 2}),
]
each_layer = pytest.mark.parametrize(("kind", "options"), LAYERS)


def pair(kind: type, options: dict, seed: int = 0) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    layer = kind(8, 16, **options).eval()
    replaced = gt.optimize(copy.deepcopy(layer))
    assert isinstance(replaced, gt.Recurrent)
    return layer, replaced


def same(ours: Any, theirs: Any) -> None:
    """Equal structure and values within rounding."""
    if isinstance(theirs, PackedSequence):
        assert isinstance(ours, PackedSequence)
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)
    elif theirs is None:
        assert ours is None
    else:
        assert type(ours) is type(theirs) and len(ours) == len(theirs)
        for a, b in zip(ours, theirs):
            same(a, b)


@each_layer
def test_sequences_and_states(kind: type, options: dict) -> None:
    layer, ours = pair(kind, options)
    with torch.no_grad():
        for shape in ((7, 3, 8), (1, 1, 8), (4, 8), (5, 3, 8)):
            x = torch.randn(shape)
            y, states = layer(x)
            same(ours(x), (y, states))
            same(ours(x, states), layer(x, states))
        # Not contiguous.
        x = torch.randn(8, 5, 3).permute(1, 2, 0)
        same(ours(x), layer(x))


@each_layer
def test_packed_sequences(kind: type, options: dict) -> None:
    layer, ours = pair(kind, options)
    with torch.no_grad():
        ordered = pack_sequence([torch.randn(n, 8) for n in (6, 4, 4, 1)])
        mixed = pack_padded_sequence(torch.randn(7, 4, 8), torch.tensor([2, 7, 1, 5]), enforce_sorted=False)
        for packed in (ordered, mixed):
            y, states = layer(packed)
            same(ours(packed), (y, states))
            same(ours(packed, states), layer(packed, states))


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_in_a_loop(kind: type, bias: bool) -> None:
    layer = kind(8, 16, bias=bias)
    ours = gt.optimize(copy.deepcopy(layer))
    assert isinstance(ours, gt.Cell)
    with torch.no_grad():
        for shape in ((3, 8), (8,)):
            mine = theirs = None
            for x in torch.randn(6, *shape):
                mine, theirs = ours(x, mine), layer(x, theirs)
                same(mine, theirs)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_steps_of_cells_after_the_first(kind: type) -> None:
    layer = kind(8, 16)
    ours = gt.optimize(copy.deepcopy(layer))

    def states(make: Any, *shape: int) -> Any:
        return (make(*shape), make(*shape)) if kind is nn.LSTMCell else make(*shape)

    def equal(*arguments: Any) -> None:
        same(ours(*arguments), layer(*arguments))

    with torch.no_grad():
        equal(torch.randn(3, 8))
        path = ours.__dict__["_fast_path"]
        for shape in ((3,), (1,), ()):
            equal(torch.randn(*shape, 8))
            equal(torch.randn(*shape, 8), states(torch.randn, *shape, 16))
        # Not as they are in memory.
        transposed = lambda rows, columns: torch.randn(columns, rows).t()  # noqa: E731
        equal(transposed(3, 8), states(torch.randn, 3, 16))
        equal(torch.randn(3, 8), states(transposed, 3, 16))
        assert ours.__dict__["_fast_path"] is path
        for wrong in ((torch.randn(3, 7),), (torch.randn(3, 8), states(torch.randn, 2, 16))):
            with pytest.raises(RuntimeError):
                ours(*wrong)
        layer.weight_hh.mul_(0.5)
        ours.weight_hh.mul_(0.5)
        equal(torch.randn(3, 8), states(torch.randn, 3, 16))
        assert ours.__dict__["_fast_path"] is not path
    results = ours(torch.randn(3, 8))
    assert (results[0] if kind is nn.LSTMCell else results).requires_grad


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.body = nn.ModuleDict({"lstm": nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True)})
        self.cell = nn.GRUCell(32, 12)
        self.out = nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.body["lstm"].flatten_parameters()
        y, _ = self.body["lstm"](self.conv(x.transpose(1, 2)).transpose(1, 2))
        h = torch.zeros(x.shape[0], 12)
        for step in range(3):
            h = self.cell(y[:, step], h)
        return self.out(h)


def test_models_compile_and_export_whole() -> None:
    torch.manual_seed(0)
    model = Tagger().eval()
    ours = gt.optimize(copy.deepcopy(model))
    assert list(ours.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        compiled = torch.compile(ours, fullgraph=True)
        for shape in ((2, 10, 8), (1, 7, 8), (2, 10, 8)):
            x = torch.randn(shape)
            same(compiled(x), model(x))
        steps = torch.export.Dim("steps", min=3, max=500)
        exported = torch.export.export(ours, (torch.randn(2, 10, 8),), dynamic_shapes={"x": {1: steps}})
        x = torch.randn(2, 21, 8)
        same(exported.module()(x), model(x))


def test_the_operators_are_well_formed() -> None:
    layer, ours = pair(nn.LSTM, {})
    weights = [weight.detach() for weight in ours._weights()]
    x, h, c = torch.randn(5, 2, 8), torch.randn(1, 2, 16), torch.randn(1, 2, 16)
    for states in ((None, None), (h, c)):
        torch.library.opcheck(_operators.recurrent, (x, *states, weights, "LSTM", 1, False, False))
    packed = pack_sequence([torch.randn(n, 8) for n in (4, 2)])
    torch.library.opcheck(_operators.recurrent_packed, (packed.data, packed.batch_sizes, h, c, weights, "LSTM", 1, False))


def test_gradients_come_from_the_original() -> None:
    layer, ours = pair(nn.LSTM, {"num_layers": 2, "dropout": 0.0})
    for module in (layer.train(), ours.train()):
        module(torch.ones(5, 2, 8))[0].sum().backward()
    for name, parameter in layer.named_parameters():
        same(dict(ours.named_parameters())[name].grad, parameter.grad)
    # The input's gradient, with frozen weights.
    frozen = gt.optimize(copy.deepcopy(layer), freeze=True)
    x = torch.randn(5, 2, 8, requires_grad=True)
    frozen(x)[0].sum().backward()
    assert x.grad is not None
    assert frozen(x.detach())[0].grad_fn is None


def test_other_types_run_the_original() -> None:
    layer, ours = pair(nn.GRU, {})
    x = torch.randn(4, 2, 8)
    with torch.no_grad():
        same(ours.double()(x.double()), layer.double()(x.double()))
        layer.float(), ours.float()
        same(ours(x), layer(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert ours(x)[0].dtype is layer(x)[0].dtype
        with pytest.raises(RuntimeError):
            ours(torch.randn(4, 2, 9))
        with pytest.raises(RuntimeError):
            ours(x, torch.zeros(1, 3, 16))


def test_changed_weights_are_packed_again() -> None:
    layer, ours = pair(nn.LSTM, {})
    x = torch.randn(4, 2, 8)
    with torch.inference_mode():
        same(ours(x), layer(x))
    with torch.no_grad():
        layer.weight_hh_l0.mul_(0.5)
        ours.weight_hh_l0.mul_(0.5)
        same(ours(x), layer(x))
        layer.weight_ih_l0 = nn.Parameter(torch.randn(64, 8))
        ours.weight_ih_l0 = nn.Parameter(layer.weight_ih_l0.clone())
        same(ours(x), layer(x))
        other = nn.LSTM(8, 16)
        ours.load_state_dict(other.state_dict())
        same(ours(x), other(x))
        ours.weight_hh_l0.data = ours.weight_hh_l0.data * 2
        other.weight_hh_l0.mul_(2)
        same(ours(x), other(x))
        # Not seen by PyTorch.
        ours.bias_ih_l0.data.numpy()[:] = 0
        other.bias_ih_l0.zero_()
        gt.repack()
        same(ours(x), other(x))
        same(copy.deepcopy(ours)(x), other(x))


def doubled(module: nn.Module, inputs: tuple, output: Any) -> Any:
    """A forward hook."""
    return output[0] * 2, output[1]


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(doubled)
    return layer


def overridden(layer: nn.Module) -> nn.Module:
    layer.forward = lambda x: (x, None)
    return layer


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "changed",
    [
        hooked,
        overridden,
        lambda layer: nn.utils.weight_norm(layer, "weight_hh_l0"),
        lambda layer: nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0"),
        lambda layer: prune.l1_unstructured(layer, "weight_ih_l0", 0.5),
    ],
)
def test_layers_that_compute_something_else_are_left_alone(changed: Any) -> None:
    layer = changed(nn.LSTM(4, 4))
    x = torch.randn(3, 2, 4)
    with torch.no_grad():
        expected = layer(x)[0]
        module = gt.optimize(nn.ModuleList([layer]))
        assert module[0] is layer
        assert torch.equal(module[0](x)[0], expected)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "changed",
    [
        lambda layer: nn.utils.weight_norm(layer, "weight_hh_l0"),
        lambda layer: nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0"),
        lambda layer: prune.l1_unstructured(layer, "weight_ih_l0", 0.5),
    ],
)
def test_weights_that_are_computed_after_all(changed: Any) -> None:
    layer, ours = pair(nn.LSTM, {})
    x = torch.randn(3, 2, 8)
    with torch.no_grad():
        same(ours(x), layer(x))
        changed(layer), changed(ours)
        same(ours(x), layer(x))
        assert list(ours.state_dict()) == list(layer.state_dict())
        same(copy.deepcopy(gt.restore(ours))(x), layer(x))


def test_layers_stay_those_of_pytorch_and_come_back() -> None:
    model = Tagger().eval()
    ours = copy.deepcopy(model)
    layers = [ours.body["lstm"], ours.cell]
    assert gt.optimize(ours, freeze=True) is ours and [ours.body["lstm"], ours.cell] == layers
    assert isinstance(layers[0], nn.LSTM) and isinstance(layers[0], gt.Recurrent)
    assert isinstance(layers[1], nn.GRUCell) and not isinstance(layers[1], nn.LSTMCell)
    assert not layers[0].weight_ih_l0.requires_grad
    calls = []
    layers[0].register_forward_hook(lambda *_: calls.append("called"))
    x = torch.randn(2, 10, 8)
    with torch.no_grad():
        same(ours(x), model(x))
        assert gt.restore(ours) is ours
        same(ours(x), model(x))
    assert len(calls) == 2
    assert type(layers[0]) is nn.LSTM and type(layers[1]) is nn.GRUCell
    assert vars(layers[0]).keys() == vars(model.body["lstm"]).keys()
    for ours_, theirs in zip(ours.parameters(), model.parameters()):
        assert torch.equal(ours_, theirs) and ours_.requires_grad == theirs.requires_grad


def test_copies_and_pickles_are_on_gatestream() -> None:
    _, ours = pair(nn.LSTM, {"num_layers": 2})
    cell = gt.optimize(nn.GRUCell(8, 16))
    with torch.no_grad():
        for layer, x in ((ours, torch.randn(4, 2, 8)), (cell, torch.randn(4, 8))):
            expected = layer(x), layer(x)
            for made in (copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))):
                assert type(made) is type(layer)
                same((made(x), made(x)), expected)


def traced(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.jit.trace(model, x)


def fixed(model: nn.Module, x: torch.Tensor) -> Any:
    return make_fx(model)(x)


def scripted(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.jit.script(model)


def symbolic(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.fx.symbolic_trace(model)


class Plain(nn.Module):
    """A model that all of PyTorch's tracers take."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(32, 12, batch_first=True)
        self.cell = nn.RNNCell(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, state = self.lstm(x)
        y, h = self.gru(y)
        return self.cell(y[:, 1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("made", [traced, fixed, scripted, symbolic])
def test_graphs_that_pytorch_records(made: Any) -> None:
    torch.manual_seed(0)
    model = Plain().eval()
    ours = gt.optimize(copy.deepcopy(model))
    with torch.no_grad():
        x = torch.randn(2, 5, 8)
        ours(x), ours(x)
        graph = made(ours, x)
        x = torch.randn(2, 5, 8)
        same(graph(x), model(x))
        same(ours(x), model(x))
    assert all(layer.on_gatestream for layer in gt.report(ours))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True])
def test_onnx_files_have_the_operators_of_the_original(dynamo: bool, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    model = Plain().eval()
    ours = gt.optimize(copy.deepcopy(model))
    x = torch.randn(2, 5, 8)
    kinds = []
    with torch.no_grad():
        ours(x), ours(x)
        for module in (model, ours):
            torch.onnx.export(module, (x,), tmp_path / "model.onnx", dynamo=dynamo)
            kinds.append([node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node])
    assert kinds[0] == kinds[1] and "LSTM" in kinds[1]


def test_tensors_that_stand_for_others() -> None:
    model = Plain().eval()
    ours = gt.optimize(copy.deepcopy(model))
    x = torch.randn(2, 5, 8)
    shapes = []
    with torch.no_grad():
        ours(x), ours(x)
        for module in (model, ours):
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                shapes.append(module(mode.from_tensor(x)).shape)
        # A gradient that goes forward.
        layer, ours_ = pair(nn.GRU, {})
        ours_(x), ours_(x)
        for of in (lambda module: torch.func.jvp(lambda x: module(x)[0], (x,), (x,)), dual):
            same(of(lambda x: ours_(x)), of(lambda x: layer(x)))
        # Other weights for a call.
        weights = {name: weight * 0.5 for name, weight in model.named_parameters()}
        same(torch.func.functional_call(ours, weights, (x,)), torch.func.functional_call(model, weights, (x,)))
    assert shapes[0] == shapes[1] == (2, 12)


def dual(module: Any) -> Any:
    x = torch.linspace(-1, 1, 80).reshape(2, 5, 8)
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(module(forward_ad.make_dual(x, x))[0]))


def test_calls_with_gradients_compile() -> None:
    torch.manual_seed(0)
    model = Plain()
    ours = gt.optimize(copy.deepcopy(model))
    x = torch.randn(2, 5, 8)
    torch.compile(ours, backend="aot_eager")(x).sum().backward()
    model(x).sum().backward()
    for mine, theirs in zip(ours.parameters(), model.parameters()):
        same(mine.grad, theirs.grad)


@pytest.mark.filterwarnings("ignore")
def test_quantized_layers_take_the_place_of_ours() -> None:
    model = Plain().eval()
    ours = gt.optimize(copy.deepcopy(model))
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        ours, model = (
            torch.ao.quantization.quantize_dynamic(module, {nn.LSTM}, dtype=torch.qint8)
            for module in (ours, model)
        )
        same(ours(x), model(x))
    assert type(ours.lstm) is type(model.lstm)
    assert [layer.on_gatestream for layer in gt.report(ours)] == [False, True, True]


@pytest.mark.parametrize(
    "batch_sizes",
    [
        [5, 5], [3, 2], [5], [1, 2, 3], [0], [], [-1, 3], [6, -1], [4, 0, 2], [3, 2, 1, 0],
        [2**62, 2], [3, 2**62, 3], [2**63 - 1, 2**63 - 1, 8],
    ],
)  # fmt: skip
def test_packed_sequences_that_are_none(batch_sizes: list[int]) -> None:
    layer, ours = pair(nn.LSTM, {})
    packed = PackedSequence(torch.randn(6, 8), torch.tensor(batch_sizes, dtype=torch.int64))
    found = []
    with torch.no_grad():
        for module in (layer, ours):
            try:
                found.append(module(packed)[0].data.shape)
            except Exception as why:
                found.append(type(why))
        weights = [weight.detach() for weight in ours._weights()]
        options = (weights, "LSTM", 1, False)
        assert found[0] == found[1]
        with pytest.raises(gatestream.InputError):
            _operators.recurrent_packed(packed.data, packed.batch_sizes, None, None, *options)


def test_operators_refuse_arrays_of_other_sizes() -> None:
    _, ours = pair(nn.LSTM, {})
    options = ([weight.detach() for weight in ours._weights()], "LSTM", 1, False, False)
    x, h, c = torch.randn(5, 2, 8), torch.randn(1, 2, 16), torch.randn(1, 2, 16)
    for arguments in (
        (x[..., :7], h, c), (x, h[:, :1], c), (x, h, c[..., :15]), (x.double(), h, c), (x, h.half(), c), (x, h[0], c),
    ):  # fmt: skip
        with pytest.raises(gatestream.InputError):
            _operators.recurrent(*arguments, *options)


def uneven(batch: int) -> PackedSequence:
    """One sequence is as long as the others are many."""
    batch_sizes = torch.ones(batch + 1, dtype=torch.int64)
    batch_sizes[0] = batch
    return PackedSequence(torch.randn(2 * batch, 8), batch_sizes)


@pytest.mark.parametrize(("batch", "is_padded"), [(10, True), (100, False)])
@each_layer
def test_very_uneven_sequences_are_not_padded(kind: type, options: dict, batch: int, is_padded: bool) -> None:
    layer, ours = pair(kind, options)
    packed = uneven(batch)
    weights = [weight.detach() for weight in ours._weights()]
    stack = weights, layer.mode, layer.num_layers, layer.bidirectional
    with torch.no_grad():
        expected, states = layer(packed)
        same(ours(packed), (expected, states))
        same(ours(packed, states), layer(packed, states))
        for states in (None, states):
            h0, c0 = states if isinstance(states, tuple) else (states, None)
            arguments = packed.data, packed.batch_sizes, h0, c0, *stack
            expected, last = layer(packed, states)
            hn, cn = last if isinstance(last, tuple) else (last, torch.empty(0))
            same(_operators.recurrent_packed(*arguments), (expected.data, hn, cn))
            if is_padded:
                _operators.run_packed(*arguments)
            else:
                with pytest.raises(gatestream.TooLargeError, match="uneven"):
                    _operators.run_packed(*arguments)


def test_very_uneven_sequences_are_not_padded_in_graphs() -> None:
    layer, ours = pair(nn.LSTM, {"bidirectional": True})
    # Padded, they would take 40 GB.
    packed = uneven(35_000)
    compiled = torch.compile(lambda packed: ours(packed), backend="eager", fullgraph=True)
    with torch.no_grad():
        same(compiled(packed), layer(packed))


def test_values_in_other_forms() -> None:
    layer, ours = pair(nn.LSTM, {})
    buffer = bytearray(4 * 5 * 2 * 8 + 1)
    unaligned = torch.frombuffer(buffer, dtype=torch.float32, offset=1).reshape(5, 2, 8)
    unaligned.copy_(torch.randn(5, 2, 8))
    negated = torch._neg_view(torch.randn(5, 2, 8))
    state = nn.Parameter(torch.randn(1, 2, 16))
    with torch.no_grad():
        for x in (unaligned, negated, nn.Parameter(torch.randn(5, 2, 8))):
            for _ in range(3):
                same(ours(x), layer(x))
            same(ours(x, (state, state)), layer(x, (state, state)))


def test_state_dicts_of_tensors() -> None:
    layer = nn.LSTM(8, 16)
    x = torch.randn(5, 2, 8)
    with torch.no_grad():
        expected = layer(x)[0]
    model = gatestream.Model.from_state_dict(dict(layer.named_parameters()))
    found = gatestream.Session(model).run(x.requires_grad_()).output
    same(torch.from_numpy(found), expected)
    halves = {name: weight.bfloat16() for name, weight in layer.state_dict().items()}
    rounded = {name: weight.float().numpy() for name, weight in halves.items()}
    assert gatestream.Model.from_state_dict(halves) == gatestream.Model.from_state_dict(rounded)


def test_a_report_names_what_is_left_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    class Own(nn.GRU):
        pass

    module = nn.ModuleDict({"a": nn.LSTM(4, 4), "b": hooked(nn.LSTM(4, 4)), "c": Own(4, 4), "d": nn.Linear(4, 4)})
    gt.optimize(module, verbose=True)
    report = gt.report(module)
    assert [(layer.name, layer.kind, layer.on_gatestream) for layer in report] == [
        ("a", "LSTM", True), ("b", "LSTM", False), ("c", "Own", False),
    ]  # fmt: skip
    assert "forward hooks" in report[1].why and "subclass" in report[2].why
    assert "gradients" in report[0].why
    assert str(report) == capsys.readouterr().out.strip()
    gt.optimize(module, freeze=True)
    assert gt.report(module)[0].why == ""
    with pytest.warns(UserWarning, match="no recurrent layers"):
        gt.optimize(nn.Linear(4, 4))


def test_subclasses_are_left_alone_and_shared_layers_stay_shared() -> None:
    class Own(nn.LSTM):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    shared = nn.GRU(4, 4)
    module = gt.optimize(nn.ModuleList([Own(4, 4), shared, shared]))
    assert type(module[0]) is Own
    assert isinstance(module[1], gt.Recurrent) and module[1] is module[2]


def test_methods_of_the_original_layer() -> None:
    layer, ours = pair(nn.LSTM, {"num_layers": 2})
    ours.flatten_parameters()
    x = torch.randn(4, 2, 8)
    with torch.no_grad():
        same(ours(x), layer(x))
        for made in (layer, ours):
            torch.manual_seed(7)
            made.reset_parameters()
        same(ours(x), layer(x))
    for mine, theirs in zip(ours.all_weights, layer.all_weights):
        same(mine, theirs)


def program(text: str) -> str:
    """The output of a Python program."""
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_no_more_threads_than_those_of_pytorch() -> None:
    text = """
import os, torch, gatestream.torch
layer = gatestream.torch.optimize(torch.nn.LSTM(512, 512))
x = torch.zeros(20, 8, 512)
def threads():
    return [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
with torch.no_grad():
    for count in (1, 2):
        torch.set_num_threads(count)
        torch.relu(torch.zeros(1 << 20))
        before = len(threads())
        for _ in range(3):
            layer(x)
        print(len(threads()) - before, sum("gatestream" in name for name in threads()))
"""
    assert program(text).splitlines() == ["0 0", "0 0"]


def test_more_threads_than_cores() -> None:
    text = """
import torch, gatestream.torch
layer = torch.nn.GRU(512, 512, bidirectional=True)
x = torch.zeros(20, 8, 512)
torch.set_num_threads(8)
with torch.no_grad():
    expected, _ = layer(x)
    found, _ = gatestream.torch.optimize(layer)(x)
torch.testing.assert_close(found, expected)
"""
    program(text)


def test_a_forked_process_packs_anew() -> None:
    text = """
import os, torch, gatestream.torch
layer = gatestream.torch.optimize(torch.nn.LSTM(64, 512))  # large: its weights are read on several threads
x = torch.randn(20, 2, 64)
with torch.no_grad():
    expected = layer(x)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if all(torch.equal(layer(x)[0], expected) for _ in range(3)) else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(torch.equal(layer(x)[0], expected))
"""
    assert program(text).split() == ["0", "True"]
