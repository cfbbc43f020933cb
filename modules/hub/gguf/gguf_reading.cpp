module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <vector>
module tessera.hub;

import tessera.base;
import tessera.models;
import tessera.checkpoint;
import :gguf_names;
import :gguf_reading;

namespace tessera::hub {
namespace {

using Json = nlohmann::json;

}  // namespace

Json value_of(const std::string& json) { return parse_json("[" + json + "]")[0]; }

FileFields::FileFields(const TensorSource& file)
    : fields_(parse_json(file.meta()).value("gguf", Json::object())), path_(file.path()) {}

const Json* FileFields::find(const std::string& name) {
  const Json* const field = any(name);
  if (field != nullptr && !field->contains("value")) {
    wrong(name, "a list, as if layers differed, is not supported");
  }
  return field == nullptr ? nullptr : &(*field)["value"];
}

const Json* FileFields::any(const std::string& name) {
  known_.insert(name);
  const auto at = fields_.find(name);
  return at == fields_.end() ? nullptr : &*at;
}

void FileFields::wrong(const std::string& name, const std::string& what) const {
  fail_input({.thing = fmt::format("{}: field '{}'", path_, shown(name, 80)), .wrong = what});
}

Json FileFields::plain(const Json& value) {
  return value.is_number_float() ? parse_json(fmt::format("[{}]", value.get<float>()))[0] : value;
}

std::optional<double> FileFields::number(const std::string& name) {
  const Json* const value = find(name);
  if (value != nullptr && !value->is_number()) {
    wrong(name, "it is not a number");
  }
  return value == nullptr ? std::nullopt : std::optional(plain(*value).get<double>());
}

std::string FileFields::text(const std::string& name, const std::string& otherwise) {
  const Json* const value = find(name);
  if (value != nullptr && !value->is_string()) {
    wrong(name, "it is not a text");
  }
  return value == nullptr ? otherwise : value->get<std::string>();
}

void FileFields::finish(const std::string& begin) const {
  std::vector<std::string> unknown;
  for (const auto& [name, field] : fields_.items()) {
    if (name.starts_with(begin) && !known_.contains(name)) {
      unknown.push_back(name);
    }
  }
  if (!unknown.empty()) {
    fail_input({.thing = path_,
                .wrong = fmt::format(
                    "its fields {} are not supported: this program would compute another model",
                    join_words(unknown))});
  }
}

bool FileFields::has_value(const std::string& name, const std::string& json) {
  const Json* const value = find(name);
  return value != nullptr && plain(*value) == value_of(json);
}

GgufReading::GgufReading(const TensorSource& source)
    : file(source), fields(source), family(family_of_file(fields)), form(family.form) {}

std::string GgufReading::own(std::string_view name) const {
  return fmt::format("{}.{}", family.architecture, name);
}

std::int64_t GgufReading::size_of(const char* field) const {
  const auto size = form.sizes.find(field);
  const auto key = form.keys.find(field);
  const auto value = size != form.sizes.end() ? config.find(size->second)
                     : key != form.keys.end() ? config.find(terms_of(key->second)[0].keys[0])
                                              : config.end();
  return value != config.end() && value->is_number() ? value->get<std::int64_t>() : 0;
}

std::int64_t GgufReading::shown_layers() const {
  return std::min<std::int64_t>(size_of("block_count"), most_layers);
}

Json GgufReading::for_each_layer(const Json& values) const {
  Json list = Json::array();
  for (std::int64_t layer = 0; layer < shown_layers() && !values.empty(); ++layer) {
    list.push_back(values[static_cast<std::size_t>(layer) % values.size()]);
  }
  return list;
}

Json GgufReading::value_of_layer(const std::string& field, std::int64_t layer) {
  const Json* const found = fields.any(own(field));
  if (found == nullptr) {
    return {};
  }
  if (found->contains("value")) {
    return (*found)["value"];
  }
  const Json& values = found->at("values");
  if (std::ssize(values) < shown_layers()) {
    fields.wrong(own(field), fmt::format("expected a value for each of {} layers (got {})",
                                         shown_layers(), values.size()));
  }
  return values[static_cast<std::size_t>(layer)];
}

}  // namespace tessera::hub
