module;
#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/utf8.hpp>
#include <utility>
#include <vector>

#include "argument_texts.hpp"
module tessera.text;

import tessera.base;

namespace tessera::text {
namespace {

constexpr std::size_t longest_header = 400;

/// What follows a mark in a header, up to a blank or the next mark.
std::string_view word_after(std::string_view header, std::string_view mark) {
  const std::size_t at = header.rfind(mark);
  if (at == std::string_view::npos) {
    return {};
  }
  const std::string_view rest = header.substr(at + mark.size());
  return rest.substr(0, rest.find_first_of(" \t\r\n<"));
}

/// The place of the first of two marks in a text, and its length. Both may be at its end in part:
/// `known` is how much of the text is before them in any case.
struct MarkPlace {
  std::size_t at = std::string_view::npos;
  std::size_t length = 0;
  std::size_t known = 0;
};

MarkPlace find_mark(std::string_view text, const std::string& one, const std::string& other) {
  const std::size_t first = text.find(one);
  const std::size_t second = text.find(other);
  if (const std::size_t at = std::min(first, second); at != std::string_view::npos) {
    return {.at = at, .length = first < second ? one.size() : other.size(), .known = at};
  }
  return {.known = text.size() - std::max(begun_at_end(text, one), begun_at_end(text, other))};
}

}  // namespace

void ToolCallReader::show_message(std::string_view text, Part& part) const {
  (place_ == Place::thoughts ? part.thoughts : part.text) += text;
}

/// Reads a header, or finds that there is none; false: what is there may become one.
bool ToolCallReader::take_header(const ChannelCalls& form, bool whole, std::string_view& rest) {
  std::string_view header = rest;
  skip_blanks(header);
  if (begins(header, form.message).value_or(false)) {
    header.remove_prefix(form.message.size());
    skip_blanks(header);
  }
  bool possible = false;
  bool there = false;
  for (const std::string& mark : {form.channel, form.recipient, form.message}) {
    const auto found = begins(header, mark);
    possible = possible || !found;
    there = there || (found.value_or(false) && mark != form.message);
  }
  const std::size_t at = there ? header.find(form.content) : std::string_view::npos;
  if (at < longest_header) {
    const std::string_view own = header.substr(0, at);
    called_ = word_after(own, form.recipient);
    place_ = !called_.empty()                                 ? Place::call
             : word_after(own, form.channel) == form.thoughts ? Place::thoughts
                                                              : Place::text;
    rest = header.substr(at + form.content.size());
    return true;
  }
  if (there ? at == std::string_view::npos && header.size() <= longest_header : possible) {
    rest =
        whole ? std::string_view() : rest;  // an answer that ends within a header has no text there
    return false;
  }
  place_ = Place::text;  // without a header
  return true;
}

ToolCallReader::Part ToolCallReader::advance_messages(const ChannelCalls& form, bool whole) {
  Part part;
  std::string_view rest = held_;
  while (!rest.empty()) {
    if (place_ == Place::header) {
      if (!take_header(form, whole, rest)) {
        break;
      }
      continue;
    }
    const MarkPlace end = find_mark(rest, form.end, form.call_end);
    const bool ended = end.at != std::string_view::npos;
    if (place_ == Place::call) {
      if (!ended && !whole) {
        break;
      }
      const std::string_view arguments = without_blanks(rest.substr(0, end.at));
      const auto json = arguments.starts_with('{') ? read_json(arguments) : std::nullopt;
      if (json && json->is_object()) {
        part.calls.push_back({.name = called_, .arguments = std::string(arguments)});
      } else {
        part.text += arguments;  // no call
      }
      rest.remove_prefix(ended ? end.at + end.length : rest.size());
    } else {
      const std::size_t known = whole && !ended ? rest.size() : end.known;
      show_message(rest.substr(0, known), part);
      rest.remove_prefix(known + end.length);
      if (!ended) {
        break;
      }
    }
    place_ = Place::header;
  }
  held_ = std::string(rest);
  return part;
}

}  // namespace tessera::text
