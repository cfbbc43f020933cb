module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>
module tessera.app.generation;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

namespace tessera::app {

Decoding::Decoding(nn::LanguageModel& model, std::int64_t vocab) : model_(model), vocab_(vocab) {
  try {
    model.set_cache(&cache_);
  } catch (const Error& error) {
    slow_because_ = error.what();
  }
}

Decoding::~Decoding() {
  if (slow_because_.empty()) {
    model_.set_cache(nullptr);
  }
}

std::size_t Decoding::kept_tokens(const TokenRows& rows) const {
  if (!slow_because_.empty() || kept_.size() != rows.size() || kept_[0].size() >= rows[0].size()) {
    return 0;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!std::ranges::equal(kept_[i], std::span(rows[i]).first(kept_[i].size()))) {
      return 0;
    }
  }
  return kept_[0].size();
}

std::vector<std::vector<double>> Decoding::next(const TokenRows& rows) {
  const std::size_t length = rows.empty() ? 0 : rows[0].size();
  require(length > 0 &&
              std::ranges::all_of(rows, [&](const auto& row) { return row.size() == length; }),
          "decoding: rows must have one length, of at least one token");
  const NoGrad no_grad;
  const auto count = std::ssize(rows);
  // The logits of all tokens of a long prompt need not be in memory at the same time.
  constexpr std::int64_t values_at_once = std::int64_t{1} << 26;
  const auto at_once = slow_because_.empty() ? static_cast<std::size_t>(std::clamp<std::int64_t>(
                                                   values_at_once / (vocab_ * count), 16, 512))
                                             : length;
  std::size_t begin = kept_tokens(rows);
  if (begin == 0) {
    for (nn::AttentionCache& layer : cache_.layers) {
      layer.clear();
    }
  }
  kept_.clear();  // an error leaves a cache of unknown length
  Tensor last;
  for (; begin < length; begin += std::min(at_once, length - begin)) {
    const std::size_t part = std::min(at_once, length - begin);
    std::vector<std::int64_t> tokens;
    for (const auto& row : rows) {
      const auto of_row = std::span(row).subspan(begin, part);
      tokens.insert(tokens.end(), of_row.begin(), of_row.end());
    }
    const auto width = static_cast<std::int64_t>(part);
    const Tensor logits =
        model_(from_values(std::span<const std::int64_t>(tokens), {count, width}));
    last = ops::select(logits, 1, width - 1);
  }
  if (slow_because_.empty()) {
    kept_ = rows;
  }
  const std::vector<double> values = to_doubles(last);
  std::vector<std::vector<double>> all;
  for (std::int64_t row = 0; row < count; ++row) {
    const auto own = std::span(values).subspan(static_cast<std::size_t>(row * vocab_),
                                               static_cast<std::size_t>(vocab_));
    all.emplace_back(own.begin(), own.end());
  }
  return all;
}

}  // namespace tessera::app
