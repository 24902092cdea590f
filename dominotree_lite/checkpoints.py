"""Targets and drafters by name: embedded, in a folder, or on the hub. Drafters are read strictly.

The format is the published one of DFlash and Domino: `config.json` with a `dflash_config` inside, and
safetensors with the parameter names of `drafter.DraftModel`. Whatever would be ignored silently (an unknown
key, an extra tensor) is refused with a line that names it: a misread drafter still runs, it only accepts
nothing. This file decodes nothing.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

from .drafter import DominoConfig, Drafter, DrafterConfig, DraftModel
from .embedded import EMBEDDED, fetch
from .errors import InputError
from .files import write_file, write_json
from .packed import is_packed, pack_drafter, pack_model
from .target import Target

DRAFTERS = Path(__file__).resolve().parent.parent / "data" / "drafters"
ARCHITECTURES = {"DFlashDraftModel", "DominoDraftModel"}
DFLASH_KEYS = {"mask_token_id", "target_layer_ids", "block_size"}
DOMINO_KEYS = {"projector_type", "emb_dim", "gru_hidden_dim", "pure_draft_prefix_len", "shift_label"}
LEGACY_PREFIX = "logit_head."  # older exports nest the head's tensors under it
ROTARY = ("default", "linear", "yarn", "llama3")  # frequencies of the others depend on the length of the text
MOST_LAYERS = 1000  # more is a mistake, and would be built before the tensors are looked at
SHARD_BYTES = 32 * 2**20
LINEAR = ("packed", "plain")


def load_target(
    name: str, device: str | None = None, dtype: torch.dtype | None = None, linear: str = "packed"
) -> Target:
    """A target by alias (`smollm2`), folder or hub id, on a device (CUDA where there is one).

    The dtype defaults to float32 on a CPU, where greedy output then equals plain decoding token by token, and
    bfloat16 on a GPU. `linear` "packed" lays out the weights of a float32 model on a CPU for oneDNN, which makes
    a tree's verification cheaper (packed.py); "plain" leaves PyTorch's own product. Raises InputError where the
    model can't be had or can't serve as a target.
    """
    if linear not in LINEAR:
        raise InputError(f"no linear layers of kind {linear!r}; there are {', '.join(LINEAR)}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or (torch.float32 if device == "cpu" else torch.bfloat16)
    source = fetch(name) if name in EMBEDDED else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation="sdpa",
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,
        )
        model, report = loaded[0].to(device), loaded[1]
    except Exception as error:  # a broken folder makes transformers raise anything, KeyError to ZeroDivisionError
        raise InputError(f"target {name}: can't be loaded ({_one_line(error)})") from error
    if missing := sorted(report["missing_keys"]):  # transformers would fill them with noise
        raise InputError(f"target {name}: {len(missing)} missing tensors: {_few(missing)}")
    if linear == "packed":
        pack_model(model)
    return Target(model, tokenizer, name)


def load_drafter(name: str, target: Target) -> Drafter:
    """A drafter by alias (a folder under data/drafters), folder or hub id, bound to its target.

    On the target's device, in its dtype, and packed if it is.

    Raises InputError with the line that says which key, tensor, shape or size does not fit.
    """
    folder = drafter_folder(name)
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / 'config.json'}: can't be read ({_one_line(error)})") from error
    config = parse_config(raw, target.num_layers)
    _check_fit(config, raw, target)
    try:
        with torch.device("meta"):
            model = DraftModel(config)
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise InputError(f"{folder / 'config.json'}: no drafter can be built of it ({_one_line(error)})") from error
    tensors = _read_tensors(folder)
    _check_tensors(tensors, {key: value.shape for key, value in model.state_dict().items()}, folder)
    model.to_empty(device=target.device)
    model.load_state_dict(tensors)
    model.to(target.dtype)
    # Its frequencies are not in the file, and rounded to bfloat16 they would turn distant positions wrongly.
    model.rotary = type(model.rotary)(config.backbone).to(target.device)
    drafter = Drafter(model, target.embedding, target.output, name)
    if is_packed(target.model):
        pack_drafter(drafter)
    return drafter


def save_drafter(model: DraftModel, folder: Path, num_target_layers: int) -> None:
    """Write a drafter in bfloat16 in the published format, weights in shards of at most 32 MiB.

    Each file is written whole or not at all; config.json, without which nothing loads, comes last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    tensors = {key: value.detach().to("cpu", torch.bfloat16) for key, value in model.state_dict().items()}
    shards = _shards(tensors)
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    if len(shards) == 1:
        names = ["model.safetensors"]
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard)
    for old in set(folder.glob("model*.safetensors*")) - {folder / name for name in names}:
        old.unlink()  # the index of more shards would be read in place of fewer
    if len(shards) > 1:
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": where})
    write_json(folder / "config.json", config_json(model.config, num_target_layers))


def default_layer_ids(num_target_layers: int, count: int) -> tuple[int, ...]:
    """The published rule for feature layers: evenly spaced from 1 to the last but two (DFlash's code)."""
    if count == 1:
        return (num_target_layers // 2,)
    return tuple(round(1 + i * (num_target_layers - 4) / (count - 1)) for i in range(count))


def parse_config(raw: dict[str, Any], num_target_layers: int) -> DrafterConfig:
    """A drafter's config.json, read strictly. Raises InputError naming the key."""
    block = raw.get("dflash_config") if isinstance(raw, dict) else None
    if not isinstance(block, dict):
        raise InputError("config.json: no dflash_config, so this is not a DFlash or Domino drafter")
    if strange := {str(name) for name in _list(raw, "architectures")} - ARCHITECTURES:
        raise InputError(f"config.json: architecture {', '.join(sorted(strange))} is not known here")
    if strange := set(block) - DFLASH_KEYS - DOMINO_KEYS:
        raise InputError(f"config.json: unknown keys in dflash_config: {', '.join(sorted(strange))}")
    backbone = _backbone(raw)
    layers = block.get("target_layer_ids")
    if layers is None:
        layers = default_layer_ids(num_target_layers, backbone.num_hidden_layers)
    elif not isinstance(layers, list) or any(type(layer) is not int for layer in layers):
        raise InputError(f"config.json: target_layer_ids must be a list of integers, got {layers!r}")
    shift_label = block.get("shift_label", False)
    if type(shift_label) is not bool:
        raise InputError(f"config.json: shift_label must be true or false, got {shift_label!r}")
    return DrafterConfig(
        backbone=backbone,
        mask_token_id=_integer(block, "mask_token_id", least=0),
        target_layer_ids=tuple(layers),
        block_size=_block_size(raw, block),
        shift_label=shift_label,
        head=_head(block),
    )


def config_json(config: DrafterConfig, num_target_layers: int) -> dict[str, Any]:
    """What `parse_config` reads, as other engines expect it."""
    backbone = config.backbone
    rope: dict[str, Any] = dict(backbone.rope_parameters or {})
    block: dict[str, Any] = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
    }
    if config.head is not None:
        block |= {
            "projector_type": "domino",
            "emb_dim": config.head.emb_dim,
            "gru_hidden_dim": config.head.gru_hidden_dim,
            "pure_draft_prefix_len": config.head.pure_draft_prefix_len,
            "shift_label": config.shift_label,
        }
    same = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"]
    same += ("num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps", "hidden_act")
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "layer_types": ["full_attention"] * backbone.num_hidden_layers,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": None if rope["rope_type"] == "default" else rope,
        **{key: getattr(backbone, key) for key in same},
        "num_target_layers": num_target_layers,
        "block_size": config.block_size,
        "dflash_config": block,
    }


# --- Reading -------------------------------------------------------------------------------------------------


def _integer(place: dict[str, Any], key: str, default: int | None = None, least: int = 1, most: int = 2**24) -> int:
    """A whole number of config.json; one without a default must be there."""
    value = place.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise InputError(f"config.json: no {key}")
    if type(value) is not int or not least <= value <= most:
        raise InputError(f"config.json: {key} must be an integer from {least} to {most}, got {value!r}")
    return value


def _positive(place: dict[str, Any], key: str, default: float) -> float:
    value = place.get(key, default)
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise InputError(f"config.json: {key} must be a positive number, got {value!r}")
    return float(value)


def _list(place: dict[str, Any], key: str) -> list[Any]:
    value = place.get(key) or []
    if not isinstance(value, list):
        raise InputError(f"config.json: {key} must be a list, got {value!r}")
    return value


def _backbone(raw: dict[str, Any]) -> Qwen3Config:
    if raw.get("attention_bias") or raw.get("hidden_act", "silu") != "silu":
        raise InputError("config.json: attention_bias and activations other than silu are not supported")
    if raw.get("use_sliding_window") or any(kind != "full_attention" for kind in _list(raw, "layer_types")):
        raise InputError("config.json: only layers of full_attention are supported, no sliding windows")
    hidden, heads = _integer(raw, "hidden_size"), _integer(raw, "num_attention_heads")
    groups = _integer(raw, "num_key_value_heads", heads)
    head_dim = _integer(raw, "head_dim", hidden // heads)
    if heads % groups or head_dim % 2 or head_dim == 0:
        raise InputError(f"config.json: {heads} heads of size {head_dim} over {groups} key-value heads can't be")
    try:
        return Qwen3Config(
            vocab_size=_integer(raw, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_integer(raw, "intermediate_size"),
            num_hidden_layers=_integer(raw, "num_hidden_layers", most=MOST_LAYERS),
            num_attention_heads=heads,
            num_key_value_heads=groups,
            head_dim=head_dim,
            max_position_embeddings=_integer(raw, "max_position_embeddings", 32768),
            rms_norm_eps=_positive(raw, "rms_norm_eps", 1e-6),
            rope_parameters=_rope(raw),
            attention_bias=False,
        )
    except Exception as error:  # transformers checks rotary settings itself, with errors of many kinds
        raise InputError(f"config.json: {_one_line(error)}") from error


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """Rotary settings under their older or newer names."""
    given = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise InputError(f"config.json: rotary settings must be an object, got {given!r}")
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in ROTARY:
        raise InputError(f"config.json: rope_type {kind!r} is not supported, only {', '.join(ROTARY)}")
    return {**given, "rope_type": kind, "rope_theta": _positive({**raw, **given}, "rope_theta", 10000.0)}


def _block_size(raw: dict[str, Any], block: dict[str, Any]) -> int:
    """Qwen3 checkpoints have it at the top, later ones in dflash_config."""
    found = [_integer(place, "block_size", least=2) for place in (raw, block) if "block_size" in place]
    if not found or found[0] != found[-1]:
        raise InputError(f"config.json: block_size must be given, and once: found {found}")
    return found[0]


def _head(block: dict[str, Any]) -> DominoConfig | None:
    kind = block.get("projector_type")
    if kind is None:
        if head_keys := set(block) & (DOMINO_KEYS - {"shift_label"}):
            raise InputError(f"config.json: {', '.join(sorted(head_keys))} without a projector_type")
        return None
    if kind not in ("domino", "causal_v5"):  # the second is an older name of the same head
        raise InputError(f"config.json: projector_type {kind!r} is not known here")
    return DominoConfig(
        emb_dim=_integer(block, "emb_dim"),
        gru_hidden_dim=_integer(block, "gru_hidden_dim"),
        pure_draft_prefix_len=_integer(block, "pure_draft_prefix_len", 1, least=0),
    )


def _check_fit(config: DrafterConfig, raw: dict[str, Any], target: Target) -> None:
    """Refuse a drafter that was made for another target."""
    facts = [
        ("vocab_size", config.backbone.vocab_size, target.vocab_size),
        ("hidden_size", config.backbone.hidden_size, target.hidden_size),
        ("num_target_layers", raw.get("num_target_layers", target.num_layers), target.num_layers),
    ]
    for name, ours, theirs in facts:
        if ours != theirs:
            raise InputError(f"the drafter's {name} is {ours}, target {target.name} has {theirs}")
    rows = len(target.embedding.get_parameter("weight"))
    if config.mask_token_id >= rows:
        raise InputError(f"mask_token_id {config.mask_token_id} is outside the target's {rows} embedding rows")
    # hidden_states of the last layer come normed, so its output is not a feature that can be read
    if config.target_layer_ids[-1] >= target.num_layers - 1:
        raise InputError(f"target_layer_ids {list(config.target_layer_ids)}: at most {target.num_layers - 2} here")


def _check_tensors(tensors: dict[str, Tensor], wanted: dict[str, torch.Size], folder: Path) -> None:
    for what, keys in (("missing", wanted.keys() - tensors), ("unexpected", tensors.keys() - wanted)):
        if keys:
            raise InputError(f"{folder}: {len(keys)} {what} tensors: {_few(sorted(keys))}")
    for key, shape in wanted.items():
        if tensors[key].shape != shape:
            raise InputError(f"{folder}: {key} is {list(tensors[key].shape)}, the config wants {list(shape)}")


def drafter_folder(name: str) -> Path:
    """Where a drafter's files lie. Raises InputError where there is none of this name."""
    for folder in (DRAFTERS / name, Path(name)):
        if (folder / "config.json").is_file():
            return folder
    if Path(name).exists() or name.count("/") != 1:
        known = sorted(p.name for p in DRAFTERS.glob("*") if p.is_dir())
        raise InputError(f"drafter {name}: no config.json there; shipped ones are {', '.join(known) or 'missing'}")
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"drafter {name}: can't be had from the hub ({_one_line(error)})") from error


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a single file or of the shards that the index names."""
    index = folder / "model.safetensors.index.json"
    try:
        mapped = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.exists() else {}
        names = sorted({Path(name).name for name in mapped.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index}: not a shard index ({_one_line(error)})") from error
    tensors: dict[str, Tensor] = {}
    for name in names or ["model.safetensors"]:
        path = folder / name
        if not path.is_file():
            raise InputError(f"{path}: missing; only safetensors weights are read")
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {key.removeprefix(LEGACY_PREFIX): file.get_tensor(key) for key in file.keys()}
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: corrupt ({_one_line(error)})") from error
    return tensors


# --- Writing -------------------------------------------------------------------------------------------------


def _shards(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors in order, a new shard wherever the next one would exceed the limit."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, tensor in tensors.items():
        bytes_ = tensor.numel() * tensor.element_size()
        if shards[-1] and size + bytes_ > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][key] = tensor.contiguous()
        size += bytes_
    return shards


def _write_shard(path: Path, shard: dict[str, Tensor]) -> None:
    data = save(shard, metadata={"format": "pt"})
    write_file(path, lambda part: part.write_bytes(data))


def _one_line(error: BaseException) -> str:
    text = textwrap.shorten(str(error), 200, placeholder=" ...")
    return text if " " in text else f"{type(error).__name__} {text}".strip()


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
