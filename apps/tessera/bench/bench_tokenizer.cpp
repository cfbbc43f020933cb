module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <thread>
#include <unordered_map>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.tokenize;
import tessera.app.commands;
import :bench_rows;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string_view>;

/// Perl's pages: English and code, on every Debian.
std::string sample_text() {
  constexpr std::size_t bytes = std::size_t{4} << 20;
  std::string text;
  std::vector<std::filesystem::path> files;
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator("/usr/share/perl", ignored)) {
    if (entry.path().extension() == ".pod" || entry.path().extension() == ".pm") {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  for (const std::filesystem::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    std::ostringstream all;
    all << stream.rdbuf();
    text += all.str();
    if (text.size() >= bytes) {
      break;
    }
  }
  if (text.empty()) {
    fail_input({.thing = "bench tokenizer",
                .wrong = "there is no text in /usr/share/perl",
                .advice = "install perl-modules"});
  }
  return text;
}

/// Parts of about 16 KiB, for threads to share.
Texts parts_of(std::string_view text) {
  constexpr std::size_t part = std::size_t{16} << 10;
  Texts parts;
  while (!text.empty()) {
    const std::size_t end = text.size() <= part ? text.size() : text.find('\n', part);
    parts.push_back(text.substr(0, end == std::string_view::npos ? text.size() : end + 1));
    text.remove_prefix(parts.back().size());
  }
  return parts;
}

double best_seconds(const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

/// What no tokenizer with words can do without: finding each word, and looking it up.
std::int64_t look_up_words(const Texts& texts, int first, int step) {
  std::unordered_map<std::string_view, std::int64_t> counts;
  for (std::size_t i = static_cast<std::size_t>(first); i < texts.size();
       i += static_cast<std::size_t>(step)) {
    const std::string_view text = texts[i];
    std::size_t begin = 0;
    for (std::size_t at = 1; at <= text.size(); ++at) {
      if (at == text.size() || text[at] == ' ' || text[at] == '\n') {
        ++counts[text.substr(begin, at - begin)];
        begin = at;
      }
    }
  }
  return static_cast<std::int64_t>(counts.size());
}

/// What no tokenizer can do without: an id for each byte, or a byte for each id.
std::int64_t widen_bytes(const Texts& texts, int first, int step) {
  std::int64_t sum = 0;
  for (std::size_t i = static_cast<std::size_t>(first); i < texts.size();
       i += static_cast<std::size_t>(step)) {
    const std::vector<tokenize::TokenId> ids(texts[i].begin(), texts[i].end());
    sum += ids.back();
  }
  return sum;
}

using Pass = std::int64_t (*)(const Texts& texts, int first, int step);

double ceiling_seconds(const Texts& texts, int threads, Pass pass) {
  std::atomic<std::int64_t> result = 0;  // so that the passes are not left out
  return best_seconds([&] {
    std::vector<std::thread> others;
    for (int t = 1; t < threads; ++t) {
      others.emplace_back([&, t] { result += pass(texts, t, threads); });
    }
    result += pass(texts, 0, threads);
    for (std::thread& other : others) {
      other.join();
    }
  });
}

}  // namespace

Json bench_tokenizer(const BenchArguments& arguments) {
  const auto tokenizer = arguments.tokenizer.empty()
                             ? tokenize::make_tokenizer("bytes")
                             : tokenize::open_tokenizer(arguments.tokenizer).tokenizer;
  const std::string name = arguments.tokenizer.empty() ? "bytes" : arguments.tokenizer;
  const std::string text = sample_text();
  const Texts texts = parts_of(text);
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  Json rows = Json::array();
  const auto add = [&](const std::string& what, int threads, double seconds, double ceiling) {
    rows.push_back({{"name", fmt::format("{} {}", what, name)},
                    {"threads", threads},
                    {"mb_per_second", megabytes / seconds},
                    {"ceiling_mb_per_second", megabytes / ceiling},
                    {"share_of_ceiling", share_cell(ceiling / seconds)}});
  };
  std::vector<int> counts = {1};
  if (available_cores() > 1) {
    counts.push_back(available_cores());
  }
  std::vector<std::vector<tokenize::TokenId>> ids;
  for (const int threads : counts) {
    const double ceiling =
        ceiling_seconds(texts, threads, arguments.tokenizer.empty() ? widen_bytes : look_up_words);
    const double seconds =
        best_seconds([&] { ids = tokenize::encode_all(*tokenizer, texts, {}, threads); });
    add("encode", threads, seconds, ceiling);
  }
  const double decoding = best_seconds([&] {
    for (const auto& one : ids) {
      static_cast<void>(tokenizer->decode(one));
    }
  });
  add("decode", 1, decoding, ceiling_seconds(texts, 1, widen_bytes));
  return rows;
}

}  // namespace tessera::app
