"""Saves tiny CLIP models with random weights and a tokenizer of single bytes, one for each seed: tiny_clip.py
FOLDER SEED...
"""

import sys
from pathlib import Path

import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

SIDE, TOKENS = 32, 16


def make(folder: Path, seed: int) -> None:
    start, end = "<|startoftext|>", "<|endoftext|>"
    merges = [("t", "h"), ("th", "e</w>"), ("a", "n"), ("an", "d</w>")]
    letters = sorted(ByteLevel.alphabet())
    pieces = [
        *letters,
        *(letter + "</w>" for letter in letters),
        *("".join(pair) for pair in merges),
        start,
        end,
    ]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tower = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "initializer_range": 0.2,
        "initializer_factor": 4.0,
    }
    text = {
        "vocab_size": len(vocabulary),
        "max_position_embeddings": TOKENS,
        "bos_token_id": vocabulary[start],
        "eos_token_id": vocabulary[end],
        "pad_token_id": vocabulary[end],
    }
    torch.manual_seed(seed)
    config = CLIPConfig(
        text_config={**tower, **text},
        vision_config={**tower, "image_size": SIDE, "patch_size": 8},
        projection_dim=24,
    )
    CLIPModel(config).save_pretrained(folder)
    CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=TOKENS).save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size).save_pretrained(folder)


if __name__ == "__main__":
    for seed in sys.argv[2:]:
        make(Path(sys.argv[1], seed), int(seed))
