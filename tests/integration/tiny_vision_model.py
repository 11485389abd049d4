"""Runs in an environment with transformers and Pillow: makes a tiny LLaVA with random weights.

    python tiny_vision_model.py TEXT_MODEL FOLDER

It has the tokenizer of TEXT_MODEL and one token more, ``<image>``. A picture becomes 32 x 32 pixels in
patches of 8, so 16 tokens. transformers and vLLM serve it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

IMAGE = "<image>"
SIDE, PATCH = 32, 8
TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}"
    "{% endfor %}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)


def main(text_model: Path, folder: Path) -> None:
    hub: Any = importlib.import_module("transformers")
    importlib.import_module("torch").manual_seed(0)
    tokenizer = hub.PreTrainedTokenizerFast.from_pretrained(text_model)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
    text = hub.LlamaConfig(
        vocab_size=len(tokenizer) + 63,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    vision = hub.CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=PATCH,
    )
    config = hub.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=(SIDE // PATCH) ** 2,
        vision_feature_layer=-1,
    )
    hub.LlavaForConditionalGeneration(config).float().save_pretrained(folder)
    _name_as_published(folder / "model.safetensors")
    pixels = hub.CLIPImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}
    )
    processor = hub.LlavaProcessor(
        pixels,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    )
    processor.save_pretrained(folder)


def _name_as_published(file: Path) -> None:
    """Gives the weights of the vision tower their names in published models, which vLLM expects."""
    tensors: Any = importlib.import_module("safetensors.torch")
    weights = {
        name.replace("vision_tower.", "vision_tower.vision_model."): weight
        for name, weight in tensors.load_file(file).items()
    }
    tensors.save_file(weights, file, metadata={"format": "pt"})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
