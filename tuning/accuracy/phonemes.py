"""The phoneme error rate of examples/models/g2p.safetensors in each precision, over all held-out words."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

import simulation
from contenders import lone, quantization

MODELS = Path(__file__).resolve().parents[2] / "examples" / "models"
sys.path.insert(0, str(MODELS))
import train_g2p  # noqa: E402


def ours(args) -> list[dict]:
    done = subprocess.run([args.g2p, args.held_out], check=True, capture_output=True, text=True)
    rows = []
    for row in csv.DictReader(done.stdout.splitlines()):
        rows.append({"library": "gatestream", **{k: v if k == "precision" else int(v) for k, v in row.items()}})
    return rows


def rates(library: str, precision: str, answers: dict, exact: dict, references: dict) -> dict:
    """Each word is held against its nearest reference."""
    edits = length = wrong = 0
    for word, sounds in answers.items():
        distance, of = min((train_g2p.edit_distance(sounds, r), len(r)) for r in references[word])
        edits, length, wrong = edits + distance, length + of, wrong + (distance > 0)
    apart = [train_g2p.edit_distance(answers[word], exact[word]) for word in references]
    return {
        "library": library,
        "precision": precision,
        "words": len(references),
        "phonemes": length,
        "edits": edits,
        "wrong_words": wrong,
        "words_unlike_f32": sum(d > 0 for d in apart),
        "edits_from_f32": sum(apart),
    }


@torch.no_grad()
def simulated(model: train_g2p.G2p, words, scale: str) -> dict:
    """Greedy answers with both GRUs in int8 as `simulation` has it; embeddings and the dense layer in f32."""
    letters, sounds, weight, bias = (
        t.detach().numpy()
        for t in (model.encoder.embedding.weight, model.decoder.embedding.weight, model.output.weight, model.output.bias)
    )
    encoder, decoder = lone(model.encoder.rnn), simulation.Direction(lone(model.decoder.rnn), "_l0", scale)
    forward, reverse = (simulation.Direction(encoder, suffix, scale) for suffix in ("_l0", "_l0_reverse"))
    by_length, answers = defaultdict(list), {}
    for word in words:
        by_length[len(word)].append(word)
    for same in by_length.values():
        x = letters[train_g2p.letters_tensor(same).numpy().T]
        zero = np.zeros((len(same), encoder.hidden_size), np.float32)
        h = np.concatenate([forward.run(x, zero)[-1], reverse.run(x[::-1], zero)[-1]], axis=1)
        previous, said, running = np.full(len(same), train_g2p.BOS), [[] for _ in same], set(range(len(same)))
        for _ in range(train_g2p.MAX_OUTPUT_LENGTH):
            h = decoder.run(sounds[previous][None], h)[0]
            previous = (h @ weight.T + bias).argmax(axis=1)
            for row in sorted(running):
                if previous[row] == train_g2p.EOS:
                    running.discard(row)
                else:
                    said[row].append(int(previous[row]))
            if not running:
                break
        answers.update((word, tuple(answer)) for word, answer in zip(same, said))
    return answers


def peers(args) -> list[dict]:
    """The same words by PyTorch, in f32 and with its dynamic int8, which is given one word at a time, as in
    `Task.pytorch_int8` at its best; by default its weights have one scale for a matrix. And by the simulation.
    """
    references = {}
    with open(args.held_out, encoding="ascii") as file:
        for line in list(file)[1:]:
            word, sounds = line.rstrip("\n").split("\t")
            references[word] = [tuple(train_g2p.PHONEME_INDEX[p] for p in s.split(" ")) for s in sounds.split("|")]
    model = train_g2p.load(MODELS / "g2p.safetensors")
    greedy = lambda model, batch: {w: sounds for w, (sounds, _) in train_g2p.pronounce(model, references, batch).items()}
    exact = greedy(model, 256)
    rows = [rates("PyTorch", "f32", exact, exact, references)]
    ways = {"int8": quantization.default_dynamic_qconfig, "int8, at its best": quantization.per_channel_dynamic_qconfig}
    for precision, how in ways.items():
        small = quantization.quantize_dynamic(model, {torch.nn.GRU: how}, dtype=torch.qint8)
        rows.append(rates("PyTorch", precision, greedy(small, 1), exact, references))
    for scale in simulation.SCALES:
        answers = simulated(model, references, scale)
        rows.append(rates("simulation", f"int8, {scale} scale of the state", answers, exact, references))
    return rows


def measure(args) -> list[dict]:
    return ours(args) + peers(args)
