module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <thread>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.coded;
import tessera.runs;
import tessera.app.base;
import tessera.app.commands;
import tessera.text;
import :bench_rows;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t random_vocab = 32000;

/// A Llama of 100 M parameters: 400 MB, more than caches hold.
std::shared_ptr<nn::LanguageModel> random_llama(const BenchArguments& arguments) {
  // A table of its own would be read by rows.
  auto model = std::make_shared<nn::DecoderLM>(nn::DecoderShape{.vocab = random_vocab,
                                                                .dim = 768,
                                                                .layers = 12,
                                                                .heads = 12,
                                                                .kv_heads = 4,
                                                                .ffn_dim = 2048,
                                                                .tie_embeddings = true});
  text::set_weight_form(*model, arguments.precision, 1, nullptr, arguments.activations);
  nn::materialize(*model);
  nn::initialize(*model);
  model->train(false);
  return model;
}

}  // namespace

/// The C library looks for a byte that is not there, with the machine's widest loads.
double reading_seconds(std::int64_t weights, int threads) {
  const auto size = static_cast<std::size_t>(weights);
  const std::vector<unsigned char> bytes(size, 2);
  std::atomic<bool> found = false;
  const auto read = [&](std::size_t number) {
    const auto count = static_cast<std::size_t>(threads);
    const std::size_t begin = size * number / count;
    if (std::memchr(bytes.data() + begin, 1, size * (number + 1) / count - begin) != nullptr) {
      found = true;
    }
  };
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    best = std::min(best, runs::seconds_of([&] {
                      std::vector<std::thread> others;
                      for (int t = 1; t < threads; ++t) {
                        others.emplace_back(read, static_cast<std::size_t>(t));
                      }
                      read(0);
                      for (std::thread& other : others) {
                        other.join();
                      }
                    }));
  }
  require(!found, "bench generate: a byte that was not written");
  return best;
}

BenchModel::BenchModel(const BenchArguments& arguments)
    : name_(arguments.model.empty() ? "llama 100 M" : arguments.model) {
  if (arguments.model.empty()) {
    random_ = random_llama(arguments);
    alone_.emplace(*random_, nullptr, DeviceMesh(), -1, arguments.keys);
  } else {
    text::ModelFiles files(arguments.model);
    files.precision = arguments.precision;
    files.activations = arguments.activations;
    files.keys = arguments.keys;
    named_.emplace(files);
  }
}

text::ModelRanks& BenchModel::ranks() { return named_ ? named_->ranks() : *alone_; }
std::int64_t BenchModel::vocab() const { return named_ ? named_->shape().vocab : random_vocab; }
std::int64_t BenchModel::bytes() {
  return named_ ? named_->parameter_bytes() : text::parameter_bytes(*random_);
}

namespace {

/// The best time of a token, of several sequences together, after a short prompt.
double token_seconds(text::ModelRanks& ranks, std::int64_t vocab, std::int64_t sequences) {
  constexpr int tokens = 24;
  text::Decoding decoding(ranks, vocab);
  text::TokenRows rows;
  for (std::int64_t row = 0; row < sequences; ++row) {
    rows.push_back({1 + row % (vocab - 1), 2 % vocab, 3 % vocab});
  }
  double best = 1e9;
  for (int i = 0; i < tokens; ++i) {
    const double seconds = runs::seconds_of([&] {
      const std::vector<std::vector<double>> logits = decoding.next(rows);
      for (std::size_t row = 0; row < rows.size(); ++row) {
        rows[row].push_back(
            text::candidates(logits[row], {.all = rows[row]}, {.temperature = 0}).at(0).token);
      }
    });
    best = i == 0 ? best : std::min(best, seconds);  // the first one reads the prompt
  }
  return best;
}

/// Tokens of one sequence and of several, beside the bound: the time in which the weights are read
/// once, measured before and after.
void add_rows(Json& rows, BenchModel& model, std::string_view form, int threads) {
  const std::int64_t bytes = model.bytes();
  for (const std::int64_t sequences : {1, 8}) {
    const double before = reading_seconds(bytes, threads);
    const double seconds = token_seconds(model.ranks(), model.vocab(), sequences);
    const double bound = std::min(before, reading_seconds(bytes, threads));
    const auto together = static_cast<double>(sequences);
    rows.push_back({{"name", fmt::format("{}, {}, {} at a time", model.name(), form, sequences)},
                    {"threads", threads},
                    {"weights_mib", static_cast<double>(bytes) / (1 << 20)},
                    {"tokens_per_second", together / seconds},
                    {"read_gb_per_second", static_cast<double>(bytes) / seconds / 1e9},
                    {"memory_gb_per_second", static_cast<double>(bytes) / bound / 1e9},
                    {"bound_tokens_per_second", together / bound},
                    {"share_of_bound", share_cell(bound / seconds)}});
  }
}

}  // namespace

Json bench_generate(const BenchArguments& arguments) {
  using coded::WeightForm;
  std::vector<WeightForm> forms = {arguments.precision};
  if (arguments.model.empty() && arguments.precision == WeightForm::stored) {
    forms = {WeightForm::f32, WeightForm::bf16, WeightForm::int8};  // nothing is stored
  }
  std::vector<int> counts = {1};
  if (available_cores() > 1) {
    counts.push_back(available_cores());
  }
  Json rows = Json::array();
  for (const WeightForm form : forms) {
    BenchArguments own = arguments;
    own.precision = form;
    BenchModel model(own);
    for (const int threads : counts) {
      ops::set_threads(threads);
      add_rows(rows, model, coded::weight_form_names()[static_cast<std::size_t>(form)], threads);
    }
  }
  ops::set_threads(1);
  return rows;
}

}  // namespace tessera::app
