"""A folder with a Mixtral of random weights, to measure how fast it writes (docs/performance-servers.md). Only Python itself is
needed.

    random_mixture.py FOLDER
"""

import json
import pathlib
import random
import struct
import sys

VOCAB, DIM, WIDTH, LAYERS, EXPERTS, HEADS, KEY_HEADS = 32000, 768, 1536, 7, 8, 12, 4


def bfloat16(count, generator):
    """Random elements: 256 different ones, from -0.05 to 0.05."""
    values = [struct.unpack("<I", struct.pack("<f", (byte - 127.5) / 127.5 * 0.05))[0] >> 16 for byte in range(256)]
    drawn = generator.randbytes(count)
    elements = bytearray(2 * count)
    elements[0::2] = drawn.translate(bytes(value & 255 for value in values))
    elements[1::2] = drawn.translate(bytes(value >> 8 for value in values))
    return elements


def shapes():
    head = DIM // HEADS
    found = {"model.embed_tokens.weight": (VOCAB, DIM), "model.norm.weight": (DIM,)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        found |= {name + "input_layernorm.weight": (DIM,), name + "post_attention_layernorm.weight": (DIM,)}
        for matrix, rows in (("q", DIM), ("k", KEY_HEADS * head), ("v", KEY_HEADS * head), ("o", DIM)):
            found[f"{name}self_attn.{matrix}_proj.weight"] = (rows, DIM)
        found[f"{name}block_sparse_moe.gate.weight"] = (EXPERTS, DIM)
        for expert in range(EXPERTS):
            own = f"{name}block_sparse_moe.experts.{expert}."
            found |= {own + "w1.weight": (WIDTH, DIM), own + "w3.weight": (WIDTH, DIM), own + "w2.weight": (DIM, WIDTH)}
    return found


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "dtype": "bfloat16", "vocab_size": VOCAB, "hidden_size": DIM,
        "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
        "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "sliding_window": None, "tie_word_embeddings": True}))
    generator = random.Random(3)
    header, end = {}, 0
    for name, shape in shapes().items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes().values():
            one_dim = len(shape) == 1
            file.write(b"\x80\x3f" * shape[0] if one_dim else bfloat16(shape[0] * shape[1], generator))


if __name__ == "__main__":
    main()
