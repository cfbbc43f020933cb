// How fast a tokenizer encodes a text: bench_tokenize TOKENIZER TEXT [--benchmark_...]
// tests/reference/tokenizers_speed.py compares it with Hugging Face's library.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.options;
import tessera.tokenize;

using namespace tessera;
using namespace tessera::tokenize;

namespace {

constexpr std::size_t part_bytes = 20'000;  // the reference gets the same parts

/// The text in parts that do not end within a character.
std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(at + part_bytes, text.size());
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
      ++end;
    }
    parts.push_back(text.substr(at, end - at));
    at = end;
  }
  return parts;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_tokenize TOKENIZER TEXT [--benchmark_...]\n");
    return 2;
  }
  try {
    const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(argv[1]).tokenizer;
    std::ifstream stream(argv[2], std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(stream)), {});
    const std::vector<std::string_view> parts = parts_of(text);
    const EncodeOptions options = {.add_special = false};
    const auto measure = [&](const char* name, const auto& run) {
      benchmark::RegisterBenchmark(
          name,
          [&, run](benchmark::State& state) {
            std::size_t tokens = 0;
            for (const auto& unused : state) {
              static_cast<void>(unused);
              tokens = run();
            }
            state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
            state.counters["tokens"] = static_cast<double>(tokens);
          })
          ->Unit(benchmark::kMillisecond)
          ->MeasureProcessCPUTime();
    };
    measure("encode", [&] {
      std::size_t tokens = 0;
      for (const auto& ids : encode_all(*tokenizer, parts, options, 1)) {
        tokens += ids.size();
      }
      return tokens;
    });
    measure("encode_with_offsets", [&] {
      std::size_t tokens = 0;
      for (const std::string_view part : parts) {
        tokens += tokenizer->encode_with_offsets(part, options).ids.size();
      }
      return tokens;
    });
    measure("encode_all_threads", [&] {
      std::size_t tokens = 0;
      for (const auto& ids : encode_all(*tokenizer, parts, options)) {
        tokens += ids.size();
      }
      return tokens;
    });
    benchmark::RunSpecifiedBenchmarks();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
