"""Writes the tiny model (scripts/make_tiny_model.py) as GGUF files for llama.cpp: float32 and what
is asked of it.

    .engines/llama_cpp/bin/python scripts/make_tiny_gguf.py .demo/model .demo/gguf q8_0 q4_0

Names: model-f32.gguf, model-q8_0.gguf and so on; quantized ones are made by llama-quantize, which
stands beside that Python. ``--adapter FOLDER`` writes a LoRA adapter of that model, as PEFT keeps
it, as FOLDER.gguf of the same name. For Llama models with a byte-level BPE tokenizer that splits as GPT-2's
does; llama.cpp's own converter needs torch, and knows a tokenizer by its hash only. Needs gguf and
safetensors, which scripts/install_engines.py puts there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file


def read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def add_tokenizer(writer: gguf.GGUFWriter, config: dict[str, Any], folder: Path) -> None:
    tokenizer = read(folder, "tokenizer.json")
    if tokenizer["model"]["type"] != "BPE" or tokenizer["pre_tokenizer"]["type"] != "ByteLevel":
        raise SystemExit(f"{folder}: no byte-level BPE tokenizer, and this script knows no other")
    texts = {token: text for text, token in tokenizer["model"]["vocab"].items()}
    control = {one["id"] for one in tokenizer["added_tokens"] if one["special"]}
    texts |= {one["id"]: one["content"] for one in tokenizer["added_tokens"]}
    ids = range(config["vocab_size"])
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([texts.get(token, f"[unused {token}]") for token in ids])
    writer.add_token_types(
        [
            kinds.CONTROL if i in control else kinds.NORMAL if i in texts else kinds.UNUSED
            for i in ids
        ]
    )
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(read(folder, "tokenizer_config.json")["chat_template"])


def rotary_pairs(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """A query or key projection with rotary halves, as Hugging Face keeps them, in the pairs that
    llama.cpp rotates.
    """
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def write(folder: Path, out: Path) -> None:
    """The float32 file of a model folder."""
    config = read(folder, "config.json")
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_name(folder.resolve().name)
    add_shape(writer, config)
    add_tokenizer(writer, config, folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part in sorted(folder.glob("*.safetensors")):
        for name, weight in load_file(part).items():
            count = next((heads[kind] for kind in heads if name.endswith(f"{kind}.weight")), 0)
            made = weight.astype(np.float32)
            writer.add_tensor(
                names.get_name(name, try_suffixes=(".weight",)),
                rotary_pairs(made, count) if count else made,
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_adapter(model: Path, adapter: Path, out: Path) -> None:
    """A LoRA adapter as one file. llama.cpp multiplies its matrices by alpha / rank."""
    config, own = read(model, "config.json"), read(adapter, "adapter_config.json")
    writer = gguf.GGUFWriter(str(out), "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(own["lora_alpha"]))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in load_file(adapter / "adapter_model.safetensors").items():
        module, _, part = name.removeprefix("base_model.model.").rpartition(".lora_")
        tensor = names.get_name(f"{module}.weight", try_suffixes=(".weight",))
        made = weight.astype(np.float32)
        if part == "A.weight":
            writer.add_tensor(f"{tensor}.lora_a", made)
            continue
        count = heads.get(module.rpartition(".")[2], 0)
        writer.add_tensor(f"{tensor}.lora_b", rotary_pairs(made, count) if count else made)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", type=Path, help="folder with config.json, tokenizer.json and safetensors"
    )
    parser.add_argument("out", type=Path, help="folder to write to")
    parser.add_argument("quantizations", nargs="*", help="of llama-quantize: q8_0, q4_0, ...")
    parser.add_argument(
        "--adapter",
        type=Path,
        action="append",
        default=[],
        help="folder of a LoRA adapter of the model, with adapter_config.json and safetensors",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    plain = arguments.out / "model-f32.gguf"
    write(arguments.model, plain)
    for name in arguments.quantizations:
        program = Path(sys.executable).with_name("llama-quantize")
        subprocess.run(
            [program, plain, arguments.out / f"model-{name}.gguf", name],
            check=True,
            capture_output=True,
        )
    for adapter in arguments.adapter:
        write_adapter(arguments.model, adapter, arguments.out / f"{adapter.name}.gguf")


if __name__ == "__main__":
    main()
