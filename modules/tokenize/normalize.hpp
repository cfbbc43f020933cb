// The normalizers of tokenizer.json.
#pragma once
#include <memory>
#include <string>
#include <tessera/json.hpp>

#include "text.hpp"

namespace tessera::tokenize {

/// One step that changes a text before it is divided into words.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Throws TextSizeError.
  virtual void apply(Text& text) const = 0;
  std::string where;  // it is in the file
};

/// The steps that a file's "normalizer" describes, in their order (Sequences are resolved).
/// Error (input) that begins with `where`: one of them is not supported.
std::vector<std::unique_ptr<Normalizer>> read_normalizers(const nlohmann::json& json,
                                                          const std::string& where);

}  // namespace tessera::tokenize
