"""ONNX files of models that are published as PyTorch weights only: their layers, written down here again, and
`torch.onnx.export`. Each forward pass is what the package's own module computes."""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional


class Encoder(nn.Module):
    """Resemblyzer: the last layer's final hidden state, projected and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: Tensor) -> Tensor:
        """`[batch, frames, 40]` to `[batch, 256]`."""
        _, (hidden, _) = self.lstm(mels)
        raw = torch.relu(self.linear(hidden[-1]))
        return raw / torch.norm(raw, dim=1, keepdim=True)


class Consensus(nn.Module):
    """medaka: probabilities of the bases at each position of a pileup."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(10, 128, 2, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(256, 5)

    def forward(self, counts: Tensor) -> Tensor:
        """`[batch, positions, 10]` to `[batch, positions, 5]`."""
        return torch.softmax(self.linear(self.gru(counts)[0]), dim=-1)


class Bidirectional(nn.Module):
    """A bidirectional LSTM and a projection of each step."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(features, 256, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(512, 256)

    def forward(self, steps: Tensor) -> Tensor:
        """`[batch, steps, features]` to `[batch, steps, 256]`."""
        return self.linear(self.rnn(steps)[0])


class Reader(nn.Module):
    """EasyOCR's english_g2: convolutions over a line of text, two bidirectional LSTMs, scores of characters."""

    def __init__(self) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, normal: bool = False) -> list[nn.Module]:
            layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=not normal)]
            return [*layers, *([nn.BatchNorm2d(outputs)] if normal else []), nn.ReLU()]

        self.FeatureExtraction = nn.Module()
        self.FeatureExtraction.ConvNet = nn.Sequential(
            *block(1, 32), nn.MaxPool2d(2, 2), *block(32, 64), nn.MaxPool2d(2, 2),
            *block(64, 128), *block(128, 128), nn.MaxPool2d((2, 1), (2, 1)),
            *block(128, 256, True), *block(256, 256, True), nn.MaxPool2d((2, 1), (2, 1)),
            nn.Conv2d(256, 256, 2), nn.ReLU(),
        )  # fmt: skip
        self.SequenceModeling = nn.Sequential(Bidirectional(256), Bidirectional(256))
        self.Prediction = nn.Linear(256, 97)

    def forward(self, image: Tensor) -> Tensor:
        """`[batch, 1, 64, width]` to `[batch, steps, 97]`."""
        features = self.FeatureExtraction.ConvNet(image)
        columns = features.mean(dim=2).permute(0, 2, 1)
        return self.Prediction(self.SequenceModeling(columns))


class Segmentation(nn.Module):
    """pyannote's PyanNet: band-pass filters of a waveform (SincNet), four bidirectional LSTMs, speakers per frame.

    The filters come from learned cut-off frequencies; they are computed once, when the weights are loaded.
    """

    def __init__(self) -> None:
        super().__init__()
        sinc = nn.Module()
        sinc.wav_norm1d = nn.InstanceNorm1d(1, affine=True)
        sinc.conv1d = nn.ModuleList([nn.Module(), nn.Conv1d(80, 60, 5), nn.Conv1d(60, 60, 5)])
        sinc.norm1d = nn.ModuleList(nn.InstanceNorm1d(features, affine=True) for features in (80, 60, 60))
        self.sincnet = sinc
        self.register_buffer("filters", torch.zeros(80, 1, 251), persistent=False)
        self.lstm = nn.LSTM(60, 128, 4, bidirectional=True, batch_first=True)
        self.linear = nn.ModuleList([nn.Linear(256, 128), nn.Linear(128, 128)])
        self.classifier = nn.Linear(128, 3)

    def prepare(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Computes the filters; the other tensors."""
        prefix = "sincnet.conv1d.0.filterbank."
        bank = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        low = 50 + bank["low_hz_"].abs()
        high = torch.clamp(low + 50 + bank["band_hz_"].abs(), 50, 8000)
        band, window, n = (high - low)[:, 0], bank["window_"], bank["n_"]

        def half(wave: Callable[[Tensor], Tensor]) -> Tensor:
            return (wave(high @ n) - wave(low @ n)) / (n / 2) * window

        even, odd = half(torch.sin), half(torch.cos)
        width, none = 2 * band[:, None], torch.zeros_like(band[:, None])
        cosine = torch.cat([even, width, even.flip(1)], dim=1) / width
        sine = torch.cat([odd, none, -odd.flip(1)], dim=1) / width
        self.filters.copy_(torch.cat([cosine, sine]).view(80, 1, 251))
        return {key: value for key, value in state.items() if not key.startswith(prefix)}

    def forward(self, waveform: Tensor) -> Tensor:
        """`[batch, 1, samples]` to `[batch, frames, 3]`."""
        signal = self.sincnet.wav_norm1d(waveform)
        for index, (convolution, norm) in enumerate(zip(self.sincnet.conv1d, self.sincnet.norm1d, strict=True)):
            if index == 0:
                signal = functional.conv1d(signal, self.filters, stride=10).abs()
            else:
                signal = convolution(signal)
            signal = functional.leaky_relu(norm(functional.max_pool1d(signal, 3, 3)))
        frames = self.lstm(signal.transpose(1, 2))[0]
        for linear in self.linear:
            frames = functional.leaky_relu(linear(frames))
        return torch.sigmoid(self.classifier(frames))


@dataclass(frozen=True)
class Export:
    """How a module gets its weights and is traced."""

    module: Callable[[], nn.Module]
    example: tuple[int, ...]  # the shape of the input it is traced with
    dynamic: dict[int, str]  # axes of the input that stay open
    within: str = ""  # the key under which the file holds the state dict
    prefix: str = ""  # of the names in it
    unused: tuple[str, ...] = ()  # tensors of training


EASYOCR = Export(Reader, (1, 1, 64, 400), {0: "batch", 3: "width"}, prefix="module.")
PYANNOTE = Export(Segmentation, (1, 1, 80000), {0: "batch", 2: "samples"}, within="state_dict")
RESEMBLYZER = Export(Encoder, (1, 160, 40), {0: "batch", 1: "frames"}, within="model_state",
                     unused=("similarity_weight", "similarity_bias"))  # fmt: skip
MEDAKA = Export(Consensus, (1, 100, 10), {0: "batch", 1: "positions"})


class Placeholder:
    """Stands for an object of a class that the file names beside its tensors."""

    def __init__(self, *given: object, **named: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class TensorsOnly(pickle.Unpickler):
    """Builds tensors; of any other class a placeholder, so that nothing of the file is executed."""

    KNOWN = {"collections": {"OrderedDict"}, "torch._utils": {"_rebuild_tensor_v2", "_rebuild_parameter"}}

    def find_class(self, module: str, name: str) -> object:
        """Of the names a file may use."""
        if name in self.KNOWN.get(module, ()) or (module == "torch" and name.endswith(("Storage", "Size"))):
            return super().find_class(module, name)
        return type(name, (Placeholder,), {})


def weights(path: Path) -> dict:
    """The object in a file of PyTorch's."""
    reader = types.ModuleType("tensors_only")
    reader.Unpickler = TensorsOnly  # type: ignore[attr-defined]
    reader.load = lambda file, **options: TensorsOnly(file, **options).load()  # type: ignore[attr-defined]
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=reader)


def module_of(export: Export, path: Path) -> nn.Module:
    """The module with the file's weights, ready to run."""
    state = weights(path)
    state = state[export.within] if export.within else state
    state = {key.removeprefix(export.prefix): value for key, value in state.items() if key not in export.unused}
    module = export.module()
    if isinstance(module, Segmentation):
        state = module.prepare(state)
    module.load_state_dict(state)
    return module.eval()


def write(export: Export, path: Path, target: Path) -> None:
    """The ONNX file of a module, as PyTorch's tracing exporter writes it, weights inside."""
    torch.onnx.export(module_of(export, path), (torch.zeros(export.example),), str(target), dynamo=False,
                      opset_version=17, input_names=["input"], output_names=["output"],
                      dynamic_axes={"input": export.dynamic})  # fmt: skip


def exactly(export: Export, path: Path, arrays: dict) -> list:
    """The outputs in float64: what a network that amplifies rounding is compared with."""
    module = module_of(export, path).double()
    with torch.no_grad():
        return [module(torch.from_numpy(arrays["input"]).double()).numpy()]
