// The header of a safetensors file, as bytes.
module tessera.checkpoint:header;

import tessera.base;
import :source;

namespace tessera::checkpoint_detail {

/// Limit of the format's own library, in bytes.
inline constexpr std::uint64_t longest_header = 100'000'000;

struct HeaderEntry {
  std::string name;
  TensorInfo info;
  std::uint64_t begin = 0;  // of its bytes, after the header
};

/// The length and the JSON of a header. `where`: the file, for the error that a text is not UTF-8.
std::string safetensors_header(const std::vector<HeaderEntry>& entries,
                               const std::map<std::string, std::string>& metadata,
                               const std::string& where);

}  // namespace tessera::checkpoint_detail
