module;
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.text;

import tessera.base;

namespace tessera::text {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// How many bytes a character has that begins with this one; 0: none begins so.
std::size_t length_of(unsigned char first) {
  return first < 0x80    ? 1
         : first < 0xC2  ? 0
         : first < 0xE0  ? 2
         : first < 0xF0  ? 3
         : first <= 0xF4 ? 4
                         : 0;
}

/// Whether a character may have this second byte. Source: The Unicode Standard, table 3-7.
bool may_follow(unsigned char first, unsigned char second) {
  const unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

/// How many bytes at the beginning of a text belong together: a character, the beginning of one, or
/// what is none.
struct LeadingBytes {
  std::size_t bytes = 0;
  bool valid = false;
  bool complete = false;  // no further byte can belong to it
};

LeadingBytes leading(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t wanted = length_of(byte(0));
  if (wanted < 2) {
    return {.bytes = 1, .valid = wanted == 1, .complete = true};
  }
  std::size_t have = 1;
  while (have < wanted && have < text.size() &&
         (have == 1 ? may_follow(byte(0), byte(1)) : (byte(have) & 0xC0U) == 0x80)) {
    ++have;
  }
  return {.bytes = have, .valid = have == wanted, .complete = have == wanted || have < text.size()};
}

}  // namespace

StreamedText::StreamedText(std::vector<std::string> stop) : stop_(std::move(stop)) {
  if (std::ranges::any_of(stop_, &std::string::empty)) {
    fail_input({.thing = "stop string", .wrong = "it is empty"});
  }
}

std::string StreamedText::whole_characters(std::string_view part) {
  bytes_ += part;
  std::string whole;
  std::string_view rest = bytes_;
  while (!rest.empty()) {
    const LeadingBytes next = leading(rest);
    if (!next.complete) {
      break;
    }
    whole += next.valid ? rest.substr(0, next.bytes) : replacement;
    rest.remove_prefix(next.bytes);
  }
  bytes_.erase(0, bytes_.size() - rest.size());
  return whole;
}

std::string StreamedText::before_stop(std::string_view text) {
  text_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stop_) {
    first = std::min(first, text_.find(stop));
  }
  if (first != std::string::npos) {
    stopped_ = true;
    return std::exchange(text_, {}).substr(0, first);
  }
  std::size_t kept = 0;  // bytes at the end with which a stop string begins
  for (const std::string& stop : stop_) {
    for (std::size_t n = std::min(stop.size() - 1, text_.size()); n > kept; --n) {
      if (text_.ends_with(std::string_view(stop).substr(0, n))) {
        kept = n;
      }
    }
  }
  std::string shown = text_.substr(0, text_.size() - kept);
  text_.erase(0, shown.size());
  return shown;
}

std::string StreamedText::add(std::string_view part) {
  return stopped_ ? std::string() : before_stop(whole_characters(part));
}

std::string StreamedText::finish() {
  if (stopped_) {
    return {};
  }
  const std::string last = before_stop(std::exchange(bytes_, {}).empty() ? "" : replacement);
  return last + std::exchange(text_, {});
}

}  // namespace tessera::text
