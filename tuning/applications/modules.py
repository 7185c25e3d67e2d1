"""Three applications with recurrent layers in PyTorch, with random weights: those of DeepCPU (Zhang and others,
2018), section 6.2 and Table 2.

    python tuning/applications/modules.py FOLDER           Table 2's sizes
    python tuning/applications/modules.py FOLDER --small   sizes for tests

For each application it writes NAME.safetensors with the weights, the inputs (`in:…`, int64) and PyTorch's answers
(`out:…`), NAME.onnx, and NAME.npz with inputs and answers alone. Of the small ones, tests/fixtures/applications has the
first, crates/network/tests/cases the others.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

# Documents that one query is compared with: Table 4.
DOCUMENTS = (1, 10, 15, 20, 33)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one application."""

    input: int
    hidden: int
    question: int  # steps of a question, or of a query
    context: int  # steps of a context, or of a document
    batch: int  # contexts, or documents
    symbols: int = 10_000
    candidates: int = 10


class TextSimilarity(nn.Module):
    """Ranks documents for a query: a bidirectional GRU's final states, compared by their cosine."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.symbols, sizes.input)
        self.encoder = nn.GRU(sizes.input, sizes.hidden, batch_first=True, bidirectional=True)

    def forward(self, query: Tensor, documents: Tensor) -> Tensor:
        _, final = self.encoder(self.embedding(torch.cat([query, documents])))
        encoded = torch.cat([final[0], final[1]], dim=1)
        return nn.functional.cosine_similarity(encoded[:1], encoded[1:])


class AttentionSumReader(nn.Module):
    """Chooses an answer among the tokens of each context (Kadlec and others, 2016)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.symbols, sizes.input)
        self.question = nn.GRU(sizes.input, sizes.hidden, batch_first=True, bidirectional=True)
        self.context = nn.GRU(sizes.input, sizes.hidden, batch_first=True, bidirectional=True)

    def forward(self, question: Tensor, contexts: Tensor, candidates: Tensor) -> Tensor:
        _, final = self.question(self.embedding(question))
        query = torch.cat([final[0], final[1]], dim=1)
        steps, _ = self.context(self.embedding(contexts))
        weights = torch.softmax((steps @ query.T).squeeze(2), dim=1)
        same = contexts[:, :, None] == candidates[:, None, :]
        return (weights[:, :, None] * same).sum(dim=1)


class HighwayLayer(nn.Module):
    """A part of the input passes as it is."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.transform = nn.Linear(features, features)
        self.gate = nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * torch.relu(self.transform(x)) + (1 - gate) * x


class AttentionFlow(nn.Module):
    """Attention between context and question in both directions (BiDAF, equations 1 to 4)."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3 * features) / features**0.5)

    def forward(self, h: Tensor, u: Tensor) -> Tensor:
        of_context, of_question, of_product = self.weights.chunk(3)
        scores = (h * of_product) @ u.transpose(1, 2)
        scores = scores + (h @ of_context)[:, :, None] + (u @ of_question)[:, None, :]
        attended = torch.softmax(scores, dim=2) @ u
        pooled = torch.softmax(scores.amax(dim=2), dim=1)[:, None, :] @ h
        return torch.cat([h, attended, h * attended, h * pooled], dim=2)


class Bidaf(nn.Module):
    """Finds the answer to a question in a context (Seo and others, 2017)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        hidden = sizes.hidden
        self.embedding = nn.Embedding(sizes.symbols, sizes.input)
        self.highway = nn.Sequential(HighwayLayer(sizes.input), HighwayLayer(sizes.input))
        self.phrase = nn.LSTM(sizes.input, hidden, batch_first=True, bidirectional=True)
        self.flow = AttentionFlow(2 * hidden)
        self.modeling = nn.LSTM(8 * hidden, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.output = nn.LSTM(14 * hidden, hidden, batch_first=True, bidirectional=True)
        self.start = nn.Linear(10 * hidden, 1)
        self.end = nn.Linear(10 * hidden, 1)

    def forward(self, question: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        u, _ = self.phrase(self.highway(self.embedding(question)))
        h, _ = self.phrase(self.highway(self.embedding(context)))
        g0 = self.flow(h, u)
        g1, _ = self.modeling(g0)
        start = torch.softmax(self.start(torch.cat([g0, g1], dim=2)).squeeze(2), dim=1)
        a1 = (start[:, None, :] @ g1).expand_as(g1)
        g2, _ = self.output(torch.cat([g0, g1, a1, g1 * a1], dim=2))
        end = torch.softmax(self.end(torch.cat([g0, g2], dim=2)).squeeze(2), dim=1)
        return start, end


@dataclass(frozen=True)
class Application:
    """A network, its inputs and the names of both."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]

    def answers(self) -> dict[str, Tensor]:
        """PyTorch's answers."""
        with torch.inference_mode():
            results = self.module(*self.inputs.values())
        results = results if isinstance(results, tuple) else (results,)
        return dict(zip(self.outputs, results, strict=True))

    def write(self, folder: Path) -> None:
        """The files."""
        kept = {f"in:{name}": tensor for name, tensor in self.inputs.items()}
        kept |= {f"out:{name}": tensor for name, tensor in self.answers().items()}
        np.savez(folder / f"{self.name}.npz", **{name: tensor.numpy() for name, tensor in kept.items()})
        tensors = self.module.state_dict() | kept
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / f"{self.name}.safetensors")
        program = torch.onnx.export(
            self.module, tuple(self.inputs.values()), verbose=False,
            input_names=list(self.inputs), output_names=list(self.outputs),
        )  # fmt: skip
        model = program.model_proto
        # Where each node comes from, with the paths of this machine.
        for part in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output):
            part.ClearField("metadata_props")
        model.graph.ClearField("metadata_props")
        onnx.save(model, folder / f"{self.name}.onnx")


def applications(small: bool) -> list[Application]:
    """All of them, with Table 2's sizes or small ones; text similarity with each number of documents."""
    if small:
        ts, asr, bidaf = Sizes(6, 10, 5, 5, 3, 20), Sizes(7, 9, 4, 11, 3, 12, 4), Sizes(5, 6, 4, 9, 1, 20)
    else:
        ts, asr, bidaf = Sizes(200, 512, 20, 20, 1), Sizes(200, 256, 20, 100, 10), Sizes(50, 100, 15, 100, 1)
    torch.manual_seed(34)

    def tokens(sizes: Sizes, batch: int, steps: int) -> Tensor:
        return torch.randint(sizes.symbols, (batch, steps))

    found = []
    similarity = TextSimilarity(ts).eval()
    for documents in (ts.batch,) if small else DOCUMENTS:
        inputs = {"query": tokens(ts, 1, ts.question), "documents": tokens(ts, documents, ts.context)}
        name = "text_similarity" if small else f"text_similarity_{documents}"
        found.append(Application(name, similarity, inputs, ("similarity",)))
    contexts = tokens(asr, asr.batch, asr.context)
    places = torch.randint(asr.context, (asr.batch, asr.candidates))
    inputs = {
        "question": tokens(asr, 1, asr.question),
        "contexts": contexts,
        "candidates": contexts.gather(1, places),
    }
    found.append(Application("attention_sum_reader", AttentionSumReader(asr).eval(), inputs, ("probabilities",)))
    inputs = {
        "question": tokens(bidaf, bidaf.batch, bidaf.question),
        "context": tokens(bidaf, bidaf.batch, bidaf.context),
    }
    found.append(Application("bidaf", Bidaf(bidaf).eval(), inputs, ("start", "end")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="sizes for tests")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for application in applications(given.small):
        application.write(given.folder)


if __name__ == "__main__":
    main()
