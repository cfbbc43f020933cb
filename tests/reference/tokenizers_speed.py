"""The speed of Hugging Face's tokenizers and of ours, one thread each, on the same parts of the same text.

    python tokenizers_speed.py BENCH_TOKENIZE TOKENIZER_JSON TEXT

BENCH_TOKENIZE is build/release/bin/bench_tokenize. CPU time is compared, so that other programs disturb less; the two
take turns, and the best of three runs counts. The tokens must be as many.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from tokenizers import Tokenizer

PART = 20000


def parts_of(data):
    parts, at = [], 0
    while at < len(data):
        end = min(at + PART, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        parts.append(data[at:end].decode())
        at = end
    return parts


def reference(tokenizer, parts, size):
    best = 0.0
    for encode in (tokenizer.encode_batch, tokenizer.encode_batch_fast):
        start = time.process_time()
        tokens = sum(len(one.ids) for at in range(0, len(parts), 64) for one in encode(parts[at:at + 64], add_special_tokens=False))
        best = max(best, size / (time.process_time() - start))
    return best, tokens


def ours(program, file, text):
    run = subprocess.run([program, file, text, "--benchmark_format=json", "--benchmark_filter=^encode/"], capture_output=True, text=True, check=True)
    result = json.loads(run.stdout)["benchmarks"][0]
    return result["bytes_per_second"], int(result["tokens"])


def main():
    program, file, text = sys.argv[1:]
    data = pathlib.Path(text).read_bytes()
    parts = parts_of(data)
    tokenizer = Tokenizer.from_file(file)
    best = [0.0, 0.0]
    for _ in range(3):
        speed, tokens = ours(program, file, text)
        other, expected = reference(tokenizer, parts, len(data))
        assert tokens == expected, (tokens, expected)
        best = [max(best[0], speed), max(best[1], other)]
    print(f"{pathlib.Path(file).parent.name}: {tokens} tokens of {len(data) / 1e6:.1f} MB; Tessera {best[0] / 1e6:.1f} MB/s, "
          f"tokenizers {best[1] / 1e6:.2f} MB/s, ratio {best[0] / best[1]:.1f}")


if __name__ == "__main__":
    main()
