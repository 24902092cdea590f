"""Drafters and targets on disk: what is written is read back, and what does not fit is refused by name.

A folder is edited the way a real one could be wrong; the refusal must be one line that says what is wrong.
"""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from toy_models import byte_tokenizer, drafter_config, greedy, random_drafter, randomise, target_of, tiny_model

from dominotree_lite import checkpoints
from dominotree_lite.checkpoints import config_json, load_drafter, load_target, parse_config, save_drafter
from dominotree_lite.decode import generate
from dominotree_lite.drafter import ContextCache, Drafter, DraftModel
from dominotree_lite.errors import InputError
from dominotree_lite.target import Target

both_kinds = pytest.mark.parametrize("kind", ["dflash", "domino"])
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(tiny_model())


def written(folder: Path, kind: str, shift: bool = True, seed: int = 0) -> DraftModel:
    model = DraftModel(drafter_config(50, 32, kind, shift and kind == "domino"))
    randomise(model, seed)
    save_drafter(model, folder, num_target_layers=3)
    return model


def edit_config(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    raw = json.loads((folder / "config.json").read_text())
    edit(raw)
    (folder / "config.json").write_text(json.dumps(raw))


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS)


def refused_line(folder: Path, target: Target) -> str:
    with pytest.raises(InputError) as refused:
        load_drafter(str(folder), target)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def assert_same_weights(drafter: Drafter, model: DraftModel) -> None:
    """Equal to the last bit of bfloat16."""
    got, wanted = drafter.model.state_dict(), model.state_dict()
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(got[key], value.to(torch.bfloat16).to(got[key].dtype)), key


# --- Round trips -------------------------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize("shards", [1, 3], ids=["single", "sharded"])
def test_what_is_saved_is_loaded(
    kind: str, shards: int, tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shards > 1:
        monkeypatch.setattr(checkpoints, "SHARD_BYTES", 12_000)
    model = written(tmp_path, kind)
    files = sorted(path.name for path in tmp_path.iterdir())
    if shards == 1:
        assert files == ["config.json", WEIGHTS]
    else:
        count = len(files) - 2
        names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        assert count > 1 and files == sorted(["config.json", *names, INDEX])
        assert all(sum(t.numel() * 2 for t in load_file(tmp_path / name).values()) <= 12_000 for name in names)
        index = json.loads((tmp_path / INDEX).read_text())
        assert index["weight_map"] == {key: name for name in names for key in load_file(tmp_path / name)}
        assert index["metadata"]["total_size"] == 2 * sum(t.numel() for t in model.state_dict().values())
    drafter = load_drafter(str(tmp_path), target)
    assert (drafter.kind, drafter.name) == (kind, str(tmp_path))
    assert_same_weights(drafter, model)
    assert drafter.config.target_layer_ids == (0, 1)
    assert drafter.config.head == model.config.head
    assert (drafter.config.block_size, drafter.config.mask_token_id) == (6, 2)
    assert drafter.config.shift_label == model.config.shift_label
    assert drafter.config.backbone.rope_parameters["rope_theta"] == 500.0


@both_kinds
def test_a_loaded_drafter_drafts_what_the_saved_one_drafts(kind: str, tmp_path: Path, target: Target) -> None:
    model = written(tmp_path, kind)
    model.load_state_dict({key: value.bfloat16().float() for key, value in model.state_dict().items()})
    before, after = Drafter(model, target.embedding, target.output), load_drafter(str(tmp_path), target)
    features = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    one, other = (drafter.draft(3, features, ContextCache()) for drafter in (before, after))
    torch.testing.assert_close(one.base_logits, other.base_logits)
    method = {"dflash": "ddtree", "domino": "dominotree"}[kind]
    result = generate([4, 4], target, after, method=method, budget=20, max_new_tokens=12)
    assert result.token_ids == greedy(target.model, [4, 4], 12)


def test_the_written_config_is_the_published_one() -> None:
    raw = config_json(drafter_config(50, 32, "domino", True, block=16), num_target_layers=36)
    assert raw["architectures"] == ["DFlashDraftModel"]
    assert raw["dflash_config"] == {
        "mask_token_id": 2,
        "target_layer_ids": [0, 1],
        "projector_type": "domino",
        "emb_dim": 7,
        "gru_hidden_dim": 5,
        "pure_draft_prefix_len": 1,
        "shift_label": True,
    }
    assert (raw["block_size"], raw["num_target_layers"], raw["rope_theta"]) == (16, 36, 500.0)
    assert raw["layer_types"] == ["full_attention"] * 2
    assert set(config_json(drafter_config(50, 32, "dflash", False), 36)["dflash_config"]) == {
        "mask_token_id",
        "target_layer_ids",
    }


@both_kinds
def test_a_config_that_is_written_reads_as_the_same_drafter(kind: str) -> None:
    config = drafter_config(50, 32, kind, kind == "domino", uncorrected=2 if kind == "domino" else 1)
    again = parse_config(json.loads(json.dumps(config_json(config, 3))), 3)
    assert {**vars(again), "backbone": None} == {**vars(config), "backbone": None}
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"):
        assert getattr(again.backbone, key) == getattr(config.backbone, key)
    for key in ("num_key_value_heads", "vocab_size", "rms_norm_eps", "rope_parameters"):
        assert getattr(again.backbone, key) == getattr(config.backbone, key)


def published(kind: str) -> dict[str, Any]:
    """A config.json as the authors of Qwen3 drafters publish it, with fields of theirs that mean nothing here."""
    block: dict[str, Any] = {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}
    if kind == "domino":
        block |= {"projector_type": "domino", "emb_dim": 256, "gru_hidden_dim": 1024}
        block |= {"pure_draft_prefix_len": 1, "shift_label": True}
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": 16,
        "dflash_config": block,
        "dtype": "bfloat16",
        "emb_dim": 256,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "layer_types": ["full_attention"] * 5,
        "max_position_embeddings": 40960,
        "max_window_layers": 5,
        "model_type": "qwen3",
        "num_attention_heads": 32,
        "num_hidden_layers": 5,
        "num_key_value_heads": 8,
        "num_target_layers": 36,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }


@both_kinds
def test_a_published_config_is_read(kind: str) -> None:
    config = parse_config(published(kind), 36)
    assert (config.kind, config.horizon) == ((kind, 15) if kind == "dflash" else (kind, 16))
    assert config.target_layer_ids == (1, 9, 17, 25, 33)
    assert config.backbone.rope_parameters == {"rope_type": "default", "rope_theta": 1e6}
    if kind == "domino":
        assert vars(config.head) == {"emb_dim": 256, "gru_hidden_dim": 1024, "pure_draft_prefix_len": 1}
    with torch.device("meta"):  # 537.4 M parameters of a backbone, and 50.8 M of a head
        model = DraftModel(config)
    count = sum(weight.numel() for weight in model.parameters())
    assert round(count / 1e6, 1) == (537.4 if kind == "dflash" else 588.3)


@both_kinds
@pytest.mark.parametrize("architecture", ["DFlashDraftModel", "DominoDraftModel"])
def test_the_kind_comes_from_the_projector_not_the_architecture(
    kind: str, architecture: str, tmp_path: Path, target: Target
) -> None:
    model = written(tmp_path, kind)
    edit_config(tmp_path, lambda raw: raw.update(architectures=[architecture]))
    drafter = load_drafter(str(tmp_path), target)
    assert drafter.kind == kind
    assert_same_weights(drafter, model)


def test_older_spellings_are_understood(tmp_path: Path, target: Target) -> None:
    model = written(tmp_path, "domino")

    def nest(tensors: dict[str, Tensor]) -> None:
        for key in [k for k in tensors if k.startswith(("prefix_gru", "embed_proj"))]:
            tensors[f"logit_head.{key}"] = tensors.pop(key)

    edit_tensors(tmp_path, nest)
    edit_config(tmp_path, lambda raw: raw["dflash_config"].update(projector_type="causal_v5"))
    edit_config(tmp_path, lambda raw: raw["dflash_config"].update(block_size=raw.pop("block_size")))
    drafter = load_drafter(str(tmp_path), target)
    assert drafter.config.block_size == 6
    assert_same_weights(drafter, model)


def test_settings_that_may_be_left_out_have_the_published_values(tmp_path: Path, target: Target) -> None:
    written(tmp_path, "domino", shift=False)

    def strip(raw: dict[str, Any]) -> None:
        for key in ("architectures", "layer_types", "num_target_layers", "hidden_act", "attention_bias"):
            del raw[key]
        del raw["dflash_config"]["pure_draft_prefix_len"], raw["dflash_config"]["shift_label"]

    edit_config(tmp_path, strip)
    drafter = load_drafter(str(tmp_path), target)
    assert drafter.head is not None and drafter.head.uncorrected == 1
    assert not drafter.config.shift_label
    raw = published("dflash")
    del raw["dflash_config"]["target_layer_ids"]
    assert parse_config(raw, 36).target_layer_ids == (1, 9, 17, 25, 33)
    assert parse_config({**raw, "num_hidden_layers": 1, "layer_types": None}, 36).target_layer_ids == (18,)


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_scaled_rotary_positions_are_read_under_every_name_and_written_back(name: str, key: str) -> None:
    raw = published("dflash") | {name: {key: "linear", "factor": 4.0}}
    config = parse_config(raw, 36)
    frequencies = DraftModel(drafter_config(50, 32, "dflash", False)).rotary  # unscaled, theta 500
    assert frequencies.inv_freq[0] == 1.0
    for parsed in (config, parse_config(json.loads(json.dumps(config_json(config, 36))), 36)):
        with torch.device("cpu"):
            got = type(frequencies)(parsed.backbone).inv_freq
        wanted = torch.tensor([1e6 ** (-2 * i / 128) / 4 for i in range(64)])
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_positions_turn_as_finely_in_every_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    # Frequencies rounded to bfloat16 would be off by radians after a few hundred tokens.
    target = target_of(tiny_model(dtype=dtype))
    written(tmp_path, "dflash")
    drafter = load_drafter(str(tmp_path), target)
    assert {weight.dtype for weight in drafter.model.parameters()} == {dtype}
    wanted = torch.tensor([500.0 ** (-2 * i / 8) for i in range(4)])
    torch.testing.assert_close(drafter.model.rotary.inv_freq.float(), wanted, rtol=1e-6, atol=0)


def test_saving_again_replaces_and_leaves_no_part_behind(tmp_path: Path, target: Target) -> None:
    written(tmp_path, "domino", seed=0)
    model = written(tmp_path, "domino", seed=1)
    assert_same_weights(load_drafter(str(tmp_path), target), model)
    assert not list(tmp_path.glob("*.part"))


def test_saving_fewer_shards_over_more_is_read_as_the_new_ones(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "SHARD_BYTES", 12_000)
        written(tmp_path, "domino", seed=0)
    model = written(tmp_path, "domino", seed=1)
    assert_same_weights(load_drafter(str(tmp_path), target), model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", WEIGHTS]


def test_a_save_that_broke_off_leaves_nothing_that_loads(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "SHARD_BYTES", 12_000)
    written(tmp_path, "domino", seed=0)

    real = Path.write_bytes

    def full_disk(path: Path, data: bytes) -> int:
        if "00002" in path.name:
            raise OSError(errno.ENOSPC, "no space left")
        return real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full_disk)
        with pytest.raises(InputError, match="00002.*no space left"):
            written(tmp_path, "domino", seed=1)
    assert "config.json" in refused_line(tmp_path, target)  # and no mixture of two drafters


# --- Drafters that are refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "key", "value", "words"),
    [
        ("dflash_config", "causal", True, "unknown keys in dflash_config: causal"),
        ("dflash_config", "projector_type", "mamba", "projector_type 'mamba'"),
        ("dflash_config", "projector_type", ["domino"], "projector_type"),
        ("dflash_config", "projector_type", None, "without a projector_type"),
        ("dflash_config", "mask_token_id", 50, "mask_token_id 50 is outside the embedding of 50 rows"),
        ("dflash_config", "mask_token_id", -1, "mask_token_id"),
        ("dflash_config", "mask_token_id", "2", "mask_token_id"),
        ("dflash_config", "mask_token_id", 2.0, "mask_token_id"),
        ("dflash_config", "mask_token_id", True, "mask_token_id"),
        ("dflash_config", "mask_token_id", None, "mask_token_id"),
        ("dflash_config", "target_layer_ids", [0, 2], "target_layer_ids .0, 2.: at most 1"),
        ("dflash_config", "target_layer_ids", [], "target_layer_ids"),
        ("dflash_config", "target_layer_ids", [1, 0], "target_layer_ids"),
        ("dflash_config", "target_layer_ids", ["0", "1"], "target_layer_ids"),
        ("dflash_config", "target_layer_ids", "01", "target_layer_ids"),
        ("dflash_config", "target_layer_ids", 1, "target_layer_ids"),
        ("dflash_config", "target_layer_ids", [False, True], "target_layer_ids"),
        ("dflash_config", "shift_label", "false", "shift_label"),
        ("dflash_config", "shift_label", 1, "shift_label"),
        ("dflash_config", "emb_dim", None, "emb_dim"),
        ("dflash_config", "emb_dim", 0, "emb_dim"),
        ("dflash_config", "emb_dim", "7", "emb_dim"),
        ("dflash_config", "emb_dim", 8, "embed_proj.0.weight is .7, 37., the config wants .8, 37."),
        ("dflash_config", "gru_hidden_dim", -5, "gru_hidden_dim"),
        ("dflash_config", "gru_hidden_dim", 10**30, "gru_hidden_dim"),
        ("dflash_config", "pure_draft_prefix_len", -1, "pure_draft_prefix_len"),
        ("dflash_config", "pure_draft_prefix_len", 0.5, "pure_draft_prefix_len"),
        ("dflash_config", "block_size", 7, "block_size"),
        ("", "block_size", "6", "block_size"),
        ("", "block_size", 1, "block_size"),
        ("", "block_size", [6], "block_size"),
        ("", "block_size", None, "block_size"),
        ("", "architectures", ["DFlash2DraftModel"], "architecture DFlash2DraftModel"),
        ("", "architectures", "DFlashDraftModel", "architectures"),
        ("", "architectures", [["DFlashDraftModel"]], "architecture"),
        ("", "vocab_size", 51, "vocab_size is 51, target toy has 50"),
        ("", "vocab_size", 40, "vocab_size is 40, target toy has 50"),
        ("", "hidden_size", 64, "hidden_size is 64, target toy has 32"),
        ("", "hidden_size", "32", "hidden_size"),
        ("", "num_target_layers", 4, "num_target_layers is 4, target toy has 3"),
        ("", "num_target_layers", "3", "num_target_layers"),
        ("", "num_hidden_layers", 3, "missing tensors: layers.2"),
        ("", "num_hidden_layers", 1, "unexpected tensors: layers.1"),
        ("", "num_hidden_layers", 0, "num_hidden_layers"),
        ("", "num_hidden_layers", 10**9, "num_hidden_layers"),
        ("", "num_attention_heads", 0, "num_attention_heads"),
        ("", "num_attention_heads", True, "num_attention_heads"),
        ("", "num_attention_heads", 6, "q_proj.weight"),
        ("", "num_key_value_heads", 3, "key-value heads"),
        ("", "num_key_value_heads", -2, "num_key_value_heads"),
        ("", "head_dim", 7, "heads of size 7"),
        ("", "head_dim", 2**24, "head_dim|weight"),
        ("", "intermediate_size", 25, "gate_proj|up_proj|down_proj"),
        ("", "intermediate_size", 2**24, "intermediate_size|_proj"),
        ("", "rms_norm_eps", "1e-6", "rms_norm_eps"),
        ("", "rms_norm_eps", -1.0, "rms_norm_eps"),
        ("", "rope_theta", 0, "rope_theta"),
        ("", "rope_theta", "10000", "rope_theta"),
        ("", "rope_scaling", "linear", "rotary"),
        ("", "rope_scaling", {"type": "dynamic", "factor": 2.0}, "rope_type 'dynamic'"),
        ("", "rope_scaling", {"rope_type": "linear"}, "rope|factor"),
        ("", "rope_scaling", {"rope_type": "yarn", "factor": "2"}, "rope|factor|config.json"),
        ("", "attention_bias", True, "attention_bias"),
        ("", "hidden_act", "gelu", "activations"),
        ("", "layer_types", ["full_attention", "sliding_attention"], "sliding"),
        ("", "layer_types", "full_attention", "layer_types"),
        ("", "use_sliding_window", True, "sliding"),
        ("", "dflash_config", None, "no dflash_config"),
        ("", "dflash_config", [], "no dflash_config"),
        ("", "max_position_embeddings", "many", "max_position_embeddings"),
    ],
)
def test_a_config_that_does_not_fit_is_refused_by_name(
    place: str, key: str, value: Any, words: str, tmp_path: Path, target: Target
) -> None:
    written(tmp_path, "domino")
    edit_config(tmp_path, lambda raw: (raw[place] if place else raw).update({key: value}))
    with pytest.raises(InputError, match=words) as refused:
        load_drafter(str(tmp_path), target)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "block_size"])
def test_a_config_that_lacks_a_size_is_refused_by_name(key: str, tmp_path: Path, target: Target) -> None:
    written(tmp_path, "dflash")
    edit_config(tmp_path, lambda raw: raw.pop(key))
    assert key in refused_line(tmp_path, target)


@pytest.mark.parametrize("key", ["emb_dim", "gru_hidden_dim", "mask_token_id"])
def test_a_head_that_lacks_a_size_is_refused_by_name(key: str, tmp_path: Path, target: Target) -> None:
    written(tmp_path, "domino")
    edit_config(tmp_path, lambda raw: raw["dflash_config"].pop(key))
    assert key in refused_line(tmp_path, target)


def test_a_mask_id_without_a_row_in_the_targets_embedding_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    short = torch.nn.Embedding(40, 32)  # fewer rows than the output has
    model.set_input_embeddings(short)
    written(tmp_path, "dflash")
    edit_config(tmp_path, lambda raw: raw["dflash_config"].update(mask_token_id=45))
    assert "mask_token_id 45 is outside the target's 40 embedding rows" in refused_line(tmp_path, target_of(model))


@pytest.mark.parametrize("text", ["{", "", "[1]", '"text"', "null", "\ufffd\x00"])
def test_a_broken_config_is_refused(text: str, tmp_path: Path, target: Target) -> None:
    written(tmp_path, "dflash")
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in refused_line(tmp_path, target)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{")
    assert "config.json" in refused_line(tmp_path, target)


def test_tensors_missing_extra_or_of_another_shape_are_refused_by_name(tmp_path: Path, target: Target) -> None:
    edits: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
        (lambda t: t.pop("fc.weight"), "1 missing tensors: fc.weight"),
        (lambda t: t.pop("prefix_gru.weight_hh_l0"), "1 missing tensors: prefix_gru.weight_hh_l0"),
        (lambda t: t.update({"prefix_gru.bias_ih_l0": torch.ones(15)}), "1 unexpected tensors: prefix_gru.bias_ih_l0"),
        (lambda t: t.update({"mask_embedding": torch.ones(32)}), "unexpected tensors: mask_embedding"),
        (lambda t: t.update({"norm.weight": torch.ones(31)}), r"norm.weight is .31., the config wants .32."),
        (lambda t: t.update({"norm.weight": torch.ones(32, 1)}), r"norm.weight is .32, 1."),
        (lambda t: t.update({f"model.{k}": t.pop(k) for k in list(t)}), "29 missing tensors: .* ..."),
        (lambda t: t.clear(), "missing tensors"),
    ]
    for number, (edit, words) in enumerate(edits):
        folder = tmp_path / str(number)
        written(folder, "domino")
        edit_tensors(folder, edit)
        with pytest.raises(InputError, match=words) as refused:
            load_drafter(str(folder), target)
        assert "\n" not in str(refused.value) and str(folder) in str(refused.value)


def test_a_dflash_drafter_with_a_head_in_its_weights_is_refused(tmp_path: Path, target: Target) -> None:
    written(tmp_path, "domino")
    edit_config(tmp_path, lambda raw: raw.update(dflash_config={"mask_token_id": 2, "target_layer_ids": [0, 1]}))
    assert "4 unexpected tensors: embed_proj.0.weight" in refused_line(tmp_path, target)


def test_a_drafter_of_another_target_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "dflash")
    assert "vocab_size is 50, target toy has 60" in refused_line(tmp_path, target_of(tiny_model(vocabulary=60)))


def test_only_safetensors_are_read(tmp_path: Path, target: Target) -> None:
    model = written(tmp_path, "dflash")
    (tmp_path / WEIGHTS).unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert "only safetensors" in refused_line(tmp_path, target)


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "folder"])
def test_damaged_weights_are_refused_by_file(damage: str, tmp_path: Path, target: Target) -> None:
    written(tmp_path, "dflash")
    path = tmp_path / WEIGHTS
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes({"empty": b"", "cut": whole[:-50], "garbage": b"\x00\xff" * 500}[damage])
    assert WEIGHTS in refused_line(tmp_path, target)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}', '{"weight_map": {"a": ["b"]}}']
)
def test_a_broken_shard_index_is_refused(text: str, tmp_path: Path, target: Target) -> None:
    written(tmp_path, "dflash")
    (tmp_path / INDEX).write_text(text)
    assert INDEX in refused_line(tmp_path, target)


def test_a_missing_shard_is_refused_by_name(tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "SHARD_BYTES", 12_000)
    written(tmp_path, "domino")
    gone = sorted(tmp_path.glob("model-00002-*"))[0]
    gone.unlink()
    assert gone.name in refused_line(tmp_path, target)


def test_a_shard_index_cannot_point_out_of_its_folder(tmp_path: Path, target: Target) -> None:
    written(tmp_path / "inner", "dflash")
    (tmp_path / "inner" / WEIGHTS).rename(tmp_path / "other.safetensors")
    keys = load_file(tmp_path / "other.safetensors")
    index = {"weight_map": dict.fromkeys(keys, "../other.safetensors")}
    (tmp_path / "inner" / INDEX).write_text(json.dumps(index))
    assert "missing" in refused_line(tmp_path / "inner", target)


def test_a_folder_without_a_drafter_is_refused(tmp_path: Path, target: Target) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert str(folder) in refused_line(folder, target)


# --- Targets -----------------------------------------------------------------------------------------------------


def saved_target(folder: Path, family: str = "llama", chat: bool = False, tied: bool = False) -> Path:
    tiny_model(family, vocabulary=258, tied=tied).save_pretrained(folder)
    byte_tokenizer(chat).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_target_comes_out_of_a_folder(family: str, tied: bool, tmp_path: Path) -> None:
    target = load_target(str(saved_target(tmp_path, family, chat=tied, tied=tied)), device="cpu")
    model = tiny_model(family, vocabulary=258, tied=tied)
    assert (target.num_layers, target.hidden_size, target.vocab_size) == (3, 32, 258)
    assert (target.max_positions, target.dtype, target.eos_ids) == (512, torch.float32, frozenset())
    template = "<s>user: é<|end|><s>assistant: " if tied else "é"
    ids = target.encode([{"role": "user", "content": "é"}])
    assert byte_tokenizer().decode(ids) == template
    drafter = random_drafter(target, "domino", True)
    result = generate("é", target, drafter, budget=12, max_new_tokens=10)
    assert result.token_ids == greedy(model, ids, 10)
    assert result.text == byte_tokenizer().decode(result.token_ids, skip_special_tokens=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_target_is_loaded_in_the_precision_asked_for(dtype: torch.dtype, tmp_path: Path) -> None:
    assert load_target(str(saved_target(tmp_path)), device="cpu", dtype=dtype).dtype == dtype


def rewrite(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def update(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: edit_config(folder, lambda raw: raw.update(changes))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda folder: (folder / "config.json").unlink(), "can't be loaded"),
        (rewrite("config.json", "{"), "JSON"),
        (rewrite("config.json", "[]"), "can't be loaded"),
        (rewrite("tokenizer.json", "{}"), "can't be loaded"),
        (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS),
        (rewrite(WEIGHTS, "garbage" * 9), "header"),
        (lambda folder: edit_tensors(folder, lambda t: t.pop("lm_head.weight")), "1 missing tensors: lm_head.weight"),
        (update(hidden_size="32"), "hidden_size"),
        (update(hidden_size=-32), "-32"),
        (update(num_attention_heads=0), "can't be loaded"),
        (update(model_type="nothing"), "nothing"),
        (update(layer_types=["full_attention", "sliding_attention", "full_attention"]), "sliding_attention"),
    ],
    ids=range(12),
)
def test_a_target_that_cannot_serve_is_refused_in_one_line(
    edit: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    edit(saved_target(tmp_path, "qwen3"))
    with pytest.raises(InputError, match=words) as refused:
        load_target(str(tmp_path), device="cpu")
    assert "\n" not in str(refused.value) and str(tmp_path) in str(refused.value)


def test_pickled_weights_of_a_target_are_not_read(tmp_path: Path) -> None:
    saved_target(tmp_path)
    torch.save(load_file(tmp_path / WEIGHTS), tmp_path / "pytorch_model.bin")
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(InputError, match=WEIGHTS):
        load_target(str(tmp_path), device="cpu")


def test_a_target_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere") as refused:
        load_target(str(tmp_path / "nowhere"), device="cpu")
    assert "\n" not in str(refused.value)
