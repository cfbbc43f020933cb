"""Which values of rank_pattern and alpha_pattern, and which entries of target_modules, PEFT uses for each layer.

The functions are PEFT's own. They need nothing of PyTorch, so they are taken from PEFT's files without importing it.
"""

import ast
import importlib.util
import json
import pathlib
import re
import types
from typing import Optional, Sequence  # noqa: F401  (PEFT's signatures)

DATA = pathlib.Path(__file__).resolve().parent / "data"
PEFT = pathlib.Path(importlib.util.find_spec("peft").origin).parent


def functions(file, *names):
    found = {}
    for node in ast.parse((PEFT / file).read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name in names:
            exec(compile(ast.Module([node], []), file, "exec"), found | globals(), found)
    globals().update(found)


functions("utils/other.py", "get_pattern_key", "match_target_against_key")
functions("tuners/tuners_utils.py", "_ExcludedModule", "check_target_module_exists")

KINDS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
MODULES = [f"model.layers.{i}.{kind}" for i in (0, 1, 11) for kind in KINDS] + ["lm_head"]

PATTERNS = [
    {"layers.0.self_attn.q_proj": 16, "q_proj": 400},
    {"q_proj": 400, "layers.0.self_attn.q_proj": 16},
    {"model.layers.0.self_attn.q_proj": 16, "self_attn.q_proj": 3, "q_proj": 400, "v_proj": 5},
    {"v_proj": 5, "model.layers.1.self_attn.v_proj": 6, "layers.1.self_attn.v_proj": 7},
    {"1.mlp.up_proj": 2},
    {"attn.q_proj": 2, "proj": 3, "_proj": 4},
    {"self.attn.q_proj": 2, "layers.0": 3, "model": 4, "": 5},
    {"^model.layers.0.mlp.up_proj": 2, "^layers.0.mlp.up_proj": 3, "^up_proj": 4},
    {"^lm_head": 2, "lm_head": 3},
    {"lm.head": 2},
    {"..proj": 2, "......": 3},
]

TARGETS = [
    {"target_modules": ["q_proj", "v_proj"]},
    {"target_modules": ["self_attn.q_proj", "model.layers.1.mlp.up_proj", "proj"]},
    {"target_modules": "all-linear"},
    {"target_modules": "model.layers.0.self_attn.q_proj"},
    {"target_modules": "q_proj"},
    {"target_modules": ["q_proj", "lm_head"], "exclude_modules": ["layers.0.self_attn.q_proj"]},
    {"target_modules": ["q_proj", "lm_head"], "exclude_modules": ["lm_head", "proj"]},
    {"target_modules": ["q_proj", "lm_head"], "layers_to_transform": [0, 11]},
    {"target_modules": ["q_proj", "model.layers.1.mlp.up_proj"], "layers_to_transform": 11},
    {"target_modules": ["up_proj"], "layers_to_transform": []},
    {"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": "layers"},
    {"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": ["h", "model.layers"]},
    {"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": "ayers"},
    {"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": ["h"]},
    {"target_modules": ["up_proj"], "layers_to_transform": [1], "layers_pattern": ""},
]


def targeted(config):
    if config["target_modules"] == "all-linear":  # PEFT replaces it by the linear layers, but not the head
        return MODULES[:-1]
    found = [(module, check_target_module_exists(types.SimpleNamespace(**config), module)) for module in MODULES]
    return [module for module, hit in found if hit and not isinstance(hit, _ExcludedModule)]


def main():
    # As LoraModel does: the value of the pattern, otherwise the usual one, here 1.
    patterns = [{"pattern": pattern, "values": [pattern.get(get_pattern_key(pattern.keys(), module), 1)
                                                for module in MODULES]} for pattern in PATTERNS]
    targets = [{"config": config, "modules": targeted(config)} for config in TARGETS]
    lists = {"modules": MODULES, "patterns": patterns, "targets": targets}
    text = ",\n".join(f'"{name}": [\n' + ",\n".join(map(json.dumps, all)) + "\n]" for name, all in lists.items())
    (DATA / "peft_patterns.json").write_text("{\n" + text + "\n}\n")


main()
