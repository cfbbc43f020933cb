module;
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "tessera/content_hash.hpp"
module tessera.data;

import tessera.base;
import :unpacked_file;

namespace tessera::data {
namespace {

template <class T>
void widen(const std::byte* from, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));  // .npy data need not be aligned
    out[i] = value;
  }
}

}  // namespace

void Tokens::append(DataFile file, TokenType type, std::size_t offset, std::int64_t count) {
  segments_.push_back({std::move(file), type, offset, size_, count});
  size_ += count;
}

Tokens Tokens::from_bytes(std::span<const std::string> files) {
  Tokens tokens;
  for (const std::string& path : files) {
    DataFile file = text_file(path);
    const auto count = static_cast<std::int64_t>(file.size());
    tokens.append(std::move(file), TokenType::u8, 0, count);
  }
  return tokens;
}

Tokens Tokens::from_npy(std::span<const std::string> files, std::int64_t vocab) {
  Tokens tokens;
  tokens.vocab_ = vocab;
  for (const std::string& path : files) {
    DataFile file(path);
    std::vector<std::byte> start(std::min(file.size(), npy_header_limit));
    DataFile::Handle(file).read(file, 0, start);
    const NpyLayout layout = read_npy_header(start, file.size(), path);
    tokens.append(std::move(file), layout.type, layout.offset, layout.count);
  }
  return tokens;
}

void Tokens::read_bytes(const Segment& segment, std::size_t offset,
                        std::span<std::byte> out) const {
  const std::lock_guard lock(open_->mutex);
  if (open_->segment != &segment) {
    open_->segment = nullptr;  // should the file not open
    open_->handle.emplace(segment.file);
    open_->segment = &segment;
  }
  open_->handle->read(segment.file, offset, out);
}

void Tokens::read(std::int64_t begin, std::span<std::int64_t> out) const {
  if (begin < 0 || begin > size_ || std::ssize(out) > size_ - begin) {
    fail({.thing = "tokens",
          .wrong =
              fmt::format("no tokens [{}, {}) among {}", begin, begin + std::ssize(out), size_)});
  }
  auto segment = std::ranges::upper_bound(segments_, begin, {}, &Segment::begin);
  segment -= segment == segments_.begin() ? 0 : 1;
  std::vector<std::byte> bytes;
  for (; !out.empty(); ++segment) {
    const std::int64_t skip = begin - segment->begin;
    const std::int64_t count =
        std::min(segment->count - skip, static_cast<std::int64_t>(out.size()));
    const std::size_t size = size_of(segment->type);
    bytes.resize(static_cast<std::size_t>(count) * size);
    read_bytes(*segment, segment->offset + static_cast<std::size_t>(skip) * size, bytes);
    const std::byte* const from = bytes.data();
    const std::span<std::int64_t> part = out.first(static_cast<std::size_t>(count));
    switch (segment->type) {
      case TokenType::u8:
        widen<std::uint8_t>(from, part);
        break;
      case TokenType::u16:
        widen<std::uint16_t>(from, part);
        break;
      case TokenType::u32:
        widen<std::uint32_t>(from, part);
        break;
      case TokenType::i32:
        widen<std::int32_t>(from, part);
        break;
    }
    const auto bad =
        std::ranges::find_if(part, [&](std::int64_t id) { return id < 0 || id >= vocab_; });
    if (bad != part.end()) {
      fail_input({.thing = segment->file.path(),
                  .wrong = fmt::format("token {} is {}", skip + (bad - part.begin()), *bad),
                  .expected = fmt::format("0 to {}, model.vocab is {}", vocab_ - 1, vocab_)});
    }
    out = out.subspan(static_cast<std::size_t>(count));
    begin += count;
  }
}

std::vector<TokenRange> Tokens::places(std::int64_t begin, std::int64_t count) const {
  std::vector<TokenRange> all;
  for (const Segment& segment : segments_) {
    const std::int64_t first = std::max(begin, segment.begin);
    const std::int64_t end = std::min(begin + count, segment.begin + segment.count);
    if (first < end) {
      all.push_back({.place = {.file = segment.file.path(), .number = first - segment.begin},
                     .begin = first - begin,
                     .end = end - begin,
                     .counts = true});
    }
  }
  return all;
}

void Tokens::check_all() const {
  std::vector<std::int64_t> block(1 << 16);
  for (const Segment& segment : segments_) {
    if (segment.type == TokenType::u8) {
      continue;  // a byte is always below 256
    }
    for (std::int64_t at = 0; at < segment.count; at += std::ssize(block)) {
      const std::int64_t count = std::min<std::int64_t>(std::ssize(block), segment.count - at);
      read(segment.begin + at, std::span(block).first(static_cast<std::size_t>(count)));
    }
  }
}

std::string Tokens::content_hash() const {
  constexpr std::size_t block = std::size_t{1} << 20;
  std::vector<std::byte> bytes;
  ContentHash hash;
  for (const Segment& segment : segments_) {
    const auto count = static_cast<std::size_t>(segment.count);
    if (segment.type != TokenType::u8) {
      const std::string what = fmt::format("type {};", static_cast<int>(segment.type));
      hash.add(std::as_bytes(std::span(what)));
    }
    const std::size_t end = segment.offset + count * size_of(segment.type);
    for (std::size_t at = segment.offset; at < end; at += bytes.size()) {
      bytes.resize(std::min(block, end - at));
      read_bytes(segment, at, bytes);
      hash.add(bytes);
    }
  }
  return hash.hex();
}

}  // namespace tessera::data
