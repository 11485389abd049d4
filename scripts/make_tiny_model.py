"""Makes a tiny Llama on this machine: nothing is downloaded, the weights are random.

    python scripts/make_tiny_model.py .demo/tiny-llama
    python scripts/make_tiny_model.py .demo/tiny-qwen --tokenizer Qwen3-8B/tokenizer.json

It is for trying engines and for tests: what it says is noise, how it is served is real. 4 layers,
hidden size 256, 8 heads and 4 KV heads (so that tensor parallel sizes 1, 2 and 4 work), a
byte-level BPE tokenizer trained on text written here, a chat template. The same seed gives the same
bytes. With `--tokenizer` it has the tokenizer of another model, and as many embeddings. Needs numpy, safetensors and tokenizers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
SPECIAL = ["<|begin|>", "<|end|>", "<|pad|>"]
SPECIAL_NAMES = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
Config = Mapping[str, object]
CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "dtype": "float32",
}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message['role'] }}\n{{ message['content'] "
    "}}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
SYLLABLES = (
    "ka", "lo", "mi", "ne", "ru", "sa", "te", "vi", "do", "pa", "sho", "kri",
    "tan", "bel", "fur", "gim", "hol", "jas", "wen", "zor", "qui", "yel", "ost", "und",
)  # fmt: skip


def text(rng: np.random.Generator, sentences: int = 4000) -> list[str]:
    """Sentences of invented words, common ones often and rare ones seldom (Zipf), with numbers and
    punctuation.
    """
    words = ["".join(rng.choice(SYLLABLES, size=rng.integers(1, 5))) for _ in range(3000)]
    lines = []
    for _ in range(sentences):
        picked = [
            words[min(int(rank), len(words)) - 1]
            for rank in rng.zipf(1.2, size=rng.integers(4, 16))
        ]
        if rng.random() < 0.2:
            picked.append(str(rng.integers(0, 10000)))
        lines.append(
            " ".join(picked).capitalize() + str(rng.choice([".", "?", "!", ", and so on."]))
        )
    return lines


def tokenizer(rng: np.random.Generator) -> Tokenizer:
    """A byte-level BPE tokenizer: every text can be encoded, and decoding gives it back."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(text(rng), trainer)
    if made.get_vocab_size() != VOCABULARY:
        raise SystemExit(
            f"the tokenizer has {made.get_vocab_size()} tokens instead of {VOCABULARY}: not "
            "enough text"
        )
    return made


def unprintable(made: Tokenizer) -> list[int]:
    """Tokens that are no whole text of their own: special ones and pieces of a UTF-8 character."""
    return [
        token
        for token in range(made.get_vocab_size())
        if not (piece := made.decode([token])) or "\ufffd" in piece
    ]


def weights(
    rng: np.random.Generator, never: list[int], config: Config = CONFIG
) -> dict[str, NDArray[np.float32]]:
    """Random weights in the names of LlamaForCausalLM; greedy or sampled, the tokens ``never`` do
    not come.

    Channel 0 of the residual stream is a constant that no layer writes to, and the output head
    reads it with a large negative weight for those tokens. So every answer has the length that was
    asked for, and every token is a text.
    """
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_key_value_heads",
        "head_dim",
    )
    hidden, inner, layers, kv_heads, head_dim = (int(str(config[name])) for name in names)
    kv = kv_heads * head_dim

    def matrix(rows: int, columns: int, silent_channel: bool = False) -> NDArray[np.float32]:
        made = rng.normal(0, 0.05, size=(rows, columns)).astype(np.float32)
        if silent_channel:
            made[0] = 0
        return made

    out = {"model.norm.weight": np.ones(hidden, np.float32)}
    for layer in range(layers):
        name = f"model.layers.{layer}."
        out |= {
            name + "input_layernorm.weight": np.ones(hidden, np.float32),
            name + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
            name + "self_attn.q_proj.weight": matrix(hidden, hidden),
            name + "self_attn.k_proj.weight": matrix(kv, hidden),
            name + "self_attn.v_proj.weight": matrix(kv, hidden),
            name + "self_attn.o_proj.weight": matrix(hidden, hidden, silent_channel=True),
            name + "mlp.gate_proj.weight": matrix(inner, hidden),
            name + "mlp.up_proj.weight": matrix(inner, hidden),
            name + "mlp.down_proj.weight": matrix(hidden, inner, silent_channel=True),
        }
    vocabulary = int(str(config["vocab_size"]))
    embeddings, head = matrix(vocabulary, hidden), matrix(vocabulary, hidden)
    embeddings[:, 0] = 1.0
    head[:, 0] = 0.0
    head[never, 0] = -100.0
    return out | {"model.embed_tokens.weight": embeddings, "lm_head.weight": head}


def make(
    folder: Path, seed: int = 0, config: Config = CONFIG, published: Path | None = None
) -> None:
    """Writes the whole model into ``folder``; ``config``: CONFIG, with other widths where they are
    wanted. ``published``: the tokenizer.json of another model, in place of a tokenizer made here.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    if published is None:
        made = tokenizer(rng)
    else:
        made = Tokenizer.from_file(str(published))
        made.add_special_tokens(SPECIAL)  # as text, the template's would join with a message's end
    config = {**config, "vocab_size": made.get_vocab_size()}
    made.save(str(folder / "tokenizer.json"))
    save_file(
        weights(rng, unprintable(made), config),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "model.safetensors").chmod(0o644)
    documents = {
        "config.json": config,
        "generation_config.json": {
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
            "do_sample": True,
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **SPECIAL_NAMES,
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to take")
    arguments = parser.parse_args()
    make(arguments.out, arguments.seed, published=arguments.tokenizer)
    print(arguments.out)


if __name__ == "__main__":
    main()
