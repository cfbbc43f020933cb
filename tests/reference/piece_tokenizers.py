"""tokenizer.json of SentencePiece's pairs, as transformers makes them of a model that is trained here, and their ids.

Writes data/tokenizers/pieces.json: "prefixed" as of Llama 2, "plain" as of Gemma. Needs transformers 4 and sentencepiece.
"""

import io
import json
import pathlib

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import generate_merges

from tokenizer_texts import SENTENCES

RUNS = ("▁▁", "▁▁▁▁")  # Gemma lists such tokens as added ones, too
DATA = pathlib.Path(__file__).resolve().parent / "data" / "tokenizers"


def replace(a, b):
    return {"type": "Replace", "pattern": {"String": a}, "content": b}


def tokenizer(pieces, prefixed):
    vocab = {text: number for number, (text, _, _) in enumerate(pieces)}
    merges = generate_merges({text: number for text, number in vocab.items()}, {text: score for text, score, _ in pieces})
    spaces = replace(" ", "▁")
    steps = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}] + (
        [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else [])
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": vocab[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": kind in ("unknown", "control")} for text, _, kind in pieces
                         if kind in ("unknown", "control", "user_defined") or text in RUNS],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]} if prefixed else spaces,
        "pre_tokenizer": None if prefixed else {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": None, "decoder": {"type": "Sequence", "decoders": steps},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab,
                  "merges": [f"{a} {b}" for a, b in merges]}}


def main():
    trained = io.BytesIO()
    corpus = [sentence for sentence in SENTENCES[:33] for _ in range(3)] + [
        "the cat sat on the mat and then there was the other one, which the man in the house had seen before",
        "training a model needs data, and data needs tokens; tokens need a tokenizer that is the same everywhere"]
    SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=trained, vocab_size=1500, model_type="bpe", byte_fallback=True,
                               hard_vocab_limit=False, character_coverage=0.98, normalization_rule_name="identity",
                               remove_extra_whitespaces=False, control_symbols=["<|im_start|>"], minloglevel=2, num_threads=1)
    model = SentencePieceProcessor(model_proto=trained.getvalue())
    kinds = {"unknown": model.is_unknown, "control": model.is_control, "byte": model.is_byte, "unused": model.is_unused}
    pieces = []
    for number in range(model.get_piece_size()):
        text = model.id_to_piece(number)
        kind = next((name for name, test in kinds.items() if test(number)), "normal")
        pieces.append((text, model.get_score(number), kind))
    texts = json.loads((DATA / "texts.json").read_text())["texts"] + ["a" + " " * n + "b" + "\n" * (n // 2) + "c" for n in range(12)]
    lines = []
    for name, prefixed in (("prefixed", True), ("plain", False)):
        more = [] if prefixed else [(text, -5000.0 - i, "normal") for i, text in enumerate(RUNS)] + [("\n\n\n", 0.0, "user_defined")]
        made = tokenizer(pieces + more, prefixed)
        read = Tokenizer.from_str(json.dumps(made))
        ids = [" ".join(map(str, read.encode(text).ids)) for text in texts]
        lines.append(f"{json.dumps(name)}: {json.dumps({'tokenizer': made, 'texts': texts[-12:], 'ids': ids}, ensure_ascii=False)}")
    (DATA / "pieces.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
