module;
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <tessera/utf8.hpp>
#include <variant>
module tessera.stores;

import tessera.base;

namespace tessera::stores {
namespace {

/// The scheme with which a text begins; empty: it is no address.
std::string_view scheme_of(std::string_view text) {
  const std::size_t colon = text.find(':');
  constexpr std::size_t longest_scheme = 32;
  if (colon == std::string_view::npos || colon < 2 || colon > longest_scheme) {
    return {};
  }
  const std::string_view scheme = text.substr(0, colon);
  const auto small = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto allowed = [&](char c) {
    return small(c) || (c >= '0' && c <= '9') || c == '+' || c == '-';
  };
  return small(scheme[0]) && std::ranges::all_of(scheme, allowed) ? scheme : std::string_view{};
}

/// What is wrong with the characters of a name; empty: nothing.
std::string_view wrong_characters(std::string_view text) {
  while (!text.empty()) {
    const Character character = first_character(text);
    if (character.bytes == 0) {
      return "it is not UTF-8";
    }
    if (character.code < 0x20 || (character.code >= 0x7f && character.code < 0xa0)) {
      return "it has a control character";
    }
    if (character.code == U'\\') {
      return "it has a '\\'";
    }
    text.remove_prefix(character.bytes);
  }
  return {};
}

/// What is wrong with the parts of a name; empty: nothing.
std::string_view wrong_parts(std::string_view name) {
  for (bool last = false; !last;) {
    const std::size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part.empty()) {
      return "it has an empty part between '/'";
    }
    if (part == "." || part == "..") {
      return "it has the part '.' or '..'";
    }
    last = slash == std::string_view::npos;
    name.remove_prefix(last ? name.size() : slash + 1);
  }
  return {};
}

/// An address without what may be a password, for an error.
std::string without_user(std::string_view text) {
  const std::size_t at = text.rfind('@', text.find('/', text.find("//") + 2));
  const std::size_t begin = text.find("//");
  return at == std::string_view::npos || begin == std::string_view::npos || at < begin
             ? std::string(text)
             : std::string(text.substr(0, begin + 2)) + "***" + std::string(text.substr(at));
}

[[noreturn]] void refuse(std::string_view text, std::string_view wrong, std::string advice = "") {
  fail_input({.thing = terminal_line(without_user(text.substr(0, text.find_first_of("?#")))),
              .wrong = std::string(wrong),
              .advice = std::move(advice)});
}

}  // namespace

Address::Address(std::string_view text) : text_(text), scheme_(scheme_of(text)) {
  if (text.size() > longest_address) {
    refuse(text, fmt::format("the address is too long (expected at most {} bytes, got {})",
                             longest_address, text.size()));
  }
  if (scheme_.empty()) {
    refuse(text, "it is not the address of a store (expected SCHEME:..., as s3://bucket/path)");
  }
  std::string_view rest = text.substr(scheme_.size() + 1);
  const bool has_host = rest.starts_with("//");
  rest.remove_prefix(has_host ? 2 : 0);
  if (rest.find_first_of("?#") != std::string_view::npos) {
    refuse(text, "an address has no '?' and no '#', as it is shown and stored",
           "give keys and tokens by the environment (docs/stores.md)");
  }
  if (has_host && rest.substr(0, rest.find('/')).find('@') != std::string_view::npos) {
    refuse(text, "an address has no user and no password, as it is shown and stored",
           "give keys and tokens by the environment (docs/stores.md)");
  }
  while (rest.ends_with('/')) {
    rest.remove_suffix(1);
  }
  if (rest.empty()) {
    refuse(text, "the address names nothing");
  }
  if (const std::string_view wrong = wrong_characters(rest); !wrong.empty()) {
    refuse(text, wrong);
  }
  if (const std::string_view wrong = wrong_parts(rest); !wrong.empty()) {
    refuse(text, wrong);
  }
  rest_ = rest;
  text_ = fmt::format("{}:{}{}", scheme_, has_host ? "//" : "", rest_);
}

bool Address::operator==(const Address& other) const { return text_ == other.text_; }
bool LocalPath::operator==(const LocalPath& other) const { return path == other.path; }

Address Address::operator/(std::string_view name) const {
  return name.empty() ? *this : Address(fmt::format("{}/{}", text_, name));
}

Location parse_location(std::string_view text) {
  return is_address(text) ? Location(Address(text)) : Location(LocalPath{std::string(text)});
}

bool is_address(std::string_view text) { return !scheme_of(text).empty(); }

const std::string& text_of(const Location& location) {
  const Address* const address = std::get_if<Address>(&location);
  return address != nullptr ? address->text() : std::get<LocalPath>(location).path;
}

void check_object_name(std::string_view name, const std::string& thing) {
  std::string_view wrong = name.size() > Address::longest_address ? "it is too long" : "";
  wrong = wrong.empty() ? wrong_characters(name) : wrong;
  wrong = wrong.empty() ? wrong_parts(name) : wrong;
  if (!wrong.empty()) {
    fail_input(
        {.thing = thing,
         .wrong = fmt::format("the name '{}' cannot be used: {}", terminal_line(name), wrong)});
  }
}

}  // namespace tessera::stores
