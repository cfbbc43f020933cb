"""Ids of added tokens, as the libraries tokenizers and transformers give them.

Writes data/tokenizers/ids_of_added_tokens.json: folders of small tokenizers (tokenizer.json and files beside it), a text, and what
transformers makes of it. With --check it writes nothing and compares: run it so with another version of transformers.
"""

import json
import pathlib
import sys
import tempfile

import transformers
from transformers import PreTrainedTokenizerFast

OUT = pathlib.Path(__file__).resolve().parent / "data" / "tokenizers" / "ids_of_added_tokens.json"
TEXT = "q <a>x <b> <c><d>"


def token(content, number, **settings):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True} | settings


def beside(content, **settings):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} | settings


def object_of(content, **settings):
    return {"__type": "AddedToken", "content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False} | settings


def cases():
    """Name, added tokens of tokenizer.json, further tokens of its vocabulary, files beside it."""
    a, b, c = token("<a>", 256), token("<b>", 257), token("<c>", 258)
    yield "in order", [a, b, c], {}, {}
    yield "a gap", [a, token("<b>", 300), token("<c>", 301)], {}, {}
    yield "out of order", [token("<a>", 258), b, token("<c>", 256)], {}, {}
    yield "not sorted", [c, a, b], {}, {}
    yield "twice", [a, b, token("<a>", 258), c], {}, {}
    yield "the same id twice", [a, token("<b>", 256), token("<c>", 257)], {}, {}
    yield "another id than in the vocabulary", [a, b, c], {"<b>": 256}, {}
    yield "empty", [token("", 256), b, c], {}, {}
    yield "behind those of the vocabulary", [token("<a>", 257), b], {"<a>": 256, "zz": 257}, {}

    def config(**keys):
        return {"tokenizer_config.json": keys}
    yield "added_tokens_decoder", [a], {}, config(added_tokens_decoder={"257": beside("<b>"), "258": beside("<c>")})
    yield "added_tokens_decoder with a gap", [a], {}, config(added_tokens_decoder={"270": beside("<b>"), "260": beside("<c>")})
    yield "added_tokens_decoder sorted as numbers", [], {}, config(added_tokens_decoder={"1000": beside("<b>"), "260": beside("<c>")})
    yield "added_tokens_decoder with other settings", [a, b, c], {}, config(added_tokens_decoder={
        "256": beside("<a>"), "257": beside("<b>", special=False), "258": beside("<c>", lstrip=True)})
    yield "added_tokens_decoder makes one special", [token("<a>", 256, special=False)], {}, config(added_tokens_decoder={"256": beside("<a>")})
    yield "added_tokens_decoder with another id", [a, b, c], {}, config(added_tokens_decoder={"300": beside("<a>")})
    yield "eos_token alone", [a, b], {}, config(eos_token="<c>")
    yield "eos_token not special", [token("<a>", 256, special=False, lstrip=True)], {}, config(eos_token="<a>")
    yield "eos_token of the vocabulary", [], {"<a>": 256}, config(eos_token="<a>")
    yield "eos_token with settings", [a, b], {}, config(eos_token=object_of("<c>", lstrip=True))
    yield "eos_token with settings, known", [a], {}, config(eos_token=object_of("<a>", lstrip=True))
    yield "eos_token empty", [a], {}, config(eos_token="")
    yield "eos_token of added_tokens_decoder", [], {}, config(
        eos_token="<a>", added_tokens_decoder={"256": beside("<a>", special=False, lstrip=True)})
    yield "roles in their order", [], {}, config(unk_token="<a>", mask_token="<b>", cls_token="<c>", sep_token="<d>")
    yield "further special tokens", [], {}, config(bos_token="<c>", eos_token="<b>", pad_token="<a>", additional_special_tokens=["<d>"])
    yield "all of them", [], {}, config(eos_token="<b>", added_tokens_decoder={"257": beside("<c>")}, additional_special_tokens=["<d>"])
    yield "special tokens with names", [a], {}, config(extra_special_tokens={"image": "<d>", "audio": "<b>"})
    yield "special_tokens_map.json", [a], {}, {"special_tokens_map.json": {"eos_token": "<b>", "additional_special_tokens": ["<c>"]}}
    yield "special_tokens_map.json decides", [a, b], {}, config(eos_token="<a>") | {"special_tokens_map.json": {"eos_token": "<b>"}}
    yield "special_tokens_map.json removes", [a, b], {}, config(eos_token="<a>") | {"special_tokens_map.json": {"eos_token": None}}
    yield "special_tokens_map.json beside added_tokens_decoder", [a, b], {}, config(
        eos_token="<a>", added_tokens_decoder={"256": beside("<a>")}) | {"special_tokens_map.json": {"eos_token": "<b>"}}
    yield "added_tokens.json", [a], {}, {"added_tokens.json": {"<b>": 257, "<c>": 258}}
    yield "added_tokens.json with a gap", [a], {}, {"added_tokens.json": {"<c>": 299, "<b>": 300}}
    yield "added_tokens.json with a special token", [a], {}, config(eos_token="<c>") | {"added_tokens.json": {"<b>": 257, "<c>": 258}}
    yield "added_tokens.json beside added_tokens_decoder", [a], {}, config(
        added_tokens_decoder={"256": beside("<a>")}) | {"added_tokens.json": {"<b>": 257}}
    yield "added_tokens.json with known tokens", [token("<a>", 256, lstrip=True)], {}, {"added_tokens.json": {"<a>": 256}}


def result(added, vocab, files):
    files = {"tokenizer_config.json": {}} | files
    files["tokenizer_config.json"]["tokenizer_class"] = "PreTrainedTokenizerFast"
    files["tokenizer.json"] = {
        "version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "ByteFallback"},
        "model": {"type": "BPE", "byte_fallback": True, "merges": [], "vocab": {f"<0x{i:02X}>": i for i in range(256)} | vocab}}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (pathlib.Path(folder) / name).write_text(json.dumps(content))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    files["tokenizer.json"]["model"]["vocab"] = vocab  # the bytes are the same in all cases
    return {"files": files, "text": TEXT, "ids": ids, "skipped": tokenizer.decode(ids, skip_special_tokens=True),
            "eos": tokenizer.eos_token_id, "tokens": {name: number for name, number in sorted(tokenizer.get_vocab().items()) if number > 255}}


def main():
    results = {name: result(added, vocab, files) for name, added, vocab, files in cases()}
    if "--check" in sys.argv:
        stored = json.loads(OUT.read_text())
        wrong = [name for name in results if results[name] != stored.get(name)]
        print(f"transformers {transformers.__version__}: {len(results) - len(wrong)} of {len(results)} agree", *wrong, sep="\n")
        sys.exit(len(wrong) > 0)
    OUT.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in results.items()) + "\n}\n")


if __name__ == "__main__":
    main()
