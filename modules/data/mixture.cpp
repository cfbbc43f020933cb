module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
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

Permutation Mixture::block_of(std::int64_t place) const {
  return {block, hash_combine(seed_, mixing), static_cast<std::uint64_t>(place / block)};
}

std::size_t Mixture::source_at(const Permutation& order, std::int64_t within) const {
  std::int64_t slot = order[within];
  std::size_t which = 0;
  while (slot >= quotas_[which]) {
    slot -= quotas_[which++];
  }
  return which;
}

std::optional<Permutation> Mixture::order_of(std::size_t source, std::int64_t epoch) const {
  if (!shuffled_) {
    return std::nullopt;
  }
  const std::uint64_t seed =
      source == 0 ? seed_ : hash_combine(seed_, static_cast<std::uint64_t>(source));
  return Permutation(sources_[source].rows->rows(), seed, static_cast<std::uint64_t>(epoch));
}

std::int64_t Mixture::places_before(std::int64_t place, std::size_t source) const {
  if (sources_.size() == 1) {
    return place;
  }
  const Permutation order = block_of(place);
  std::int64_t count = place / block * quotas_[source];
  for (std::int64_t i = 0; i < place % block; ++i) {
    count += source_at(order, i) == source ? 1 : 0;
  }
  return count;
}

Mixture::SourceRow Mixture::at(std::int64_t place) const {
  SourceRow out;
  if (sources_.size() > 1) {
    out.source = source_at(block_of(place), place % block);
  }
  const std::int64_t number = places_before(place, out.source);  // among the places of the source
  const std::int64_t rows = sources_[out.source].rows->rows();
  out.epoch = number / rows;
  out.row = number % rows;
  if (const auto order = order_of(out.source, out.epoch)) {
    out.row = (*order)[out.row];
  }
  return out;
}

std::int64_t Mixture::place_of(const SourceRow& row) const {
  const auto order = order_of(row.source, row.epoch);
  const std::int64_t number =
      row.epoch * sources_[row.source].rows->rows() + (order ? order->index_of(row.row) : row.row);
  if (sources_.size() == 1) {
    return number;
  }
  const std::int64_t quota = quotas_[row.source];
  std::int64_t place = number / quota * block;
  const Permutation within = block_of(place);
  for (std::int64_t left = number % quota;; ++place) {
    if (source_at(within, place % block) == row.source && left-- == 0) {
      return place;
    }
  }
}

std::int64_t Mixture::rows() const {
  std::int64_t all = 0;
  for (const WeightedRows& source : sources_) {
    all += source.rows->rows();
  }
  return all;
}

}  // namespace tessera::data
