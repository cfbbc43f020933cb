module;
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;
import tessera.tokenize;

namespace tessera::data {

std::string to_string(const RecordPlace& place) {
  return place.token == 0 ? fmt::format("{}:{}", place.file, place.number)
                          : fmt::format("{}:{}+{}", place.file, place.number, place.token);
}

RecordPlace parse_record_place(const std::string& text) {
  const auto refuse = [&]() -> RecordPlace {
    fail_input({.thing = shown(text),
                .wrong = "it is not the place of a row",
                .expected = "FILE:LINE, or FILE:NUMBER+TOKEN as 'tessera data where' prints it"});
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return refuse();
  }
  RecordPlace place{.file = text.substr(0, colon)};
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data() + colon + 1, end, place.number);
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == '+') {
    read = std::from_chars(read.ptr + 1, end, place.token);
  }
  return read.ec == std::errc() && read.ptr == end && place.number >= 0 && place.token >= 0
             ? place
             : refuse();
}

void RowSource::read_pixels(std::int64_t /*row*/, std::span<std::uint8_t> /*pixels*/) const {
  fail("data: rows of tokens have no pixels");
}

void write_document(const Example& document, std::span<std::int64_t> inputs,
                    std::span<std::int64_t> targets) {
  for (std::size_t i = 0; i + 1 < document.ids.size(); ++i) {
    inputs[i] = document.ids[i];
    if (document.trained[i + 1] != 0) {
      targets[i] = document.ids[i + 1];
    }
  }
}

Windows::Windows(std::shared_ptr<const TokenSource> tokens, std::int64_t begin, std::int64_t end,
                 std::int64_t length)
    : tokens_(std::move(tokens)), begin_(begin), end_(end), length_(length) {}

std::int64_t Windows::rows() const {
  return std::max<std::int64_t>(0, (end_ - begin_ - 1) / length_);
}
std::int64_t Windows::trained(std::int64_t /*row*/) const { return length_; }
std::int64_t Windows::used(std::int64_t /*row*/) const { return length_; }
std::string Windows::where(std::int64_t row) const { return fmt::format("window {}", row); }

std::vector<RowRecord> Windows::records(std::int64_t row) const {
  std::vector<RowRecord> all;
  for (const TokenRange& range : tokens_->places(begin_ + row * length_, length_)) {
    all.push_back({.place = range.place,
                   .begin = range.begin,
                   .end = range.end,
                   .trained = range.end - range.begin,
                   .counts_tokens = range.counts});
  }
  return all;
}

void Windows::read(std::int64_t row, std::span<std::int64_t> inputs,
                   std::span<std::int64_t> targets) const {
  std::vector<std::int64_t> window(static_cast<std::size_t>(length_) + 1);
  tokens_->read(begin_ + row * length_, window);
  std::copy_n(window.begin(), length_, inputs.begin());
  std::copy_n(window.begin() + 1, length_, targets.begin());
}

DocumentRows::DocumentRows(std::shared_ptr<const Documents> documents, std::int64_t begin,
                           std::int64_t end, std::int64_t length, std::int64_t padding)
    : documents_(std::move(documents)),
      begin_(begin),
      end_(end),
      length_(length),
      padding_(padding) {}

std::int64_t DocumentRows::rows() const { return end_ - begin_; }
std::int64_t DocumentRows::trained(std::int64_t row) const {
  return documents_->trained(begin_ + row);
}
std::int64_t DocumentRows::used(std::int64_t row) const {
  return std::min(documents_->tokens(begin_ + row) - 1, length_);
}
std::string DocumentRows::where(std::int64_t row) const { return documents_->where(begin_ + row); }

std::vector<RowRecord> DocumentRows::records(std::int64_t row) const {
  return {{.place = parse_record_place(where(row)),
           .end = used(row),
           .trained = trained(row),
           .is_document = true}};
}

void DocumentRows::read(std::int64_t row, std::span<std::int64_t> inputs,
                        std::span<std::int64_t> targets) const {
  std::ranges::fill(inputs, padding_);
  std::ranges::fill(targets, ignored_target);
  write_document(documents_->read(begin_ + row), inputs, targets);
}

PreferenceRows::PreferenceRows(std::shared_ptr<const Documents> documents, std::int64_t begin,
                               std::int64_t end, std::int64_t length, std::int64_t padding)
    : documents_(std::move(documents), 2 * begin, 2 * end, length, padding), length_(length) {}

std::int64_t PreferenceRows::rows() const { return documents_.rows() / 2; }
std::int64_t PreferenceRows::trained(std::int64_t row) const {
  return documents_.trained(2 * row) + documents_.trained(2 * row + 1);
}
std::int64_t PreferenceRows::used(std::int64_t row) const {
  return documents_.used(2 * row) + documents_.used(2 * row + 1);
}
std::string PreferenceRows::where(std::int64_t row) const { return documents_.where(2 * row); }

std::vector<RowRecord> PreferenceRows::records(std::int64_t row) const {
  std::vector<RowRecord> all;
  const std::vector<DocumentPlace> places = documents(row);
  for (std::int64_t answer = 0; answer < 2; ++answer) {
    const DocumentPlace& place = places[static_cast<std::size_t>(answer)];
    all.push_back({.place = parse_record_place(where(row)),
                   .begin = place.begin,
                   .end = place.end,
                   .trained = documents_.trained(2 * row + answer),
                   .is_document = true});
  }
  return all;
}

std::vector<DocumentPlace> PreferenceRows::documents(std::int64_t row) const {
  return {{0, documents_.used(2 * row)}, {length_, length_ + documents_.used(2 * row + 1)}};
}

void PreferenceRows::read(std::int64_t row, std::span<std::int64_t> inputs,
                          std::span<std::int64_t> targets) const {
  const auto length = static_cast<std::size_t>(length_);
  documents_.read(2 * row, inputs.first(length), targets.first(length));
  documents_.read(2 * row + 1, inputs.subspan(length), targets.subspan(length));
}

LabelledRows::LabelledRows(std::shared_ptr<const Documents> documents, std::int64_t begin,
                           std::int64_t end, std::int64_t padding,
                           std::vector<std::int64_t> classes)
    : documents_(std::move(documents)),
      begin_(begin),
      end_(end),
      padding_(padding),
      classes_(std::move(classes)) {}

std::int64_t LabelledRows::rows() const { return end_ - begin_; }
std::int64_t LabelledRows::trained(std::int64_t /*row*/) const { return 1; }
std::int64_t LabelledRows::used(std::int64_t row) const { return documents_->tokens(begin_ + row); }
std::string LabelledRows::where(std::int64_t row) const { return documents_->where(begin_ + row); }

std::vector<RowRecord> LabelledRows::records(std::int64_t row) const {
  return {{.place = parse_record_place(where(row)),
           .end = used(row),
           .trained = trained(row),
           .is_document = true}};
}

void LabelledRows::read(std::int64_t row, std::span<std::int64_t> inputs,
                        std::span<std::int64_t> targets) const {
  std::ranges::fill(inputs, padding_);
  std::ranges::fill(targets, ignored_target);
  const std::int64_t label = classes_[static_cast<std::size_t>(documents_->label(begin_ + row))];
  const Example example = documents_->read(begin_ + row);
  for (std::size_t i = 0; i < example.ids.size(); ++i) {
    inputs[i] = example.ids[i];
    targets[i] = label;
  }
}

TaggedRows::TaggedRows(std::shared_ptr<const Documents> documents, std::int64_t begin,
                       std::int64_t end, std::int64_t padding, std::vector<std::int64_t> classes)
    : documents_(std::move(documents)),
      begin_(begin),
      end_(end),
      padding_(padding),
      classes_(std::move(classes)) {}

std::int64_t TaggedRows::rows() const { return end_ - begin_; }
std::int64_t TaggedRows::trained(std::int64_t row) const {
  return documents_->trained(begin_ + row);
}
std::int64_t TaggedRows::used(std::int64_t row) const { return documents_->tokens(begin_ + row); }
std::string TaggedRows::where(std::int64_t row) const { return documents_->where(begin_ + row); }

std::vector<RowRecord> TaggedRows::records(std::int64_t row) const {
  return {{.place = parse_record_place(where(row)),
           .end = used(row),
           .trained = trained(row),
           .is_document = true}};
}

void TaggedRows::read(std::int64_t row, std::span<std::int64_t> inputs,
                      std::span<std::int64_t> targets) const {
  std::ranges::fill(inputs, padding_);
  std::ranges::fill(targets, ignored_target);
  const auto [example, labels] = documents_->read_tagged(begin_ + row);
  for (std::size_t i = 0; i < example.ids.size(); ++i) {
    inputs[i] = example.ids[i];
    if (labels[i] >= 0) {
      targets[i] = classes_[static_cast<std::size_t>(labels[i])];
    }
  }
}

}  // namespace tessera::data
