"""Inputs of the published models. They are like the real ones: trained networks amplify noise that no user sends.

Speech is synthesised: a glottal pulse train with a moving pitch through three moving formants, with pauses.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]
RATE = 16000


def noise(seed: int = 7) -> np.random.Generator:
    """The same numbers in every run."""
    return np.random.default_rng(seed)


def speech(samples: int) -> np.ndarray:
    """A voice, `[samples]` in -1..1."""
    time = np.arange(samples) / RATE
    pitch = 120 + 25 * np.sin(2 * np.pi * 0.7 * time) + 10 * np.sin(2 * np.pi * 2.3 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formants = [(550 + 250 * np.sin(2 * np.pi * 1.9 * time), 90), (1500 + 500 * np.sin(2 * np.pi * 1.3 * time), 120),
                (2600 + 200 * np.sin(2 * np.pi * 0.9 * time), 160)]  # fmt: skip
    voice = np.zeros(samples)
    for harmonic in range(1, 40):
        frequency = harmonic * pitch
        gain = sum(1 / (1 + ((frequency - centre) / width) ** 2) for centre, width in formants)
        voice += gain / np.sqrt(harmonic) * np.sin(harmonic * phase) * (frequency < RATE / 2)
    syllables = np.clip(np.sin(2 * np.pi * 2.1 * time) + 0.4, 0, 1) * (np.sin(2 * np.pi * 0.31 * time) > -0.8)
    voice = voice / np.abs(voice).max() * 0.5 * syllables
    return (voice + 0.003 * noise().standard_normal(samples)).astype(np.float32)


def spectrum(frames: int, window: int, hop: int) -> np.ndarray:
    """Short-time Fourier transform of speech, `[frames, window / 2 + 1]`, complex."""
    signal = speech(RATE // 2 + frames * hop + window)[RATE // 2 :]
    slices = np.stack([signal[frame * hop : frame * hop + window] for frame in range(frames)])
    return np.fft.rfft(slices * np.hanning(window))


def silero_window(path: Path) -> Arrays:
    """One window of 512 samples behind 64 of the last one."""
    arrays = {
        "input": speech(RATE)[8000 : 8000 + 576][None],
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(RATE, np.int64),
    }
    return taken(path, arrays)


def silero_sequence(path: Path) -> Arrays:
    """100 windows."""
    signal = speech(64 + 100 * 512)
    windows = np.stack([signal[at * 512 : at * 512 + 576] for at in range(100)])
    zeros = np.zeros((1, 1, 128), np.float32)
    return {"input": windows, "h": zeros, "c": zeros}


def image(width: int, low: float, high: float) -> np.ndarray:
    """Dark strokes on light paper, `[1, 1, 64, width]`."""
    rows, columns = np.mgrid[0:64, 0:width]
    paper = np.ones((64, width))
    random = noise()
    for start in range(8, width - 16, 20):
        for _ in range(3):
            x, y, slope = start + 12 * random.random(), 16 + 24 * random.random(), random.uniform(-1, 1)
            stroke = np.abs((rows - y) - slope * 3 * (columns - x)) < 3
            paper[stroke & (np.abs(columns - x) < 6) & (np.abs(rows - y) < 18)] = 0.1
    return (low + (high - low) * paper).astype(np.float32)[None, None]


def image_line(path: Path) -> Arrays:
    """A captcha: values in 0..1 for the newer file, -1..1 for the older one."""
    return {"input1": image(160, -1 if path.stem.endswith("old") else 0, 1)}


def image_wide(path: Path) -> Arrays:
    """A line of text in -1..1."""
    return {"input": image(400, -1, 1)}


def waveform(path: Path) -> Arrays:
    """Five seconds."""
    return {"input": speech(5 * RATE)[None, None]}


def mel(path: Path) -> Arrays:
    """Energies in 40 bands of 160 frames, of four moments of the speech."""
    power = np.abs(spectrum(4 * 160, 400, 160)) ** 2
    edges = 700 * (10 ** (np.linspace(0, 2840, 42) / 2595) - 1) / RATE * 400
    bins = np.arange(power.shape[1])
    bands = [np.interp(bins, edges[at : at + 3], [0, 1, 0]) for at in range(40)]
    return {"input": (power @ np.array(bands).T / 400).reshape(4, 160, 40).astype(np.float32)}


def pileup(path: Path) -> Arrays:
    """Shares of reads that have each base on each strand, at 1000 positions: most agree."""
    random = noise()
    base = random.integers(0, 4, 1000)
    shares = random.dirichlet(np.full(10, 0.15), 1000) * 0.25
    shares[np.arange(1000), base] += 0.4
    shares[np.arange(1000), base + 5] += 0.35
    return {"input": shares.astype(np.float32)[None]}


def log_power(path: Path) -> Arrays:
    """log10 of the power of 100 frames."""
    bins = 513 if path.stem.endswith("48k") else 161
    power = np.abs(spectrum(100, 2 * (bins - 1), bins - 1)) ** 2
    return {"input": np.log10(np.maximum(power, 1e-12)).astype(np.float32)[None]}


def deepfilter(path: Path) -> Arrays:
    """Features of 100 frames; for the decoders values like those of an encoder behind its relu."""
    import onnxruntime

    random, arrays = noise(), {}
    for tensor in onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs():
        shape = [100 if size == "S" else size for size in tensor.shape]
        values = 0.5 * random.standard_normal(shape)
        arrays[tensor.name] = (values if tensor.name.startswith("feat") else np.maximum(values, 0)).astype(np.float32)
    return arrays


def gtcrn(path: Path) -> Arrays:
    """One frame, and caches as after some frames."""
    frame = spectrum(1, 512, 256)[0]
    random = noise()

    def cache(*shape: int) -> np.ndarray:
        return (0.2 * random.standard_normal(shape)).astype(np.float32)

    return {
        "mix": np.stack([frame.real, frame.imag], -1).astype(np.float32)[None, :, None],
        "conv_cache": cache(2, 1, 16, 16, 33),
        "tra_cache": cache(2, 3, 1, 1, 16),
        "inter_cache": cache(2, 1, 33, 16),
    }


def dtln(path: Path) -> Arrays:
    """One frame and the states of the step before."""
    states = np.tanh(0.5 * noise().standard_normal((1, 2, 128, 2))).astype(np.float32)
    frame = np.abs(spectrum(1, 512, 128)).astype(np.float32)[None]
    moment = speech(RATE)[8000:8512][None, None]
    return taken(path, {"input_2": frame, "input_3": states, "input_4": moment, "input_5": states})


def tashkeel(path: Path) -> Arrays:
    """80 letters without their marks, and a shorter text beside it."""
    random = noise()
    letters = random.integers(1, 54, (2, 80))
    lengths = np.array([80, 61], np.int64)
    letters[1, 61:] = 0
    return {"char_inputs": letters, "diac_inputs": np.zeros((2, 80), np.int64), "input_lengths": lengths}


def letters(path: Path) -> Arrays:
    """80 letters, by the number of each; every file here knows at least 43."""
    import onnxruntime

    tensor = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()[0]
    kind = np.float32 if tensor.type == "tensor(float)" else np.int64
    return {tensor.name: noise().integers(1, 40, (1, 80)).astype(kind)}


# "The boy went to school early in the morning, then came home with his father and read the science book", in
# Arabic, by the numbers that the vocabulary of rawi-v2 gives its letters.
ARABIC = [158, 176, 150, 3, 149, 173, 177, 173, 157, 3, 149, 173, 178, 3, 149, 173, 174, 157, 159, 161, 151, 3, 170,
          179, 3, 149, 173, 163, 150, 149, 155, 3, 149, 173, 150, 149, 172, 159, 3, 153, 174, 3, 167, 149, 157, 3, 149,
          173, 178, 3, 149, 173, 150, 179, 152, 3, 174, 167, 3, 149, 150, 179, 176, 3, 177, 171, 159, 149, 3, 172, 152,
          149, 150, 3, 149, 173, 167, 173, 177, 174]  # fmt: skip


def arabic(path: Path) -> Arrays:
    """80 letters of a sentence. The first rawi numbers all letters, not the space, one higher."""
    first = path.stem.endswith("rawi")
    return {"input": np.array([[letter + (first and letter != 3) for letter in ARABIC]], np.int64)}


def word(path: Path) -> Arrays:
    """A domain name of 24 letters."""
    return {"chars": noise().integers(1, 27, (1, 24))}


def plcmos(path: Path) -> Arrays:
    """log power of 394 frames, and the mean rater."""
    power = np.abs(spectrum(394, 512, 256)) ** 2
    logs = np.log(np.maximum(power, 1e-8)).astype(np.float32)
    return {"degraded_audio": logs[None, None], "rater_embed": np.zeros((1, 64), np.float32)}


def aecmos(path: Path) -> Arrays:
    """Mel bands of three signals, 600 frames."""
    import onnxruntime

    states = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()[1].shape
    bands = np.abs(spectrum(600, 512, 256))[:, :160]
    logs = np.log10(np.maximum(bands, 1e-4)).astype(np.float32)
    return {"input": np.stack([logs, 0.8 * logs, logs - 0.1])[None], "h0": np.zeros(states, np.float32)}


def kokoro(path: Path) -> Arrays:
    """A sentence of 60 phonemes."""
    random = noise()
    tokens = np.concatenate([[0], random.integers(43, 100, 60), [0]])[None].astype(np.int64)
    style = 0.1 * random.standard_normal((1, 256))
    return {"tokens": tokens, "style": style.astype(np.float32), "speed": np.ones(1, np.float32)}


def taken(path: Path, arrays: Arrays) -> Arrays:
    """Those that the file has as inputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return {tensor.name: arrays[tensor.name] for tensor in session.get_inputs()}
