"""Random configs near the ones of family_configs.py, for `families.py --draws`."""

from family_configs import PLAIN, SIZES, YARN

SHAPES = [(16, 2, 1), (24, 4, 2), (32, 4, 1), (32, 4, 4), (40, 4, 2), (48, 6, 3)]  # hidden size, heads, heads of keys
FIXED = {"parallel_attn", "multi_query", "new_decoder_architecture", "enable_moe_block", "attention_k_eq_v", "use_double_wide_mlp", "use_sliding_window"}
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_k", "top_k_experts")
SCALED = ("multiplier", "scal", "softcapping", "clip_qkv", "swiglu_limit", "attn_scale", "scale_emb", "scale_depth")


def draw_rotary(random, old):
    if "rope_type" not in old:  # one for each kind of layer
        return {key: draw_rotary(random, value) for key, value in old.items()}
    new = old | {"rope_theta": random.choice([50.0, 500.0, 10000.0])}
    if old["rope_type"] != "default" or len(old.keys() - PLAIN.keys() - {"partial_rotary_factor"}):
        return new
    return new | random.choice([{}, {}, {"rope_type": "linear", "factor": 3.0}, {key: YARN[key] for key in ("rope_type", "factor", "original_max_position_embeddings")}])


def draw(random, spec):
    """Sizes, switches, multipliers, windows, the order of layers and rotary settings are other ones. Not every draw is a model that its class can make."""
    config = SIZES | {key: value for key, value in spec.items() if key != "type"}
    hidden, heads, keys = random.choice(SHAPES)
    if config["num_key_value_heads"] == config["num_attention_heads"]:
        keys = heads
    config |= dict(hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=keys)
    for key, value in list(config.items()):
        if isinstance(value, bool):
            config[key] = value if key in FIXED else random.random() < 0.5
        elif key in ("intermediate_size", "moe_intermediate_size", "shared_intermediate_size", "ffn_hidden_size", "n_inner"):
            config[key] = random.randrange(5, 40)
        elif key in EPSILONS:
            config[key] = random.choice([1e-6, 1e-5, 1e-3])
        elif key in ("sliding_window", "attention_chunk_size") and value:
            config[key] = random.randrange(2, 9)
        elif key in CHOSEN:
            config[key] = random.randrange(1, min(config[name] for name in EXPERTS if name in config))
        elif isinstance(value, float) and any(word in key for word in SCALED):
            config[key] = value * random.choice([0.5, 0.8, 1.3, 2.0])
        elif key == "layer_types":
            config[key] = random.sample(value, len(value))
        elif key == "rope_parameters":
            config[key] = draw_rotary(random, value)
    if "mamba_n_heads" in config:
        config["mamba_d_head"] = config["mamba_expand"] * hidden // config["mamba_n_heads"]
    if "num_heads" in config:
        config["head_dim"] = config["expand"] * hidden // config["num_heads"]
    elif spec.get("head_dim"):
        config["head_dim"] = hidden // heads if spec["head_dim"] == 8 else random.choice([4, 8, 10, 12])
    return config
