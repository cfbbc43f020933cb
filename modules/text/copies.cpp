module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
module tessera.text;

import tessera.base;
import tessera.collective;

namespace tessera::text {

Copies::Copies(const RankGrid& grid, collective::World& world)
    : count_(grid.copies), number_(world.rank() / grid.of_copy()) {
  if (count_ == 1 || world.rank() % grid.of_copy() != 0) {
    return;
  }
  std::vector<int> ranks;
  for (int copy = 0; copy < count_; ++copy) {
    ranks.push_back(copy * grid.of_copy());
  }
  first_ranks_ = &world.communicator(ranks, "copies");
}

bool Copies::owns(std::int64_t item) const { return item % count_ == number_; }

std::vector<double> Copies::joined(std::vector<double> values) const {
  if (first_ranks_ == nullptr) {
    return values;
  }
  for (std::int64_t item = 0; item < std::ssize(values); ++item) {
    if (!owns(item)) {
      values[static_cast<std::size_t>(item)] = 0;
    }
  }
  // One value and zeros: the sum is exact.
  first_ranks_->all_reduce(values.data(), values.data(), std::ssize(values), DType::f64);
  return values;
}

std::vector<std::string> Copies::joined(std::vector<std::string> texts) const {
  if (first_ranks_ == nullptr) {
    return texts;
  }
  std::string own;
  std::vector<std::int64_t> lengths(texts.size(), 0);
  for (std::int64_t item = 0; item < std::ssize(texts); ++item) {
    const auto i = static_cast<std::size_t>(item);
    if (owns(item)) {
      own += texts[i];
      lengths[i] = std::ssize(texts[i]);
    }
  }
  first_ranks_->all_reduce(lengths.data(), lengths.data(), std::ssize(lengths), DType::i64);
  std::int64_t longest = std::ssize(own);
  first_ranks_->all_reduce(&longest, &longest, 1, DType::i64, ReduceOp::max);
  own.resize(static_cast<std::size_t>(longest));
  std::string all(static_cast<std::size_t>(longest * count_), '\0');
  first_ranks_->all_gather(own.data(), all.data(), longest, DType::u8);
  std::vector<std::int64_t> read(static_cast<std::size_t>(count_), 0);  // bytes of each copy
  for (std::int64_t item = 0; item < std::ssize(texts); ++item) {
    const std::int64_t copy = item % count_;
    std::int64_t& begin = read[static_cast<std::size_t>(copy)];
    const std::int64_t length = lengths[static_cast<std::size_t>(item)];
    texts[static_cast<std::size_t>(item)] = all.substr(
        static_cast<std::size_t>(copy * longest + begin), static_cast<std::size_t>(length));
    begin += length;
  }
  return texts;
}

}  // namespace tessera::text
