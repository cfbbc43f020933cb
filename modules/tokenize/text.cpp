#include "text.hpp"

#include <algorithm>
#include <utility>

#include "utf8.hpp"

namespace tessera::tokenize {

Allowance::Allowance(std::size_t input_bytes)
    : steps(2'000'000 + 200 * static_cast<std::int64_t>(input_bytes)) {}

std::size_t Allowance::text_bytes(std::size_t input_bytes) {
  constexpr std::size_t large = std::size_t{16} << 20;
  return std::min(256 + 32 * input_bytes, large + 4 * input_bytes);
}

void Text::reset(std::string_view text, std::size_t base, bool tracked) {
  view_ = text;
  most_ = Allowance::text_bytes(view_.size());
  base_ = base;
  tracked_ = tracked;
  sources_ = nullptr;
}

void Text::reset(const Text& whole, Piece part, bool tracked) {
  view_ = whole.view(part);
  most_ = Allowance::text_bytes(view_.size());
  base_ = whole.base_ + part.begin;
  tracked_ = tracked;
  sources_ = whole.sources_ == nullptr ? nullptr : whole.sources_ + part.begin;
}

Source Text::source(Piece piece) const {
  if (piece.begin == piece.end) {
    const std::uint32_t at = piece.begin < view_.size() ? source(piece.begin).begin
                             : view_.empty()            ? static_cast<std::uint32_t>(base_)
                                                        : source(view_.size() - 1).end;
    return {at, at};
  }
  Source whole = source(piece.begin);
  if (sources_ == nullptr) {
    whole.end = static_cast<std::uint32_t>(base_ + piece.end);
    return whole;
  }
  for (std::uint32_t i = piece.begin; i < piece.end; ++i) {
    whole.begin = std::min(whole.begin, sources_[i].begin);
    whole.end = std::max(whole.end, sources_[i].end);
  }
  return whole;
}

Rewriter::Rewriter(Text& text) : text_(text) {
  text_.spare_.clear();
  text_.spare_sources_.clear();
}

void Rewriter::keep(std::size_t begin, std::size_t end) {
  text_.spare_ += text_.view_.substr(begin, end - begin);
  if (text_.tracked_) {
    for (; begin < end; ++begin) {
      text_.spare_sources_.push_back(text_.source(begin));
    }
  }
}

void Rewriter::put(std::string_view bytes, std::size_t begin, std::size_t end) {
  if (bytes.size() > end - begin && text_.spare_.size() + bytes.size() > text_.most_) {
    throw TextSizeError{text_.most_};
  }
  text_.spare_ += bytes;
  if (text_.tracked_) {
    const Source source =
        text_.source(Piece{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
    text_.spare_sources_.insert(text_.spare_sources_.end(), bytes.size(), source);
  }
}

void Rewriter::put(char32_t character, std::size_t begin, std::size_t end) {
  std::string bytes;
  append_utf8(bytes, character);
  put(bytes, begin, end);
}

void Rewriter::finish() {
  std::swap(text_.owned_, text_.spare_);
  text_.view_ = text_.owned_;
  if (text_.tracked_) {
    std::swap(text_.owned_sources_, text_.spare_sources_);
    text_.sources_ = text_.owned_sources_.data();
  }
}

}  // namespace tessera::tokenize
