"""Logits of GGUF files in llama.cpp beside those of the folders of transformers that they were exported from, in float32.

    check_gguf_logits.py BINDINGS FILE FOLDER [FILE FOLDER]...

BINDINGS: a folder with llama_cpp/llama_cpp.py and the other files of PyPI's llama_cpp_python, an empty llama_cpp/__init__.py
and the built libraries in llama_cpp/lib. Packages: requirements.txt and gguf. Prints, for each, the largest difference of 20
tokens, or that llama.cpp does not load the file.
"""

import pathlib
import sys
import tempfile

sys.path.insert(0, sys.argv[1])

import gguf  # noqa: E402
import llama_cpp.llama_cpp as llama  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

LENGTH = 20


def with_no_vocabulary(file, to):
    """llama.cpp reads no file without a tokenizer: the same file, which says that there is none."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(to, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "tokenizer.")) and name != "general.architecture":
            kind = field.types[0]
            of_a_list = {"sub_type": field.types[-1]} if kind == gguf.GGUFValueType.ARRAY else {}
            writer.add_key_value(name, field.contents(), kind, **of_a_list)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits_of(file, ids, vocab):
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(file).encode(), options)
    if not model:
        return None
    options = llama.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_threads = 64, 64, 1
    options.flash_attn_type, options.type_k, options.type_v = 0, 0, 0  # none; keys and values in float32
    context = llama.llama_init_from_model(model, options)
    batch = llama.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, i, 1, 0, 1
    assert llama.llama_decode(context, batch) == 0
    return np.stack([np.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), (vocab,)).copy() for i in range(len(ids))])


llama.llama_backend_init()
for file, folder in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager")
    vocab = model.config.vocab_size
    ids = [int(id) for id in np.random.default_rng(3).integers(0, vocab, LENGTH)]
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    with tempfile.TemporaryDirectory() as temporary:
        copy = pathlib.Path(temporary) / "model.gguf"
        with_no_vocabulary(file, copy)
        found = logits_of(copy, ids, vocab)
    print(folder, "is not loaded" if found is None else f"{np.abs(found - expected).max():.1e}")
