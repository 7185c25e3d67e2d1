"""The scale of the hidden state in int8: by its greatest magnitude at each step, or fixed at 1/127.

The first is what the reference defines, and its simulation is held against the program's own output. Random
models, with small states, and the trained GRUs of examples/models.
"""

from __future__ import annotations

import numpy as np
import torch

import drift
import simulation
from contenders import Task, lone, random_task, rms
from phonemes import MODELS, train_g2p

# Trained: all held-out words with this number of letters and, in the first pronunciation, of phonemes.
LETTERS, PHONEMES = 8, 7
# The simulation's activations differ from ours in the last bits. Where that puts a value on the other side of a
# tie, a whole number differs by one, and from there the two round apart: over many steps they differ by much of
# the error, with the same size of it. So they must agree over the first steps, and in the size over all.
FIRST, APART, SAME_SIZE = 10, 0.1, 0.02


@torch.no_grad()
def trained(args) -> list[Task]:
    """The encoder over words, and the decoder over their pronunciations from the encoder's final states."""
    model = train_g2p.load(MODELS / "g2p.safetensors")
    words = []
    with open(args.held_out, encoding="ascii") as file:
        for line in list(file)[1:]:
            word, sounds = line.rstrip("\n").split("\t")
            sounds = [train_g2p.PHONEME_INDEX[p] for p in sounds.split("|")[0].split(" ")]
            if len(word) == LETTERS and len(sounds) == PHONEMES:
                words.append((word, [train_g2p.BOS, *sounds]))
    letters = train_g2p.letters_tensor([word for word, _ in words])
    x = model.encoder.embedding(letters).transpose(0, 1).numpy()
    encoder = Task(f"trained encoder, {len(words)} words", lone(model.encoder.rnn), x)
    h0 = model.encode(letters).numpy()
    x = model.decoder.embedding(torch.tensor([sounds for _, sounds in words])).transpose(0, 1).numpy()
    return [encoder, Task(f"trained decoder, {len(words)} words", lone(model.decoder.rnn), x, h0)]


def one(args, task: Task, seed) -> dict:
    truth = task.pytorch(torch.float64)
    ours = task.ours(args.binary, "int8")
    answers = {scale: simulation.run(task.model, task.x, task.h0, scale) for scale in simulation.SCALES}
    errors = {scale: rms(answer - truth) for scale, answer in answers.items()}
    apart = rms((answers["dynamic"] - ours)[:FIRST])
    error = rms(ours - truth)
    if apart > APART * rms((ours - truth)[:FIRST]) or abs(errors["dynamic"] - error) > SAME_SIZE * error:
        raise SystemExit(f"{task.name}: {apart:.1e} from our output; errors {errors['dynamic']:.3e} and {error:.3e}")
    largest = np.abs(truth).max(axis=2)
    return {
        "model": task.name,
        "seed": seed,
        "rms_dynamic": errors["dynamic"],
        "rms_fixed": errors["fixed"],
        "rms_ours": error,
        "simulation_from_ours_steps_1_10": apart,
        "simulation_from_ours": rms(answers["dynamic"] - ours),
        "rms_pytorch": rms(task.pytorch_int8() - truth),
        "rms_pytorch_at_its_best": rms(task.pytorch_int8(per_channel=True, rows_alone=True) - truth),
        "output_rms": rms(truth),
        "mean_greatest_state": float(largest.mean()),
    }


def measure(args) -> list[dict]:
    rows = []
    for cell, hidden, seed, steps in drift.plan(args):
        if seed != drift.SEEDS[0]:  # one shows it
            continue
        rows.append(one(args, random_task(cell, hidden, seed, steps, drift.BATCH), seed))
        print(f"scale: {cell} {hidden}, seed {seed}", flush=True)
    return rows + [one(args, task, 0) for task in trained(args)]
