module;
#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.models;
import :gguf_reading;

namespace tessera::hub {
namespace {

using Json = nlohmann::json;

using models::GgufForm;

/// How many conditions a file fulfils of a family's; -1: not all.
int conditions(FileFields& fields, const GgufForm& form, const std::string& architecture) {
  const auto own = [&](const std::string& name) { return architecture + "." + name; };
  for (const auto& [name, json] : form.when) {
    if (!fields.has_value(own(name), json)) {
      return -1;
    }
  }
  for (const std::string& name : form.needs) {
    const Json* const value = fields.find(own(name));
    if (value == nullptr || *value == 0) {
      return -1;
    }
  }
  return static_cast<int>(form.when.size() + form.needs.size());
}

std::optional<GgufFamily> find_family(FileFields& fields, const std::string& architecture,
                                      const std::vector<std::string>& names,
                                      std::set<std::string>& known) {
  std::optional<GgufFamily> best;
  int most = -1;
  for (const std::string& name : names) {
    GgufForm form = models::model_family(name).gguf();
    if (form.architecture.empty() || form.only_written) {
      continue;
    }
    bool fits = form.architecture == architecture;
    known.insert(form.architecture);
    for (const models::GgufLayerKind& kind : form.layers.kinds) {
      if (!kind.architecture.empty()) {
        known.insert(kind.architecture);
        fits = fits || kind.architecture == architecture;
      }
    }
    if (const int count = fits ? conditions(fields, form, architecture) : -1; count > most) {
      most = count;
      best = GgufFamily{name, std::move(form), architecture};
    }
  }
  return best;
}

}  // namespace

GgufFamily family_of_file(FileFields& fields) {
  if (const double parts = fields.number("split.count").value_or(1); parts > 1) {
    fields.wrong("split.count", fmt::format("it is one of {} parts of a model; merge them with "
                                            "llama.cpp's gguf-split",
                                            parts));
  }
  const std::string architecture = fields.text("general.architecture", "");
  std::set<std::string> known;
  for (const auto& names : {models::built_in_families(), models::model_families()}) {
    if (auto found = find_family(fields, architecture, names, known)) {
      return *std::move(found);
    }
  }
  fields.wrong(
      "general.architecture",
      known.contains(architecture)
          ? fmt::format("none of the families with files of '{}' has such fields", architecture)
          : fmt::format("'{}' is not supported (only {})", shown(architecture, 40),
                        join_words(std::vector<std::string>(known.begin(), known.end()))));
}

}  // namespace tessera::hub
