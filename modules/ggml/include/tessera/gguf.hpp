// The header of a GGUF file (ggml's format of models): fields by name, and where each tensor is.
// What the fields mean and how tensors are stored is decided by who reads them.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// A tensor as the header describes it.
struct GgufTensor {
  std::string name;
  std::uint32_t type = 0;                // ggml's number of the stored type
  std::vector<std::int64_t> shape = {};  // the outermost dim first, at most 4; their product fits
  std::uint64_t begin = 0;               // of its bytes, after the header
};

struct GgufHeader {
  /// By name: {"type": "u32", "value": 5}, or of a list {"type": "text", "values": ["a", "b"]}.
  /// Types: u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool text.
  nlohmann::json fields = nlohmann::json::object();
  std::vector<GgufTensor> tensors;
  std::uint64_t bytes = 0;  // of the whole header, rounded up to the alignment: tensors follow
  std::uint64_t alignment = 32;
};

/// Reads a header of version 2 or 3; the work and the memory are proportional to its size. Error
/// (input) that names the file and the field or tensor: it is cut or damaged (a length beyond the
/// end of the file, a name twice, a text that is not UTF-8, dims whose product does not fit).
GgufHeader read_gguf(const std::string& path);

/// The bytes of a header of version 3 with these fields, filled up to a multiple of 32.
std::string gguf_header(const nlohmann::json& fields, std::span<const GgufTensor> tensors);

}  // namespace tessera
