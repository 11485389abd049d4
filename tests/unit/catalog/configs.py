"""The config.json of a small model."""

from typing import Any

SMALL_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 12,
    "num_attention_heads": 8, "vocab_size": 1000, "max_position_embeddings": 4096, "intermediate_size": 512,
}  # fmt: skip
