// The few parts of Protocol Buffers' encoding that other programs' files need here: messages as
// sequences of numbered fields.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::protobuf {

enum class Wire : std::uint8_t { varint = 0, eight_bytes = 1, bytes = 2, four_bytes = 5 };

inline void add_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) {
    out += static_cast<char>(value | 0x80);
  }
  out += static_cast<char>(value);
}

inline void add_key(std::string& out, std::uint32_t field, Wire wire) {
  add_varint(out, field << 3U | static_cast<std::uint32_t>(wire));
}

inline void add_integer(std::string& out, std::uint32_t field, std::int64_t value) {
  add_key(out, field, Wire::varint);
  add_varint(out, static_cast<std::uint64_t>(value));
}

template <class T>
void add_plain(std::string& out, std::uint32_t field, T value) {
  static_assert(sizeof value == 4 || sizeof value == 8);
  add_key(out, field, sizeof value == 4 ? Wire::four_bytes : Wire::eight_bytes);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A text, or a message within the message.
inline void add_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  add_key(out, field, Wire::bytes);
  add_varint(out, bytes.size());
  out += bytes;
}

struct Field {
  std::uint32_t number = 0;
  Wire wire = Wire::varint;
  std::uint64_t value = 0;  // of numbers: their bits
  std::string_view bytes = {};

  float as_float() const {
    float number_of_bits = 0;
    std::memcpy(&number_of_bits, &value, sizeof number_of_bits);
    return number_of_bits;
  }
  double as_double() const {
    double number_of_bits = 0;
    std::memcpy(&number_of_bits, &value, sizeof number_of_bits);
    return number_of_bits;
  }
};

inline std::optional<std::uint64_t> take_varint(std::string_view& rest) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64 && !rest.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest.front());
    rest.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) {
      return value;
    }
  }
  return std::nullopt;
}

/// Takes the next field of a message; nothing where it ends, or where it is damaged: `rest` is not
/// empty then.
inline std::optional<Field> take_field(std::string_view& rest) {
  std::string_view left = rest;
  const auto key = take_varint(left);
  if (!key) {
    return std::nullopt;
  }
  Field field{.number = static_cast<std::uint32_t>(*key >> 3U),
              .wire = static_cast<Wire>(*key & 7U)};
  std::size_t plain = 0;
  switch (field.wire) {
    case Wire::varint: {
      const auto value = take_varint(left);
      if (!value) {
        return std::nullopt;
      }
      field.value = *value;
      break;
    }
    case Wire::bytes: {
      const auto length = take_varint(left);
      if (!length || *length > left.size()) {
        return std::nullopt;
      }
      field.bytes = left.substr(0, *length);
      left.remove_prefix(*length);
      break;
    }
    case Wire::eight_bytes:
      plain = 8;
      break;
    case Wire::four_bytes:
      plain = 4;
      break;
    default:
      return std::nullopt;
  }
  if (plain > left.size()) {
    return std::nullopt;
  }
  std::memcpy(&field.value, left.data(), plain == 0 ? 0 : plain);
  left.remove_prefix(plain);
  rest = left;
  return field;
}

}  // namespace tessera::protobuf
