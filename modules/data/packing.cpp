module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;

namespace tessera::data {
namespace {

/// The next documents that are in no row yet.
class PendingDocuments {
 public:
  PendingDocuments(std::span<const std::int64_t> lengths, std::int64_t most) : lengths_(lengths) {
    while (std::ssize(by_length_) < most && next_ < std::ssize(lengths_)) {
      add_next();
    }
  }

  bool empty() const { return by_place_.empty(); }
  std::int64_t first() const { return *by_place_.begin(); }

  /// The longest that takes at most `room` positions, of equally long ones the first; none: -1.
  std::int64_t longest(std::int64_t room) const {
    const auto behind = by_length_.upper_bound({room, 0});
    return behind == by_length_.begin() ? -1 : -std::prev(behind)->second;
  }

  /// The document is in a row; another one waits in its place.
  void take(std::int64_t place) {
    by_place_.erase(place);
    by_length_.erase({lengths_[static_cast<std::size_t>(place)], -place});
    if (next_ < std::ssize(lengths_)) {
      add_next();
    }
  }

 private:
  void add_next() {
    by_place_.insert(next_);
    by_length_.insert({lengths_[static_cast<std::size_t>(next_)], -next_});
    ++next_;
  }

  std::span<const std::int64_t> lengths_;
  std::int64_t next_ = 0;
  std::set<std::int64_t> by_place_;
  std::set<std::pair<std::int64_t, std::int64_t>> by_length_;  // length, -place
};

}  // namespace

std::span<const std::int64_t> Packing::row(std::int64_t number) const {
  const auto at = static_cast<std::size_t>(number);
  const auto begin = static_cast<std::size_t>(begins.at(at));
  const auto end = static_cast<std::size_t>(begins.at(at + 1));
  return std::span(documents).subspan(begin, end - begin);
}

Packing pack(std::span<const std::int64_t> lengths, std::int64_t room, std::int64_t look_ahead) {
  for (const std::int64_t length : lengths) {
    if (length < 1 || length > room) {
      fail({.thing = "packing",
            .wrong = "a document does not fit into a row",
            .expected = fmt::format("1 to {} positions", room),
            .got = fmt::format("{}", length)});
    }
  }
  Packing packing{.documents = {}, .begins = {0}};
  packing.documents.reserve(lengths.size());
  PendingDocuments waiting(lengths, std::max<std::int64_t>(look_ahead, 1));
  while (!waiting.empty()) {
    std::int64_t left = room;
    for (std::int64_t next = waiting.first(); next >= 0; next = waiting.longest(left)) {
      packing.documents.push_back(next);
      left -= lengths[static_cast<std::size_t>(next)];
      waiting.take(next);
    }
    packing.begins.push_back(std::ssize(packing.documents));
  }
  return packing;
}

PackedRows::PackedRows(std::shared_ptr<const Documents> documents, std::int64_t begin,
                       std::int64_t end, std::int64_t length, std::int64_t padding,
                       std::optional<std::uint64_t> order)
    : documents_(std::move(documents)), length_(length), padding_(padding) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  if (order && begin < end) {
    const Permutation permutation(end - begin, *order, 0);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = begin + permutation[static_cast<std::int64_t>(i)];
    }
  }
  std::vector<std::int64_t> lengths;
  lengths.reserve(numbers.size());
  for (const std::int64_t number : numbers) {
    lengths.push_back(documents_->tokens(number) - 1);
  }
  packing_ = pack(lengths, length);
  for (std::int64_t& document : packing_.documents) {
    document = numbers[static_cast<std::size_t>(document)];
  }
}

std::int64_t PackedRows::trained(std::int64_t row) const {
  std::int64_t sum = 0;
  for (const std::int64_t document : packing_.row(row)) {
    sum += documents_->trained(document);
  }
  return sum;
}

std::int64_t PackedRows::used(std::int64_t row) const {
  std::int64_t sum = 0;
  for (const std::int64_t document : packing_.row(row)) {
    sum += documents_->tokens(document) - 1;
  }
  return sum;
}

std::string PackedRows::where(std::int64_t row) const {
  std::string text;
  for (const std::int64_t document : packing_.row(row)) {
    text += (text.empty() ? "" : ", ") + documents_->where(document);
  }
  return text;
}

std::vector<RowRecord> PackedRows::records(std::int64_t row) const {
  std::vector<RowRecord> all;
  const std::vector<DocumentPlace> places = documents(row);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::int64_t document = packing_.row(row)[i];
    all.push_back({.place = parse_record_place(documents_->where(document)),
                   .begin = places[i].begin,
                   .end = places[i].end,
                   .trained = documents_->trained(document),
                   .is_document = true});
  }
  return all;
}

std::vector<DocumentPlace> PackedRows::documents(std::int64_t row) const {
  std::vector<DocumentPlace> places;
  std::int64_t at = 0;
  for (const std::int64_t document : packing_.row(row)) {
    const std::int64_t end = at + documents_->tokens(document) - 1;
    places.push_back({at, end});
    at = end;
  }
  return places;
}

std::vector<std::int64_t> PackedRows::document_begins(std::int64_t row) const {
  std::vector<std::int64_t> begins;
  const std::vector<DocumentPlace> places = documents(row);
  for (const DocumentPlace& place : places) {
    begins.push_back(place.begin);
  }
  if (places.back().end < length_) {
    begins.push_back(places.back().end);  // padding
  }
  return begins;
}

void PackedRows::read(std::int64_t row, std::span<std::int64_t> inputs,
                      std::span<std::int64_t> targets) const {
  std::ranges::fill(inputs, padding_);
  std::ranges::fill(targets, ignored_target);
  std::size_t at = 0;
  for (const std::int64_t number : packing_.row(row)) {
    const std::size_t positions = static_cast<std::size_t>(documents_->tokens(number)) - 1;
    write_document(documents_->read(number), inputs.subspan(at, positions),
                   targets.subspan(at, positions));
    at += positions;
  }
}

}  // namespace tessera::data
