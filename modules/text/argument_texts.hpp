// Arguments of calls that are written as texts, not as JSON.
#pragma once
#include <algorithm>
#include <nlohmann/json.hpp>

namespace tessera::text {

/// Whether a schema takes texts: then what is written between marks is one.
inline bool takes_text(const nlohmann::json& schema) {
  const auto type = schema.is_object() ? schema.find("type") : schema.end();
  if (!schema.is_object() || type == schema.end()) {
    return false;
  }
  return *type == "string" ||
         (type->is_array() && std::ranges::find(*type, nlohmann::json("string")) != type->end());
}

}  // namespace tessera::text
