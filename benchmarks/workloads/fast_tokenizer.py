"""Writes a published tokenizer as tokenizer.json, which all engines read.

    .engines/vllm/bin/python benchmarks/workloads/fast_tokenizer.py FILE FOLDER

FILE: vocab.json (with merges.txt beside it), tokenizer.model (SentencePiece), *.tiktoken or Mistral's
tekken*.json. It needs transformers with sentencepiece, protobuf and tiktoken, as in vLLM's environment.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tiktoken_ext import openai_public
from transformers import GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

GPT2_SIZE = 50_257  # of the vocabularies with merges.txt, the one without Qwen's pattern


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    convert(options.file, options.folder)


def convert(file: Path, folder: Path) -> None:
    """Writes FOLDER/tokenizer.json. Raises SystemExit for a file of no known kind."""
    written = folder / "tokenizer.json"
    if file.name == "vocab.json":
        is_gpt2 = len(json.loads(file.read_text())) == GPT2_SIZE
        family = GPT2Tokenizer if is_gpt2 else Qwen2Tokenizer
        family.from_pretrained(file.parent).save_pretrained(folder)
    elif file.suffix == ".tiktoken":
        pattern = _pattern_of(file.stem)
        TikTokenConverter(str(file), pattern=pattern).converted().save(str(written))
    elif file.suffix == ".json":
        written.write_text(json.dumps(_of_tekken(json.loads(file.read_text()))))
    elif "model" in file.name:
        with tempfile.TemporaryDirectory() as name:
            shutil.copy(file, Path(name) / "tokenizer.model")
            llama = LlamaTokenizer.from_pretrained(name, add_bos_token=True)
            llama.save_pretrained(folder)
    else:
        raise SystemExit(f"{file}: give vocab.json, tokenizer.model, *.tiktoken or tekken*.json")


def _pattern_of(encoding: str) -> str:
    """How an encoding of OpenAI splits texts, by the name of its file. Its tokens are not needed
    for that, so none are fetched.
    """
    openai_public.load_tiktoken_bpe = lambda *_, **__: {}
    constructor = openai_public.ENCODING_CONSTRUCTORS[encoding]
    pattern = constructor()["pat_str"]
    assert isinstance(pattern, str)
    return pattern


def _of_tekken(tekken: dict[str, Any]) -> dict[str, Any]:
    """Its special tokens come before all others, whose ranks begin at 0."""
    config = tekken["config"]
    special = config["default_num_special_tokens"]
    tokens = tekken["vocab"][: config["default_vocab_size"] - special]
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "tekken.tiktoken"
        file.write_text("".join(f"{token['token_bytes']} {token['rank']}\n" for token in tokens))
        converter = TikTokenConverter(str(file), pattern=config["pattern"])
        converted: dict[str, Any] = json.loads(converter.converted().to_str())
    names = {f"<SPECIAL_{number}>": number for number in range(special)}
    ranks = converted["model"]["vocab"]
    converted["model"]["vocab"] = names | {token: rank + special for token, rank in ranks.items()}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    converted["added_tokens"] = [
        {"id": number, "content": content, "special": True} | flags
        for content, number in names.items()
    ]
    return converted


if __name__ == "__main__":
    main()
