// The decoders of tokenizer.json: from tokens to a text.
#pragma once
#include <memory>
#include <string>
#include <tessera/json.hpp>
#include <vector>

namespace tessera::tokenize {

/// One step over the texts of all tokens.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Error (input): their texts grow to more than `most` bytes.
  virtual void apply(std::vector<std::string>& tokens, std::size_t most) const = 0;
};

struct Decoders {
  std::vector<std::unique_ptr<Decoder>> steps;
  bool present = false;          // else the tokens are joined by spaces
  bool only_byte_level = false;  // the one step is ByteLevel
};

/// The steps that a file's "decoder" describes, in their order (Sequences are resolved). Error
/// (input) that begins with `where`: one of them is not supported.
Decoders read_decoders(const nlohmann::json& json, const std::string& where);

/// A token's bytes as ByteLevel decodes them.
std::string byte_level_decoded(const std::string& token);

}  // namespace tessera::tokenize
