#include "small_model.hpp"

#include <sstream>
#include <utility>

namespace tessera::testing {

std::string small_model(const SmallModel& sizes) {
  std::ostringstream text;
  text << "[model]\n";
  if (!sizes.family.empty()) {
    text << "family = \"" << sizes.family << "\"\n";
  }
  for (const auto& [key, value] :
       {std::pair("vocab", sizes.vocab), std::pair("dim", sizes.dim),
        std::pair("layers", sizes.layers), std::pair("heads", sizes.heads),
        std::pair("kv_heads", sizes.kv_heads), std::pair("head_dim", sizes.head_dim),
        std::pair("ffn_dim", sizes.ffn_dim)}) {
    if (value != 0) {
      text << key << " = " << value << '\n';
    }
  }
  if (sizes.dropout != 0) {
    text << "dropout = " << sizes.dropout << '\n';
  }
  return text.str();
}

}  // namespace tessera::testing
