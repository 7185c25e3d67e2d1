"""Saves a PyTorch LSTM for gatestream, with an input and PyTorch's own answer to it.

    pip install torch safetensors numpy
    python examples/from_pytorch/save_model.py [FOLDER]      (default: target/from_pytorch of this repository)

writes lstm.safetensors, input.npy [time, batch, feature] and output.npy [time, batch, 2 * hidden].
"""

import pathlib
import sys

import numpy
import torch
from safetensors.torch import save_file

root = pathlib.Path(__file__).resolve().parents[2]
folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "target/from_pytorch"
folder.mkdir(parents=True, exist_ok=True)

torch.manual_seed(1)
lstm = torch.nn.LSTM(input_size=40, hidden_size=96, num_layers=3, bidirectional=True).eval()
x = torch.randn(50, 2, 40)
with torch.inference_mode():
    y, _ = lstm(x)

# The metadata is optional: the shapes say that this is an LSTM, and time-major is the default.
save_file(
    lstm.state_dict(),
    folder / "lstm.safetensors",
    metadata={"gatestream.cell": "lstm", "gatestream.batch_first": "false"},
)
numpy.save(folder / "input.npy", x.numpy())
numpy.save(folder / "output.npy", y.numpy())
print(f"wrote {folder}/lstm.safetensors, input.npy and output.npy")
