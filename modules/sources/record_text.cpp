#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tessera/record_text.hpp>

namespace tessera::sources {
namespace {

constexpr std::uint64_t ones = 0x0101010101010101U;
constexpr std::uint64_t tops = 0x8080808080808080U;

/// Whether one of eight bytes is below `least`, at most 128.
constexpr bool has_below(std::uint64_t bytes, std::uint64_t least) {
  return ((bytes - ones * least) & ~bytes & tops) != 0;
}

constexpr bool is_escaped(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\';
}

/// The place of the first byte from `at` on that a text of JSON cannot have as it is; the text's
/// size: there is none.
std::size_t next_escaped(std::string_view text, std::size_t at) {
  for (; at + 8 <= text.size(); at += 8) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, text.data() + at, 8);
    if (has_below(bytes, 0x20) || has_below(bytes ^ (ones * '"'), 1) ||
        has_below(bytes ^ (ones * '\\'), 1)) {
      break;
    }
  }
  while (at < text.size() && !is_escaped(text[at])) {
    ++at;
  }
  return at;
}

void append_escape(char c, std::string& to) {
  constexpr std::string_view digits = "0123456789abcdef";
  switch (c) {
    case '"':
      to += "\\\"";
      return;
    case '\\':
      to += "\\\\";
      return;
    case '\n':
      to += "\\n";
      return;
    case '\r':
      to += "\\r";
      return;
    case '\t':
      to += "\\t";
      return;
    default:
      to += "\\u00";
      to += digits[static_cast<unsigned char>(c) >> 4U];
      to += digits[static_cast<unsigned char>(c) & 0xFU];
  }
}

template <class T>
std::string_view digits_of(T value, std::array<char, 40>& buffer) {
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), static_cast<std::size_t>(end.ptr - buffer.data())};
}

}  // namespace

void RecordText::begin() {
  if (follows_) {
    to_ += ',';
  }
  follows_ = true;
}

void RecordText::open_object() {
  begin();
  to_ += '{';
  follows_ = false;
}
void RecordText::close_object() {
  to_ += '}';
  follows_ = true;
}
void RecordText::open_list() {
  begin();
  to_ += '[';
  follows_ = false;
}
void RecordText::close_list() {
  to_ += ']';
  follows_ = true;
}

void RecordText::quoted(std::string_view text) {
  to_ += '"';
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = next_escaped(text, at);
    to_.append(text, at, end - at);
    if (end < text.size()) {
      append_escape(text[end], to_);
    }
    at = end + 1;
  }
  to_ += '"';
}

void RecordText::name(std::string_view name) {
  begin();
  quoted(name);
  to_ += ':';
  follows_ = false;
}

void RecordText::text(std::string_view text) {
  begin();
  quoted(text);
}

void RecordText::number(std::int64_t value) {
  begin();
  std::array<char, 40> buffer{};
  to_ += digits_of(value, buffer);
}

void RecordText::number(std::uint64_t value) {
  begin();
  std::array<char, 40> buffer{};
  to_ += digits_of(value, buffer);
}

void RecordText::number(double value) {
  if (!std::isfinite(value)) {
    throw std::domain_error("a number is not finite, and JSON has none that is not");
  }
  begin();
  std::array<char, 40> buffer{};
  const std::string_view digits = digits_of(value, buffer);
  to_ += digits;
  if (digits.find_first_of(".e") == std::string_view::npos) {
    to_ += ".0";
  }
}

void RecordText::truth(bool value) {
  begin();
  to_ += value ? "true" : "false";
}

void RecordText::null() {
  begin();
  to_ += "null";
}

}  // namespace tessera::sources
