module;
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "tessera/gguf.hpp"
#include "tessera/json.hpp"
#include "tessera/shown.hpp"
module tessera.ggml;

import tessera.base;

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::string_view magic = "GGUF";
constexpr std::size_t most_dims = 4;
constexpr std::uint64_t most_header_bytes = std::uint64_t{1} << 30;

/// Types of fields by their numbers in the file; 9 is a list.
constexpr std::string_view type_names[] = {"u8",   "i8",   "u16",  "i16", "u32", "i32", "f32",
                                           "bool", "text", "list", "u64", "i64", "f64"};
enum class Type : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  text,
  list,
  u64,
  i64,
  f64
};

static_assert(std::endian::native == std::endian::little);

/// The number of bytes that a value has at least.
std::uint64_t least_bytes(Type type) {
  switch (type) {
    case Type::u8:
    case Type::i8:
    case Type::boolean:
      return 1;
    case Type::u16:
    case Type::i16:
      return 2;
    case Type::u32:
    case Type::i32:
    case Type::f32:
      return 4;
    default:
      return 8;
  }
}

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const int more = first < 0x80   ? 0
                     : first < 0xc2 ? -1
                     : first < 0xe0 ? 1
                     : first < 0xf0 ? 2
                     : first < 0xf5 ? 3
                                    : -1;
    if (more < 0 || text.size() - i <= static_cast<std::size_t>(more)) {
      return false;
    }
    for (int k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]);
      // The second byte excludes longer forms than necessary, surrogates and what is too large.
      const unsigned low = k > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
      const unsigned high = k > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
      if (next < low || next > high) {
        return false;
      }
    }
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

/// The first wrong thing ends the reading.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& path) : path_(path), stream_(path, std::ios::binary) {
    std::error_code error;
    const std::uintmax_t size = std::filesystem::file_size(path, error);
    if (error || !stream_) {
      wrong("the file cannot be read");
    }
    size_ = size;
  }

  GgufHeader read() {
    where_ = "the beginning";
    if (bytes(magic.size()) != magic) {
      wrong("it is not a GGUF file");
    }
    const auto version = number<std::uint32_t>();
    if (version != 2 && version != 3) {
      wrong(fmt::format(
          "its version is not supported (expected 2 or 3 in little-endian bytes, got {})",
          version));
    }
    const auto tensors = number<std::uint64_t>();
    const auto fields = number<std::uint64_t>();
    check_count(fields, 13, "fields");  // an empty name, a type, a value
    for (std::uint64_t i = 0; i < fields; ++i) {
      read_field();
    }
    read_alignment();
    where_ = "the table of tensors";
    check_count(tensors, 24, "tensors");  // an empty name, no dims, a type, a position
    for (std::uint64_t i = 0; i < tensors; ++i) {
      read_tensor(i);
    }
    header_.bytes = (at_ + header_.alignment - 1) / header_.alignment * header_.alignment;
    if (!header_.tensors.empty() && header_.bytes > size_) {
      wrong(fmt::format("the file ends within the header (expected at least {} bytes, got {})",
                        header_.bytes, size_));
    }
    return std::move(header_);
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    fail_input({.thing = path_, .wrong = what, .advice = "download or write the file again"});
  }

  void require_bytes(std::uint64_t count) const {
    if (count > size_ - at_) {
      wrong(
          fmt::format("{}: the file is cut, or a length is wrong (expected {} more bytes, got {})",
                      where_, count, size_ - at_));
    }
    if (count > most_header_bytes - std::min(at_, most_header_bytes)) {
      wrong(fmt::format("{}: the header has more than {} bytes", where_, most_header_bytes));
    }
  }

  void take(char* to, std::uint64_t count) {
    require_bytes(count);
    if (count > 0 && !stream_.read(to, static_cast<std::streamsize>(count))) {
      wrong(fmt::format("{}: the file has become shorter while it was read", where_));
    }
    at_ += count;
  }

  std::string bytes(std::uint64_t count) {
    require_bytes(count);
    std::string text(count, '\0');
    take(text.data(), count);
    return text;
  }

  template <class T>
  T number() {
    T value{};
    take(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }

  std::string text() {
    std::string read = bytes(number<std::uint64_t>());
    if (!is_utf8(read)) {
      wrong(fmt::format("{}: the text '{}' is not UTF-8", where_, shown(read, 40)));
    }
    return read;
  }

  void check_count(std::uint64_t count, std::uint64_t least, std::string_view what) const {
    if (count > (size_ - at_) / least) {
      wrong(
          fmt::format("the file is cut, or the number of {} is wrong (expected at most {}, got {})",
                      what, (size_ - at_) / least, count));
    }
  }

  Type type() {
    const auto type = number<std::uint32_t>();
    if (type >= std::size(type_names)) {
      wrong(fmt::format("{}: unknown type {} (expected 0 to {})", where_, type,
                        std::size(type_names) - 1));
    }
    return static_cast<Type>(type);
  }

  Json value(Type type) {
    switch (type) {
      case Type::u8:
        return number<std::uint8_t>();
      case Type::i8:
        return number<std::int8_t>();
      case Type::u16:
        return number<std::uint16_t>();
      case Type::i16:
        return number<std::int16_t>();
      case Type::u32:
        return number<std::uint32_t>();
      case Type::i32:
        return number<std::int32_t>();
      case Type::u64:
        return number<std::uint64_t>();
      case Type::i64:
        return number<std::int64_t>();
      case Type::f32:
        return finite(number<float>());
      case Type::f64:
        return finite(number<double>());
      case Type::boolean: {
        const auto byte = number<std::uint8_t>();
        if (byte > 1) {
          wrong(fmt::format("{}: a boolean is neither 0 nor 1", where_));
        }
        return byte == 1;
      }
      case Type::text:
        return text();
      default:
        wrong(fmt::format("{}: a list of lists is not supported", where_));
    }
  }

  double finite(double number) const {
    if (!std::isfinite(number)) {
      wrong(fmt::format("{}: a number is not finite", where_));
    }
    return number;
  }

  void read_field() {
    where_ = fmt::format("after field '{}'", last_);
    last_ = text();
    where_ = fmt::format("field '{}'", shown(last_, 80));
    const Type kind = type();
    Json field;
    if (kind != Type::list) {
      field = {{"type", type_names[static_cast<std::size_t>(kind)]}, {"value", value(kind)}};
    } else {
      const Type element = type();
      const auto count = number<std::uint64_t>();
      check_count(count, least_bytes(element), "values");
      Json values = Json::array();
      for (std::uint64_t i = 0; i < count; ++i) {
        values.push_back(value(element));
      }
      field = {{"type", type_names[static_cast<std::size_t>(element)]},
               {"values", std::move(values)}};
    }
    if (!header_.fields.emplace(last_, std::move(field)).second) {
      wrong(fmt::format("{} is there twice", where_));
    }
  }

  void read_alignment() {
    const auto found = header_.fields.find("general.alignment");
    if (found == header_.fields.end()) {
      return;
    }
    const Json alignment = found->value("value", Json());
    if (!alignment.is_number_unsigned() || !std::has_single_bit(alignment.get<std::uint64_t>()) ||
        alignment > 1U << 20) {
      wrong("field 'general.alignment' is not a power of two up to 2^20");
    }
    header_.alignment = alignment.get<std::uint64_t>();
  }

  void read_tensor(std::uint64_t count) {
    where_ = fmt::format("tensor {}", count);
    GgufTensor tensor{.name = text()};
    where_ = fmt::format("tensor '{}'", shown(tensor.name, 80));
    if (!names_.insert(tensor.name).second) {
      wrong(fmt::format("{} is there twice", where_));
    }
    constexpr std::int64_t most_elements = std::int64_t{1} << 58;  // their bytes can be counted
    const auto dims = number<std::uint32_t>();
    if (dims > most_dims) {
      wrong(
          fmt::format("{}: too many dims (expected at most {}, got {})", where_, most_dims, dims));
    }
    std::int64_t elements = 1;
    for (std::uint32_t d = 0; d < dims; ++d) {
      const auto extent = number<std::uint64_t>();
      if (extent > most_elements ||
          __builtin_mul_overflow(
              elements, static_cast<std::int64_t>(std::max<std::uint64_t>(extent, 1)), &elements) ||
          elements > most_elements) {
        wrong(fmt::format("{}: its dims are too large", where_));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<std::int64_t>(extent));
    }
    tensor.type = number<std::uint32_t>();
    tensor.begin = number<std::uint64_t>();
    header_.tensors.push_back(std::move(tensor));
  }

  std::string path_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
  std::uint64_t at_ = 0;
  std::string where_;
  std::string last_;
  std::set<std::string> names_;
  GgufHeader header_;
};

template <class T>
void add_bytes(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void add_text(std::string& out, std::string_view text) {
  add_bytes(out, std::uint64_t{text.size()});
  out += text;
}

void add_value(std::string& out, Type type, const Json& value) {
  switch (type) {
    case Type::u8:
      return add_bytes(out, value.get<std::uint8_t>());
    case Type::i8:
      return add_bytes(out, value.get<std::int8_t>());
    case Type::u16:
      return add_bytes(out, value.get<std::uint16_t>());
    case Type::i16:
      return add_bytes(out, value.get<std::int16_t>());
    case Type::u32:
      return add_bytes(out, value.get<std::uint32_t>());
    case Type::i32:
      return add_bytes(out, value.get<std::int32_t>());
    case Type::f32:
      return add_bytes(out, value.get<float>());
    case Type::boolean:
      return add_bytes(out, std::uint8_t{value.get<bool>()});
    case Type::text:
      return add_text(out, value.get_ref<const std::string&>());
    case Type::u64:
      return add_bytes(out, value.get<std::uint64_t>());
    case Type::i64:
      return add_bytes(out, value.get<std::int64_t>());
    case Type::f64:
      return add_bytes(out, value.get<double>());
    case Type::list:
      fail("GGUF: a list of lists cannot be written");
  }
}

void add_field(std::string& out, const std::string& name, const Json& field) {
  const auto* const found = std::ranges::find(type_names, field.at("type").get<std::string>());
  if (found == std::end(type_names)) {
    fail({.thing = "GGUF field '" + name + "'", .wrong = "its type is unknown"});
  }
  const auto type = static_cast<Type>(found - std::begin(type_names));
  add_text(out, name);
  if (field.contains("value")) {
    add_bytes(out, type);
    return add_value(out, type, field["value"]);
  }
  const Json& values = field.at("values");
  add_bytes(out, Type::list);
  add_bytes(out, type);
  add_bytes(out, std::uint64_t{values.size()});
  for (const Json& value : values) {
    add_value(out, type, value);
  }
}

}  // namespace

bool is_gguf(const std::string& path) {
  std::error_code ignored;
  std::string begin(magic.size(), '\0');
  return std::filesystem::is_regular_file(path, ignored) &&
         std::ifstream(path, std::ios::binary).read(begin.data(), std::ssize(begin)) &&
         begin == magic;
}

// Declared in a plain header, so not a part of the module.
extern "C++" {

GgufHeader read_gguf(const std::string& path) { return HeaderReader(path).read(); }

std::string gguf_header(const Json& fields, std::span<const GgufTensor> tensors) {
  std::string out(magic);
  add_bytes(out, std::uint32_t{3});
  add_bytes(out, std::uint64_t{tensors.size()});
  add_bytes(out, std::uint64_t{fields.size()});
  for (const auto& [name, field] : fields.items()) {
    add_field(out, name, field);
  }
  for (const GgufTensor& tensor : tensors) {
    add_text(out, tensor.name);
    add_bytes(out, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent) {
      add_bytes(out, static_cast<std::uint64_t>(*extent));
    }
    add_bytes(out, tensor.type);
    add_bytes(out, tensor.begin);
  }
  out.resize((out.size() + 31) / 32 * 32, '\0');
  return out;
}

}  // extern "C++"

}  // namespace tessera
