module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>
module tessera.text;

import tessera.base;

namespace tessera::text {

std::size_t Decoding::kept_tokens(const TokenRows& rows) const {
  if (!slow_because().empty() || known_clears_ != ranks_.clears() || kept_.size() != rows.size() ||
      kept_[0].size() >= rows[0].size()) {
    return 0;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!std::ranges::equal(kept_[i], std::span(rows[i]).first(kept_[i].size()))) {
      return 0;
    }
  }
  return kept_[0].size();
}

std::int64_t pass_tokens(const ModelRanks& ranks, std::int64_t vocab, std::int64_t rows) {
  // The logits of all tokens of a long prompt need not be in memory at the same time.
  constexpr std::int64_t values_at_once = std::int64_t{1} << 26;
  constexpr std::int64_t products_at_once = std::int64_t{1} << 36;
  constexpr std::int64_t fewest = 16;
  constexpr std::int64_t most = 512;
  const std::int64_t by_work = products_at_once / (ranks.parameters() * rows);
  const std::int64_t tokens = std::min(values_at_once / (vocab * rows), by_work);
  return ranks.chunks() * std::clamp(tokens, fewest, most);
}

std::vector<std::vector<double>> Decoding::next(const TokenRows& rows,
                                                const std::function<bool()>& wanted) {
  const std::size_t length = rows.empty() ? 0 : rows[0].size();
  require(length > 0 &&
              std::ranges::all_of(rows, [&](const auto& row) { return row.size() == length; }),
          "decoding: rows must have one length, of at least one token");
  const auto count = std::ssize(rows);
  const bool keeps = slow_because().empty();
  const std::size_t at_once =
      keeps ? static_cast<std::size_t>(pass_tokens(ranks_, vocab_, count)) : length;
  std::size_t begin = kept_tokens(rows);
  kept_.clear();  // an error leaves a cache of unknown length
  std::vector<double> values;
  for (bool anew = begin == 0; begin < length; anew = false) {
    const std::size_t part = std::min(at_once, length - begin);
    std::vector<std::int64_t> tokens;
    for (const auto& row : rows) {
      const auto of_row = std::span(row).subspan(begin, part);
      tokens.insert(tokens.end(), of_row.begin(), of_row.end());
    }
    values = ranks_.next_logits(tokens, count, anew);
    known_clears_ = ranks_.clears();
    begin += part;
    if (begin < length && wanted && !wanted()) {
      for (const auto& row : rows) {
        kept_.emplace_back(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(begin));
      }
      return {};
    }
  }
  if (keeps) {
    kept_ = rows;
  }
  std::vector<std::vector<double>> all;
  for (std::int64_t row = 0; row < count; ++row) {
    const auto own = std::span(values).subspan(static_cast<std::size_t>(row * vocab_),
                                               static_cast<std::size_t>(vocab_));
    all.emplace_back(own.begin(), own.end());
  }
  return all;
}

}  // namespace tessera::text
