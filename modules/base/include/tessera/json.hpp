// JSON that others may have written: parsed within stated limits, so that a hostile text costs
// neither minutes nor gigabytes. Every text from outside the program goes through here.
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera {

struct JsonLimits {
  std::size_t bytes = 100'000'000;  // of the text
  std::size_t values = 10'000'000;  // objects, lists, names and single values together
  std::size_t depth = 64;           // of objects and lists within each other
};

template <class Json>
struct ParseResult {
  Json value;
  std::string problem;  // empty: the text is an object in which no name occurs twice
};
using ParsedJson = ParseResult<nlohmann::json>;
/// The members of every object in the order of the text, for formats in which that order has a
/// meaning. A member is looked up in time proportional to their number.
using ParsedOrderedJson = ParseResult<nlohmann::ordered_json>;

/// Parses an object. Stops at the first thing that is wrong, a broken limit included; the work is
/// proportional to the text up to there. The problem's text fits after "FILE: ".
ParsedJson parse_json_object(std::string_view text, const JsonLimits& limits = {});

/// Reads the object from a file, whose size is checked before a byte of it is read. A file that
/// cannot be read, or is not a regular file, is a problem too.
ParsedJson read_json_object(const std::string& path, const JsonLimits& limits = {});
ParsedOrderedJson read_ordered_json_object(const std::string& path, const JsonLimits& limits = {});

// nlohmann's parser and writer, compiled here once: they cost the compiler more than a second in
// every source that calls them itself.

/// Parses without limits: what the program itself has written. Throws nlohmann's parse_error, or
/// returns a discarded value where it is not to throw.
nlohmann::json parse_json(std::string_view text, bool throws = true);
/// Likewise; Error (input) where it is no JSON, and for a whole number of more than 64 bits, which
/// would change.
nlohmann::ordered_json parse_ordered_json(std::string_view text);
/// As its dump(): in one line, or indented by `indent` spaces.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace tessera
