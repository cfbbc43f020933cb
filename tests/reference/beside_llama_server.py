"""Tokens in a second, the time to the first token, processor time and memory of `tessera serve` and llama.cpp's
llama-server with one GGUF file, in turn, on the same cores (docs/performance-servers.md), a thread for each.

    beside_llama_server.py TESSERA LLAMA_SERVER FILE.gguf CORES [ROUNDS] [CLIENTS...] [-- OPTIONS OF TESSERA]
    CORES: 0 or 0,1; LLAMA_SERVER: - measures Tessera alone

Clients ask at the same time for 32 tokens each after a prompt of about 40 tokens that no other one has, at temperature 0,
whatever ends the text. Processor time is that of the whole server for a token that is written, so the load of
other programs disturbs it least; it includes reading the prompts.
"""

import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

PORT, TOKENS = 18931, 32


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def most_memory(pid):
    """In MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def ask(number, round_number, first_tokens):
    prompt = f"Story {round_number * 1000 + number}. " + " ".join(str((number * 37 + i * i) % 100) for i in range(12))
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
    begin = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    for line in answer:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
            first_tokens.append(time.monotonic() - begin)
            break
    answer.read()


def serve(command, counts, round_number):
    """For each count of clients: tokens/s, processor ms per token, median seconds to the first token; and MiB."""
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    break
            except OSError:
                assert server.poll() is None, "the server has ended"
            time.sleep(0.2)
        ask(999, round_number, [])
        results = []
        for clients in counts:
            first_tokens, begin, used = [], time.monotonic(), processor_seconds(server.pid)
            threads = [threading.Thread(target=ask, args=(clients * 100 + i, round_number, first_tokens))
                       for i in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds, tokens = time.monotonic() - begin, clients * TOKENS
            results.append((tokens / seconds, (processor_seconds(server.pid) - used) / tokens * 1000,
                            statistics.median(first_tokens)))
        return results, most_memory(server.pid)
    finally:
        server.terminate()
        server.wait()


def main():
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = sys.argv[1:end], sys.argv[end + 1:]
    tessera, llama, model, cores = arguments[:4]
    rounds = int(arguments[4]) if len(arguments) > 4 else 3
    counts = [int(count) for count in arguments[5:]] or [1, 8, 32]
    threads, on_cores = str(len(cores.split(","))), ["taskset", "-c", cores]
    # A slot's context is a part of the whole: each has room for a prompt and its answer.
    commands = {"tessera": [*on_cores, tessera, "serve", model, "--port", str(PORT), *options],
                "llama.cpp": [*on_cores, llama, "-m", model, "--port", str(PORT), "-t", threads, "-tb", threads,
                              "-np", str(max(counts)), "-c", str(max(counts) * 256), "--no-webui"]}
    if llama == "-":
        del commands["llama.cpp"]
    all_results = {name: [] for name in commands}
    for round_number in range(rounds):
        for name, command in commands.items():
            all_results[name].append(serve(command, counts, round_number))
    for name, of_rounds in all_results.items():
        print(f"{name}: {statistics.median(memory for _, memory in of_rounds):.0f} MiB")
        for place, clients in enumerate(counts):
            speed, used, first = (statistics.median(result[place][i] for result, _ in of_rounds) for i in range(3))
            print(f"  {clients} clients: {speed:.1f} tokens/s, {used:.1f} ms of processor time a token, "
                  f"first token after {first:.2f} s")


if __name__ == "__main__":
    main()
