module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :file;
import :index;

namespace tessera::checkpoint_detail {
namespace {

using nlohmann::json;

constexpr const char* format_name = "tessera.checkpoint";
constexpr std::int64_t format_version = 1;

[[noreturn]] void wrong(const std::string& path, const std::string& what) {
  fail_input(fmt::format("{}: {}; use another checkpoint", path, what));
}

std::vector<std::int64_t> list_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

/// JSON has no NaN and no infinity: those stand as {"f64": "nan"}.
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
    wrong(path, fmt::format("{} is not a text", where));
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

IndexedTensor tensor_of(const json& value, const std::string& name, const std::string& path) {
  const std::string where = fmt::format("tensor '{}'", name);
  IndexedTensor tensor;
  const std::string type = text_of(entry(value, "dtype", where, path), where + ": dtype", path);
  const auto dtype = dtype_from_name(type);
  if (!dtype) {
    wrong(path, fmt::format("{}: the type '{}' is not known", where, type));
  }
  tensor.info = {*dtype, dims_of(entry(value, "shape", where, path), where + ": shape", path)};
  if (!byte_count(list_of(tensor.info.shape), size_of(*dtype))) {
    wrong(path, fmt::format("{}: shape {} has more than 2^63 bytes", where,
                            to_string(tensor.info.shape)));
  }
  tensor.layout = text_of(entry(value, "layout", where, path), where + ": layout", path);
  const json& parts = entry(value, "parts", where, path);
  if (!parts.is_array()) {
    wrong(path, where + ": parts is not a list");
  }
  for (const json& part : parts) {
    StoredPart stored;
    stored.file = text_of(entry(part, "file", where + ": a part", path), where + ": file", path);
    stored.key = text_of(entry(part, "key", where + ": a part", path), where + ": key", path);
    stored.box.offset =
        dims_of(entry(part, "offset", where + ": a part", path), where + ": offset", path);
    stored.box.shape =
        dims_of(entry(part, "shape", where + ": a part", path), where + ": a part's shape", path);
    tensor.parts.push_back(std::move(stored));
  }
  return tensor;
}

bool inside(const LocalPart& box, const Dims& shape) {
  if (box.offset.size() != shape.size() || box.shape.size() != shape.size()) {
    return false;
  }
  for (int d = 0; d < shape.size(); ++d) {
    if (box.shape[d] < 1 || box.shape[d] > shape[d] || box.offset[d] > shape[d] - box.shape[d]) {
      return false;
    }
  }
  return true;
}

bool overlap(const LocalPart& a, const LocalPart& b) {
  for (int d = 0; d < a.shape.size(); ++d) {
    if (a.offset[d] >= b.offset[d] + b.shape[d] || b.offset[d] >= a.offset[d] + a.shape[d]) {
      return false;
    }
  }
  return true;
}

/// Boxes that lie inside, do not overlap and have the tensor's volume together fill it.
void check_tensor(const std::string& name, const IndexedTensor& tensor, const std::string& path) {
  std::vector<const LocalPart*> boxes;
  std::int64_t volume = 0;
  for (const StoredPart& part : tensor.parts) {
    if (!inside(part.box, tensor.info.shape)) {
      wrong(path, fmt::format("tensor '{}' of shape {}: the part of shape {} at {} does not lie "
                              "within it",
                              name, to_string(tensor.info.shape), to_string(part.box.shape),
                              to_string(part.box.offset)));
    }
    boxes.push_back(&part.box);
  }
  const auto first = [](const LocalPart* box) {
    return box->offset.empty() ? std::int64_t{0} : box->offset.front();
  };
  std::sort(boxes.begin(), boxes.end(),
            [&](const LocalPart* a, const LocalPart* b) { return first(a) < first(b); });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const std::int64_t end = boxes[i]->shape.empty() ? 1 : first(boxes[i]) + boxes[i]->shape[0];
    for (std::size_t j = i + 1; j < boxes.size() && first(boxes[j]) < end; ++j) {
      if (overlap(*boxes[i], *boxes[j])) {
        wrong(path, fmt::format("tensor '{}': the parts at {} and {} overlap", name,
                                to_string(boxes[i]->offset), to_string(boxes[j]->offset)));
      }
    }
    volume += boxes[i]->shape.product();
  }
  if (volume != tensor.info.shape.product()) {
    wrong(path, fmt::format("tensor '{}': its parts leave gaps (expected {} elements, got {})",
                            name, tensor.info.shape.product(), volume));
  }
}

}  // namespace

std::string to_json(const CheckpointIndex& index) {
  const ParsedJson meta = parse_json_object(index.meta);
  if (!meta.problem.empty()) {
    fail_input(
        fmt::format("checkpoint: the meta data is wrong: {}; pass a JSON object", meta.problem));
  }
  json tensors = json::object();
  for (const auto& [name, tensor] : index.tensors) {
    json parts = json::array();
    for (const StoredPart& part : tensor.parts) {
      parts.push_back({{"file", part.file},
                       {"key", part.key},
                       {"offset", list_of(part.box.offset)},
                       {"shape", list_of(part.box.shape)}});
    }
    tensors[name] = {{"dtype", name_of(tensor.info.dtype)},
                     {"shape", list_of(tensor.info.shape)},
                     {"layout", tensor.layout},
                     {"parts", std::move(parts)}};
  }
  json scalars = json::object();
  for (const auto& [name, scalar] : index.scalars) {
    scalars[name] = scalar_to_json(scalar);
  }
  const json whole = {{"format", format_name}, {"version", format_version}, {"meta", meta.value},
                      {"files", index.files},  {"scalars", scalars},        {"tensors", tensors}};
  try {
    return whole.dump(1) + "\n";
  } catch (const json::exception&) {
    fail("checkpoint: a name or a text of the state is not UTF-8; rename it");
  }
}

CheckpointIndex index_from_json(const std::string& text, const std::string& path) {
  const ParsedJson parsed = parse_json_object(text);
  if (!parsed.problem.empty()) {
    wrong(path, parsed.problem);
  }
  const json& whole = parsed.value;
  if (entry(whole, "format", "the index", path) != format_name) {
    wrong(path, "it is not the index of a checkpoint");
  }
  if (entry(whole, "version", "the index", path) != format_version) {
    wrong(path, fmt::format("the checkpoint is of another version (expected {}, got {})",
                            format_version, whole["version"].dump()));
  }
  CheckpointIndex index;
  index.meta = entry(whole, "meta", "the index", path).dump();
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
    const auto bytes = natural(value);
    if (!bytes || name.empty() || name.find('/') != std::string::npos || name == "..") {
      wrong(path,
            fmt::format("file '{}' of {} bytes: not a file of this folder", name, value.dump()));
    }
    index.files.emplace(name, *bytes);
  });
  each("scalars", [&](const std::string& name, const json& value) {
    const auto scalar = scalar_from_json(value);
    if (!scalar) {
      wrong(path, fmt::format("scalar '{}' is neither a number nor a text", name));
    }
    index.scalars.emplace(name, *scalar);
  });
  each("tensors", [&](const std::string& name, const json& value) {
    index.tensors.emplace(name, tensor_of(value, name, path));
  });
  return index;
}

void merge(CheckpointIndex& into, CheckpointIndex from, const std::string& path) {
  into.files.merge(from.files);
  for (auto& [name, tensor] : from.tensors) {
    const auto [at, fresh] = into.tensors.emplace(name, tensor);
    if (fresh) {
      continue;
    }
    IndexedTensor& known = at->second;
    if (!(known.info == tensor.info)) {
      fail(
          fmt::format("checkpoint {}: the ranks disagree about tensor '{}' ({}{} and {}{}); every "
                      "rank must save the same model",
                      path, name, name_of(known.info.dtype), to_string(known.info.shape),
                      name_of(tensor.info.dtype), to_string(tensor.info.shape)));
    }
    for (StoredPart& part : tensor.parts) {
      const bool replica =
          std::any_of(known.parts.begin(), known.parts.end(), [&](const StoredPart& other) {
            return other.box.offset == part.box.offset && other.box.shape == part.box.shape;
          });
      if (!replica) {
        known.parts.push_back(std::move(part));
      }
    }
  }
}

void check_coverage(const CheckpointIndex& index, const std::string& path) {
  for (const auto& [name, tensor] : index.tensors) {
    check_tensor(name, tensor, path);
  }
}

}  // namespace tessera::checkpoint_detail
