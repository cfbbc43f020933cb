module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "json.hpp"
#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import :index;

namespace tessera::checkpoint_detail {
namespace {

using nlohmann::json;

constexpr std::size_t most_ranks = std::size_t{1} << 24;
constexpr const char* format_name = "tessera.checkpoint";
constexpr std::int64_t format_version = 3;  // 2 had the parts in the index, 1 no hashes

[[noreturn]] void wrong(const std::string& path, const std::string& what) {
  fail_input({.thing = path, .wrong = what, .advice = "use another checkpoint"});
}

std::vector<std::int64_t> list_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

/// JSON has no NaN and no infinity: they are written as {"f64": "nan"}.
json scalar_to_json(const StateDict::Scalar& scalar) {
  if (const double* number = std::get_if<double>(&scalar)) {
    if (!std::isfinite(*number)) {
      return {{"f64", std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf"}};
    }
    return *number;
  }
  if (const std::int64_t* number = std::get_if<std::int64_t>(&scalar)) {
    return *number;
  }
  return std::get<std::string>(scalar);
}

std::optional<StateDict::Scalar> scalar_from_json(const json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_number_float()) {
    return value.get<double>();
  }
  if (value.is_number_unsigned()) {
    const auto number = natural(value);
    return number ? std::optional<StateDict::Scalar>(*number) : std::nullopt;
  }
  if (value.is_number_integer()) {
    return value.get<std::int64_t>();
  }
  if (value.is_object() && value.size() == 1 && value.contains("f64")) {
    const json& text = value["f64"];
    if (text == "nan") {
      return std::numeric_limits<double>::quiet_NaN();
    }
    if (text == "inf" || text == "-inf") {
      const double infinity = std::numeric_limits<double>::infinity();
      return text == "inf" ? infinity : -infinity;
    }
  }
  return std::nullopt;
}

/// The object's entry, or an error that says where it should be.
const json& entry(const json& object, const char* key, const std::string& where,
                  const std::string& path) {
  if (!object.is_object() || !object.contains(key)) {
    wrong(path, fmt::format("{} has no '{}'", where, key));
  }
  return object[key];
}

std::string text_of(const json& value, const std::string& where, const std::string& path) {
  if (!value.is_string()) {
    wrong(path, fmt::format("{} is not a string", where));
  }
  return value.get<std::string>();
}

Dims dims_of(const json& value, const std::string& where, const std::string& path) {
  const auto numbers = naturals(value, max_dims);
  if (!numbers) {
    wrong(path, fmt::format("{} is not a list of at most {} whole numbers", where, max_dims));
  }
  return Dims{std::span<const std::int64_t>(*numbers)};
}

/// 32 lower-case hexadecimal digits.
std::string hash_of(const json& value, const std::string& where, const std::string& path) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text.size() != 32 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    wrong(path, fmt::format("{} is not a hash (expected 32 hexadecimal digits, got {})", where,
                            json_text(value)));
  }
  return text;
}

/// The hash that an index ends with: of all its other entries, written in one way whatever the
/// file's spaces and order.
std::string hash_of_rest(const json& rest) {
  const std::string text = json_text(rest);
  return content_hash(std::as_bytes(std::span(text)));
}

/// What layout_text wrote, for a tensor of this shape. `known`: those of other tensors.
Layout layout_of(std::map<std::string, Layout>& known, const std::string& text, const Dims& shape,
                 const std::string& where, const std::string& path) {
  if (text == "plain") {
    return {};
  }
  const std::size_t on = text.find(" on ");
  Layout& layout = known[text];
  std::string problem = "it has no ' on '";
  try {
    if (!layout && on != std::string::npos) {
      layout = Layout::parse(DeviceMesh::parse(text.substr(on + 4)), text.substr(0, on));
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  if (!layout || layout.has_partial() || layout.top_dim() >= shape.size()) {
    wrong(path, fmt::format("{}: layout '{}' is not one of a tensor of shape {} ({})", where, text,
                            to_string(shape),
                            layout ? std::string("a saved tensor has other placements") : problem));
  }
  return layout;
}

IndexedTensor tensor_of(const json& value, const std::string& name, const std::string& path,
                        std::map<std::string, Layout>& layouts) {
  const std::string where = fmt::format("tensor '{}'", name);
  IndexedTensor tensor;
  const std::string type = text_of(entry(value, "dtype", where, path), where + ": dtype", path);
  const auto dtype = dtype_from_name(type);
  if (!dtype) {
    wrong(path, fmt::format("{}: the dtype '{}' is not known", where, type));
  }
  tensor.info = {*dtype, dims_of(entry(value, "shape", where, path), where + ": shape", path)};
  if (!byte_count(list_of(tensor.info.shape), size_of(*dtype))) {
    wrong(path, fmt::format("{}: shape {} has more than 2^63 bytes", where,
                            to_string(tensor.info.shape)));
  }
  tensor.layout =
      layout_of(layouts, text_of(entry(value, "layout", where, path), where + ": layout", path),
                tensor.info.shape, where, path);
  return tensor;
}

CheckpointIndex index_from(ParsedJson parsed, const std::string& path) {
  if (!parsed.problem.empty()) {
    wrong(path, parsed.problem);
  }
  json& whole = parsed.value;
  if (entry(whole, "format", "the index", path) != format_name) {
    wrong(path, fmt::format("it is not the index of a checkpoint (expected format '{}', got {})",
                            format_name, json_text(whole["format"])));
  }
  if (entry(whole, "version", "the index", path) != format_version) {
    fail_input({.thing = path,
                .wrong = "the checkpoint has another format version",
                .expected = fmt::format("{}", format_version),
                .got = json_text(whole["version"]),
                .advice = "export it with the Tessera that wrote it ('tessera checkpoint export') "
                          "and start from there (model.from)"});
  }
  const std::string hash = hash_of(entry(whole, "hash", "the index", path), "'hash'", path);
  whole.erase("hash");
  if (const std::string own = hash_of_rest(whole); hash != own) {
    wrong(path,
          fmt::format("the index was changed after it was saved (its hash is {}, expected {})", own,
                      hash));
  }
  CheckpointIndex index;
  const json& meta = entry(whole, "meta", "the index", path);
  if (!meta.is_object()) {
    wrong(path, "'meta' is not an object");
  }
  index.meta = json_text(meta);
  const auto each = [&](const char* key, const auto& read) {
    const json& object = entry(whole, key, "the index", path);
    if (!object.is_object()) {
      wrong(path, fmt::format("'{}' is not an object", key));
    }
    for (const auto& [name, value] : object.items()) {
      read(name, value);
    }
  };
  each("files", [&](const std::string& name, const json& value) {
    const std::string where = fmt::format("file '{}'", name);
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      wrong(path, where + " is not a file of this folder");
    }
    const auto bytes = natural(entry(value, "bytes", where, path));
    if (!bytes) {
      wrong(path, where + ": bytes is not a whole number");
    }
    const auto ranks = naturals(entry(value, "ranks", where, path), most_ranks);
    if (!ranks || ranks->empty() || std::ranges::max(*ranks) >= std::int64_t{most_ranks}) {
      wrong(path, where + ": ranks is not a list of ranks");
    }
    index.files.emplace(
        name, StoredFile{static_cast<std::uint64_t>(*bytes),
                         hash_of(entry(value, "header", where, path), where + ": header", path),
                         {ranks->begin(), ranks->end()}});
  });
  each("scalars", [&](const std::string& name, const json& value) {
    const auto scalar = scalar_from_json(value);
    if (!scalar) {
      wrong(path, fmt::format("scalar '{}' is neither a number nor a string", name));
    }
    index.scalars.emplace(name, *scalar);
  });
  std::map<std::string, Layout> layouts;
  each("tensors", [&](const std::string& name, const json& value) {
    index.tensors.emplace(name, tensor_of(value, name, path, layouts));
  });
  return index;
}

}  // namespace

std::string layout_text(const Layout& layout) {
  return layout ? to_string(layout) + " on " + to_string(layout.mesh()) : "plain";
}

std::string to_json(const CheckpointIndex& index) {
  const ParsedJson meta = parse_json_object(index.meta);
  if (!meta.problem.empty()) {
    fail_input({.thing = "checkpoint",
                .wrong = fmt::format("the meta data is not valid: {}", meta.problem),
                .advice = "pass a JSON object"});
  }
  json tensors = json::object();
  for (const auto& [name, tensor] : index.tensors) {
    tensors[name] = {{"dtype", name_of(tensor.info.dtype)},
                     {"shape", list_of(tensor.info.shape)},
                     {"layout", layout_text(tensor.layout)}};
  }
  json scalars = json::object();
  for (const auto& [name, scalar] : index.scalars) {
    scalars[name] = scalar_to_json(scalar);
  }
  json files = json::object();
  for (const auto& [name, file] : index.files) {
    files[name] = {{"bytes", file.bytes}, {"header", file.header}, {"ranks", file.ranks}};
  }
  json whole = {{"format", format_name}, {"version", format_version}, {"meta", meta.value},
                {"files", files},        {"scalars", scalars},        {"tensors", tensors}};
  try {
    whole["hash"] = hash_of_rest(whole);
    return json_text(whole, 1) + "\n";
  } catch (const json::exception&) {
    fail({.thing = "checkpoint",
          .wrong = "a name or a string of the state is not UTF-8",
          .advice = "rename it"});
  }
}

CheckpointIndex index_from_json(const std::string& text, const std::string& path) {
  return index_from(parse_json_object(text), path);
}

CheckpointIndex read_index(const std::string& path) {
  return index_from(read_json_object(path), path);
}

}  // namespace tessera::checkpoint_detail
