"""Small tokenizers of every kind, and what the reference libraries make of texts with them.

Writes texts.json and expected.json in data/tokenizers/. With --train it makes the tokenizers there again first: training
is not deterministic (it depends on the order of hash tables), everything else is.
"""

import base64
import copy
import io
import json
import pathlib
import sys

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_texts import SENTENCES, broken, texts

OUT = pathlib.Path(__file__).resolve().parent / "data" / "tokenizers"
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "[CLS]", "[MASK]", "<pad>"]
CORPUS = [sentence for sentence in SENTENCES[:33] for _ in range(3)] + [
    "the cat sat on the mat and then there was the other one, which the man in the house had seen before",
    "training a model needs data, and data needs tokens; tokens need a tokenizer that is the same everywhere",
]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def parsed(tokenizer):
    return json.loads(tokenizer.to_str())


def train(tokenizer, kind, size, **options):
    trainer = {"bpe": trainers.BpeTrainer, "unigram": trainers.UnigramTrainer, "wordpiece": trainers.WordPieceTrainer,
               "wordlevel": trainers.WordLevelTrainer}[kind]
    tokenizer.train_from_iterator(CORPUS, trainer(vocab_size=size, show_progress=False, **options))
    return tokenizer


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    train(tokenizer, "bpe", 640, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), special_tokens=["<|endoftext|>"])
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.add_tokens([AddedToken("tokenizer", single_word=True), AddedToken("<left>", lstrip=True), AddedToken("<right>", rstrip=True),
                          AddedToken("Data Set", normalized=True), AddedToken("e\u0301t\u00e9", normalized=True),
                          AddedToken("<both>", lstrip=True, rstrip=True, normalized=False)])
    return parsed(tokenizer)


def byte_fallback():
    """As Llama 2's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    train(tokenizer, "bpe", 700, limit_alphabet=90, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)])
    tokenizer.pre_tokenizer = None
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    result = parsed(tokenizer)
    # The bytes were special only for the training.
    result["added_tokens"] = [token for token in result["added_tokens"] if not token["content"].startswith("<0x")]
    return result


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    train(tokenizer, "unigram", 1100, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", 2)])
    return parsed(tokenizer)


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    train(tokenizer, "wordpiece", 600, limit_alphabet=200, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return parsed(tokenizer)


def end_of_word():
    """As CLIP's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>", continuing_subword_prefix=""))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"),
                             "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, "bpe", 900, end_of_word_suffix="</w>", initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
          special_tokens=["<|startoftext|>", "<|endoftext|>"])
    start, end = tokenizer.token_to_id("<|startoftext|>"), tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.RobertaProcessing(("<|endoftext|>", end), ("<|startoftext|>", start), False, False)
    return parsed(tokenizer)


def prefixed():
    """Byte pairs over characters, with a prefix within words and unknown characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    train(tokenizer, "bpe", 500, limit_alphabet=60, continuing_subword_prefix="##", special_tokens=["[UNK]"])
    return parsed(tokenizer)


def word_level():
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(True)])
    train(tokenizer, "wordlevel", 250, special_tokens=["[UNK]"])
    return parsed(tokenizer)


def patches():
    """Changes of the files above, to see every part of the format."""
    def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
        return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}

    def sequence(*steps):
        return {"type": "Sequence", "pretokenizers": list(steps)}

    def byte_level_step(prefix=False, regex=False):
        return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": False, "use_regex": regex}

    for name, pattern in (("llama3", LLAMA3), ("qwen", QWEN)):
        yield f"byte_level/{name}", "byte_level", {"pre_tokenizer": sequence(split(pattern), byte_level_step())}
    yield "byte_level/prefix_space", "byte_level", {"pre_tokenizer": byte_level_step(True, True)}
    yield "byte_level/no_split", "byte_level", {"pre_tokenizer": byte_level_step(False, False)}
    yield "byte_level/ignore_merges", "byte_level", {"model.ignore_merges": True}
    yield "byte_level/mapped_in_the_middle", "byte_level", {
        "pre_tokenizer": sequence(byte_level_step(False, True), {"type": "FixedLength", "length": 3})}
    yield "byte_level/normalized", "byte_level", {"normalizer": {"type": "ByteLevel"}, "pre_tokenizer": None}
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield f"byte_level/{behavior}{'_inverted' if invert else ''}", "byte_level", {
                "pre_tokenizer": sequence(split(r"\s|[aeiou]", behavior, invert), byte_level_step())}
        yield f"byte_level/punctuation_{behavior}", "byte_level", {
            "pre_tokenizer": sequence({"type": "Punctuation", "behavior": behavior}, byte_level_step())}
    yield "byte_level/empty_matches", "byte_level", {"pre_tokenizer": sequence(split(r"x*"), byte_level_step())}
    yield "byte_level/text_pattern", "byte_level", {"pre_tokenizer": sequence(split("he", kind="String"), byte_level_step())}
    for name, pattern in (("words", r"\w+"), ("not_words", r"\W"), ("digits", r"\d+"), ("spaces", r"[\s\d]+"), ("not_spaces", r"\S+"),
                          ("lines", r"^.*$"), ("dots", r"(?m:a.*z)"), ("hex", r"\h+"), ("han", r"\p{Han}+|\p{Hiragana}+"),
                          ("marks", r"[\p{L}\p{M}]+"), ("case", r"\p{Lu}?\p{Ll}+(?i:'s)?")):
        yield f"byte_level/regex_{name}", "byte_level", {"pre_tokenizer": sequence(split(pattern), byte_level_step())}
    yield "byte_level/digits", "byte_level", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, byte_level_step())}
    yield "byte_level/delimiter", "byte_level", {"pre_tokenizer": sequence({"type": "CharDelimiterSplit", "delimiter": "e"}, byte_level_step())}
    yield "byte_level/whitespace", "byte_level", {"pre_tokenizer": sequence({"type": "Whitespace"}, byte_level_step())}
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"):
        yield f"byte_level/{form}", "byte_level", {"normalizer": {"type": form}}
    for left in (False, True):
        for right in (False, True):
            yield f"byte_level/strip_{left}_{right}", "byte_level", {
                "normalizer": {"type": "Strip", "strip_left": left, "strip_right": right}}
    for clean in (False, True):
        yield f"byte_level/bert_{clean}", "byte_level", {"normalizer": {
            "type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": not clean, "strip_accents": clean, "lowercase": not clean}}
    yield "byte_fallback/unknown", "byte_fallback", {"model.byte_fallback": False}
    yield "byte_fallback/unknown_each", "byte_fallback", {"model.byte_fallback": False, "model.fuse_unk": False}
    yield "byte_fallback/dropped", "byte_fallback", {"model.byte_fallback": False, "model.unk_token": None}
    for scheme in ("always", "first", "never"):
        for cut in (False, True):
            yield f"byte_fallback/metaspace_{scheme}_{cut}", "byte_fallback", {
                "normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut},
                "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}}
    yield "byte_fallback/gemma", "byte_fallback", {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": split(" ", "MergedWithPrevious", kind="String"),
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]}}
    yield "word_piece/cased", "word_piece", {"normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                                                            "strip_accents": None, "lowercase": False}}
    yield "word_piece/bert_processing", "word_piece", {
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False}}
    yield "end_of_word/decoder", "end_of_word", {"decoder": {"type": "Sequence", "decoders": [
        {"type": "BPEDecoder", "suffix": "</w>"}, {"type": "Replace", "pattern": {"Regex": "[aeiou]+"}, "content": "*"}]}}


def patched(base, patch):
    result = copy.deepcopy(base)
    for path, value in patch.items():
        place = result
        *inner, last = path.split(".")
        for name in inner:
            place = place[name]
        place[last] = value
    return result


def differing(value, usual):
    return None if value == usual else value


def expected(tokenizer, strings, offsets):
    """Ids with special tokens added and found, ids without both (None: the same), the text decoded from the first
    (None: the text itself), and without special tokens (None: the same)."""
    result = {"ids": [], "plain": [], "text": [], "skipped": []}
    if offsets:
        result["offsets"] = []
    for string in strings:
        tokenizer.encode_special_tokens = False
        encoding = tokenizer.encode(string)
        result["ids"].append(encoding.ids)
        text = tokenizer.decode(encoding.ids, skip_special_tokens=False)
        result["text"].append(differing(text, string))
        result["skipped"].append(differing(tokenizer.decode(encoding.ids, skip_special_tokens=True), text))
        if offsets:
            starts = [len(string[:i].encode()) for i in range(len(string) + 1)]
            result["offsets"].append([[starts[a], starts[b]] for a, b in encoding.offsets])
        tokenizer.encode_special_tokens = True
        result["plain"].append(differing(tokenizer.encode(string, add_special_tokens=False).ids, encoding.ids))
    return result


def sentence_piece(kind, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=900, model_type=kind,
                                             hard_vocab_limit=False, character_coverage=0.98, minloglevel=2, num_threads=1, **options)
    return model.getvalue()


def charsmap():
    """A small table of replacements, as SentencePiece compiles it."""
    rules = OUT / "rules.tsv"
    rules.write_text("".join(f"{' '.join(f'{ord(c):X}' for c in a)}\t{' '.join(f'{ord(c):X}' for c in b)}\n" for a, b in [
        ("ﬁ", "fi"), ("ﬂ", "fl"), ("½", "1/2"), ("Å", "A"), ("A\u030a", "Å"), ("\u00a0", " "), ("\u3000", " "), ("\t", " "), ("\u200b", ""),
        ("ｱ", "ア"), ("１", "1"), ("２", "2"), ("㎏", "kg"), ("❤\ufe0f", "♥"), ("e\u0301", "é"), ("…", "...")]))
    model = sentence_piece("unigram", normalization_rule_tsv=str(rules), byte_fallback=True)
    rules.unlink()
    return model


def precompiled(model):
    """The model in the other format, as transformers converts it."""
    read = sentencepiece_model_pb2.ModelProto.FromString(model)
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [
            {"id": i, "content": read.pieces[i].piece, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for i in range(3)],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(read.normalizer_spec.precompiled_charsmap).decode()},
        "pre_tokenizer": metaspace, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, metaspace]},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [[piece.piece, piece.score] for piece in read.pieces], "byte_fallback": True}}


def ranks(byte_level_model):
    """The tokens in tiktoken's form."""
    visible = {character: byte for byte, character in enumerate(byte_characters())}
    tokens = [token for token, _ in sorted(byte_level_model["vocab"].items(), key=lambda entry: entry[1])][1:]
    return b"".join(base64.b64encode(bytes(visible[c] for c in token)) + b" %d\n" % rank for rank, token in enumerate(tokens))


def train_all():
    model = charsmap()
    (OUT / "unigram.model").write_bytes(model)
    (OUT / "bpe.model").write_bytes(sentence_piece("bpe", normalization_rule_name="identity", byte_fallback=True, user_defined_symbols=["<|im_start|>"]))
    bases = {"byte_level": byte_level(), "byte_fallback": byte_fallback(), "unigram": unigram(), "word_piece": word_piece(),
             "end_of_word": end_of_word(), "prefixed": prefixed(), "word_level": word_level(), "precompiled": precompiled(model)}
    for name, base in bases.items():
        (OUT / f"{name}.json").write_text(json.dumps(base, ensure_ascii=False) + "\n")
    (OUT / "small.tiktoken").write_bytes(ranks(bases["byte_level"]["model"]))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    strings = texts(180, 7, SPECIALS + ["tokenizer", " <left> ", " <right>  ", "Data Set", "été", " <both>\n"])
    damaged = broken(40, 8)
    (OUT / "texts.json").write_text(json.dumps({"texts": strings, "broken": [data.hex() for data in damaged]}, ensure_ascii=False, indent=0) + "\n")
    if "--train" in sys.argv:
        train_all()
    names = ["byte_level", "byte_fallback", "unigram", "word_piece", "end_of_word", "prefixed", "word_level", "precompiled"]
    bases = {name: json.loads((OUT / f"{name}.json").read_text()) for name in names}
    results = {}
    for name, base in bases.items():
        tokenizer = Tokenizer.from_str(json.dumps(base))
        all_strings = strings + [data.decode("utf-8", "replace") for data in damaged]
        results[name] = {"file": f"{name}.json"} | expected(tokenizer, all_strings, name == "byte_level")
    for name, base, patch in patches():
        tokenizer = Tokenizer.from_str(json.dumps(patched(bases[base], patch)))
        results[name] = {"file": f"{base}.json", "patch": patch} | expected(tokenizer, strings[:56], False)

    for name in ("unigram", "bpe"):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(OUT / f"{name}.model"))
        data = [string.encode() for string in strings] + damaged
        ids = [processor.encode(text) for text in data]
        results[f"sentencepiece/{name}"] = {"file": f"{name}.model", "plain": ids}

    table = {base64.b64decode(token): int(rank) for token, rank in
             (line.split() for line in (OUT / "small.tiktoken").read_bytes().splitlines())}
    from tiktoken_ext import openai_public  # patterns only: nothing is downloaded
    patterns = {"gpt2": openai_public.r50k_pat_str, "llama3": LLAMA3, "plain": r"\p{L}+|\p{N}|\s|[^\s\p{L}\p{N}]+"}
    for name, pattern in patterns.items():
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=table, special_tokens={"<|a|>": len(table), "<|im_start|>": len(table) + 1})
        all_strings = strings + [data.decode("utf-8", "replace") for data in damaged]
        ids = [encoding.encode(string, allowed_special="all") for string in all_strings]
        plain = [encoding.encode(string, disallowed_special=()) for string in all_strings]
        results[f"tiktoken/{name}"] = {
            "file": "small.tiktoken", "options": {"pattern": name if name != "plain" else pattern, "special_tokens": ["<|a|>", "<|im_start|>"]},
            "ids": ids, "plain": [differing(a, b) for a, b in zip(plain, ids)],
            "text": [differing(encoding.decode(one), string) for one, string in zip(ids, all_strings)]}
    write(results)


def byte_characters():
    """GPT-2's alphabet, by byte."""
    shown = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(rest)) for byte in range(256)]


def flat(values):
    """Lists of ids, and of ranges, as texts."""
    return [" ".join(map(str, value)) if isinstance(value, list) and all(isinstance(one, int) for one in value)
            else " ".join(f"{a}-{b}" for a, b in value) if isinstance(value, list) else value for value in values]


def write(results):
    """One case in a line."""
    lines = []
    for name, case in results.items():
        short = {key: flat(value) if isinstance(value, list) else value for key, value in case.items()}
        lines.append(f"{json.dumps(name)}: {json.dumps(short, ensure_ascii=False)}")
    (OUT / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
