module;
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <tessera/shown.hpp>
module tessera.data;

import tessera.base;

namespace tessera::data {
namespace {

/// Reads the Python dictionary of the header, and only what NumPy itself writes there:
/// {'descr': '<u2', 'fortran_order': False, 'shape': (10,), }
class Header {
 public:
  Header(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  void parse() {
    expect('{');
    while (!accept('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !descr) {
        if (!peek('\'') && !peek('"')) {
          fail_input({.thing = name_, .wrong = "holds records, not token ids"});
        }
        descr = quoted();
      } else if (key == "fortran_order" && !fortran) {
        fortran = word();
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        parse_shape();
      } else {
        bad(fmt::format("unexpected or repeated key '{}'", shown(key, 40)));
      }
      if (!accept(',') && !peek('}')) {
        bad("expected ',' or '}'");
      }
    }
    skip();
    if (!text_.empty()) {
      bad("there is text after the dictionary");
    }
    if (!descr || !has_shape || !fortran || (*fortran != "False" && *fortran != "True")) {
      bad("descr, fortran_order or shape is missing");
    }
  }

  std::optional<std::string_view> descr;
  std::optional<std::string_view> fortran;
  bool has_shape = false;
  int dims = 0;
  std::uint64_t first_extent = 0;

 private:
  [[noreturn]] void bad(std::string_view why) const {
    fail_input(
        {.thing = name_, .wrong = fmt::format("the header of the .npy file is damaged: {}", why)});
  }
  void skip() {
    while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\n')) {
      text_.remove_prefix(1);
    }
  }
  bool peek(char c) {
    skip();
    return !text_.empty() && text_.front() == c;
  }
  bool accept(char c) {
    if (!peek(c)) {
      return false;
    }
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) {
      bad(fmt::format("expected '{}'", c));
    }
  }
  std::string_view quoted() {
    const char quote = peek('"') ? '"' : '\'';
    expect(quote);
    const std::size_t end = text_.find(quote);
    if (end == std::string_view::npos) {
      bad("a text does not end");
    }
    const std::string_view value = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return value;
  }
  std::string_view word() {
    skip();
    const std::size_t end = std::min(text_.find_first_of(",} "), text_.size());
    const std::string_view value = text_.substr(0, end);
    text_.remove_prefix(end);
    return value;
  }
  void parse_shape() {
    expect('(');
    while (!accept(')')) {
      skip();
      std::uint64_t extent = 0;
      const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), extent);
      if (error != std::errc{}) {
        bad("the shape is not a tuple of sizes");
      }
      text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
      if (dims++ == 0) {
        first_extent = extent;
      }
      if (!accept(',') && !peek(')')) {
        bad("the shape is not a tuple of sizes");
      }
    }
  }

  std::string_view text_;
  const std::string& name_;
};

TokenType token_type(std::string_view descr, const std::string& name) {
  if (descr == "<u2") {
    return TokenType::u16;
  }
  if (descr == "<u4") {
    return TokenType::u32;
  }
  if (descr == "<i4") {
    return TokenType::i32;
  }
  // '<u4' holds every id that a model can have, and what is none stays too large to be one: -100
  // becomes 4294967196. With '<u2', 65536 would become 0.
  const bool whole = descr.size() >= 3 && (descr[1] == 'u' || descr[1] == 'i');
  fail_input({.thing = name,
              .wrong = fmt::format("token ids have type '{}'{}", shown(descr, 40),
                                   descr.starts_with('>') ? " (big-endian)" : ""),
              .expected = "little-endian u16, u32 or i32: '<u2', '<u4', '<i4'",
              .advice = whole ? "write them with numpy.save(FILE, ids.astype('<u4'))"
                              : "these are no whole numbers; write the ids as the tokenizer "
                                "returns them, as '<u4'"});
}

}  // namespace

std::size_t size_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
      return 1;
    case TokenType::u16:
      return 2;
    case TokenType::u32:
    case TokenType::i32:
      break;
  }
  return 4;
}

NpyLayout read_npy_header(std::span<const std::byte> start, std::size_t size,
                          const std::string& name) {
  const std::string_view bytes(reinterpret_cast<const char*>(start.data()), start.size());
  if (bytes.size() < 12 || !bytes.starts_with("\x93NUMPY")) {
    fail_input({.thing = name, .wrong = "is not a .npy file (write it with numpy.save)"});
  }
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3 || bytes[7] != 0) {
    fail_input(
        {.thing = name,
         .wrong = fmt::format(".npy format {}.{} is unknown", version, static_cast<int>(bytes[7])),
         .expected = "1.0 to 3.0"});
  }
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  std::size_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    length |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[8 + i])) << (8 * i);
  }
  NpyLayout layout;
  layout.offset = 8 + length_bytes + length;
  if (layout.offset > size) {
    fail_input(
        {.thing = name,
         .wrong = fmt::format("the file is truncated: its header needs {} bytes, the file has {}",
                              layout.offset, size)});
  }
  if (layout.offset > bytes.size()) {
    fail_input({.thing = name,
                .wrong = "the header of the .npy file is damaged: it is too long",
                .expected = fmt::format("at most {} bytes", npy_header_limit),
                .got = fmt::format("{}", layout.offset)});
  }
  Header header(bytes.substr(8 + length_bytes, length), name);
  header.parse();
  layout.type = token_type(*header.descr, name);
  if (header.dims != 1) {
    fail_input({.thing = name,
                .wrong = fmt::format("expected one dimension of token ids, got {}", header.dims)});
  }
  const std::size_t present = size - layout.offset;
  const std::size_t token = size_of(layout.type);
  if (header.first_extent > std::numeric_limits<std::int64_t>::max() / token ||
      header.first_extent * token != present) {
    fail_input(
        {.thing = name,
         .wrong = fmt::format("the header announces {} tokens of {} bytes, but {} bytes follow",
                              header.first_extent, token, present),
         .advice = "the file is truncated or damaged"});
  }
  layout.count = static_cast<std::int64_t>(header.first_extent);
  return layout;
}

}  // namespace tessera::data
