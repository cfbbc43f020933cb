module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;

namespace tessera::data {
namespace {

constexpr std::int64_t block = 1000;  // places in which each source has its share
constexpr std::uint64_t mixing = 0x6d69787475726573ULL;

}  // namespace

Mixture::Mixture(std::vector<WeightedRows> sources, std::uint64_t seed, bool shuffled)
    : sources_(std::move(sources)), seed_(seed), shuffled_(shuffled) {
  double sum = 0;
  for (const WeightedRows& source : sources_) {
    if (!(source.weight > 0) || !std::isfinite(source.weight)) {
      fail_input({.wrong = "a source's weight must be more than 0",
                  .got = fmt::format("{}", source.weight)});
    }
    if (source.rows->rows() < 1) {
      fail_input({.wrong = "a source has no row"});
    }
    sum += source.weight;
  }
  // The largest remainders get what rounding down leaves.
  std::vector<std::pair<double, std::size_t>> rests;
  std::int64_t given = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const double share = sources_[i].weight / sum * static_cast<double>(block);
    quotas_.push_back(static_cast<std::int64_t>(std::floor(share)));
    given += quotas_.back();
    rests.emplace_back(static_cast<double>(quotas_.back()) - share, i);
  }
  std::ranges::stable_sort(rests);
  for (std::int64_t i = 0; given + i < block; ++i) {
    ++quotas_[rests[static_cast<std::size_t>(i)].second];
  }
  if (const auto none = std::ranges::find(quotas_, 0); none != quotas_.end()) {
    fail_input({.wrong = fmt::format("source {} would get no row", none - quotas_.begin() + 1),
                .expected = "a weight of at least a thousandth of all"});
  }
}

Mixture::SourceRow Mixture::at(std::int64_t place) const {
  SourceRow out;
  std::int64_t number = place;  // among the places of the source
  if (sources_.size() > 1) {
    const Permutation order(block, hash_combine(seed_, mixing),
                            static_cast<std::uint64_t>(place / block));
    const auto source_of = [&](std::int64_t within) {
      std::int64_t slot = order[within];
      std::size_t which = 0;
      while (slot >= quotas_[which]) {
        slot -= quotas_[which++];
      }
      return which;
    };
    out.source = source_of(place % block);
    number = place / block * quotas_[out.source];
    for (std::int64_t i = 0; i < place % block; ++i) {
      number += source_of(i) == out.source ? 1 : 0;
    }
  }
  const std::int64_t rows = sources_[out.source].rows->rows();
  out.epoch = number / rows;
  out.row = number % rows;
  if (shuffled_) {
    const std::uint64_t seed =
        out.source == 0 ? seed_ : hash_combine(seed_, static_cast<std::uint64_t>(out.source));
    out.row = Permutation(rows, seed, static_cast<std::uint64_t>(out.epoch))[out.row];
  }
  return out;
}

std::int64_t Mixture::rows() const {
  std::int64_t all = 0;
  for (const WeightedRows& source : sources_) {
    all += source.rows->rows();
  }
  return all;
}

}  // namespace tessera::data
