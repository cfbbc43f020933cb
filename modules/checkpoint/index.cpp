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
import tessera.placement;
import tessera.tensor;
import :chunks;
import :file;
import :index;

namespace tessera::checkpoint_detail {
namespace {

using nlohmann::json;

constexpr const char* format_name = "tessera.checkpoint";
constexpr std::int64_t format_version = 2;  // 1 had no hashes

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
std::string hash_of_index(json whole) {
  whole.erase("hash");
  const std::string text = json_text(whole);
  return content_hash(std::as_bytes(std::span(text)));
}

StoredPart part_of(const json& value, DType dtype, const std::string& where,
                   const std::string& path) {
  StoredPart part;
  part.file = text_of(entry(value, "file", where, path), where + ".file", path);
  part.key = text_of(entry(value, "key", where, path), where + ".key", path);
  part.box.offset = dims_of(entry(value, "offset", where, path), where + ".offset", path);
  part.box.shape = dims_of(entry(value, "shape", where, path), where + ".shape", path);
  const auto bytes = byte_count(list_of(part.box.shape), size_of(dtype));
  if (!bytes) {
    wrong(path,
          fmt::format("{}.shape {} has more than 2^63 bytes", where, to_string(part.box.shape)));
  }
  const json& hashes = entry(value, "hashes", where, path);
  const std::size_t expected = chunks_of(static_cast<std::size_t>(*bytes));
  if (!hashes.is_array() || hashes.size() != expected) {
    wrong(path, fmt::format("{}.hashes: expected a list of {}, one for each MiB", where, expected));
  }
  for (const json& hash : hashes) {
    part.hashes.push_back(hash_of(hash, where + ".hashes", path));
  }
  return part;
}

IndexedTensor tensor_of(const json& value, const std::string& name, const std::string& path) {
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
  tensor.layout = text_of(entry(value, "layout", where, path), where + ": layout", path);
  const json& parts = entry(value, "parts", where, path);
  if (!parts.is_array()) {
    wrong(path, where + ": parts is not a list");
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    tensor.parts.push_back(part_of(parts[i], *dtype, fmt::format("{}: parts[{}]", where, i), path));
  }
  return tensor;
}

CheckpointIndex index_from(const ParsedJson& parsed, const std::string& path) {
  if (!parsed.problem.empty()) {
    wrong(path, parsed.problem);
  }
  const json& whole = parsed.value;
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
  if (const std::string own = hash_of_index(whole); hash != own) {
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
    index.files.emplace(
        name, StoredFile{static_cast<std::uint64_t>(*bytes),
                         hash_of(entry(value, "header", where, path), where + ": header", path)});
  });
  each("scalars", [&](const std::string& name, const json& value) {
    const auto scalar = scalar_from_json(value);
    if (!scalar) {
      wrong(path, fmt::format("scalar '{}' is neither a number nor a string", name));
    }
    index.scalars.emplace(name, *scalar);
  });
  each("tensors", [&](const std::string& name, const json& value) {
    index.tensors.emplace(name, tensor_of(value, name, path));
  });
  return index;
}

}  // namespace

std::string to_json(const CheckpointIndex& index) {
  const ParsedJson meta = parse_json_object(index.meta);
  if (!meta.problem.empty()) {
    fail_input({.thing = "checkpoint",
                .wrong = fmt::format("the meta data is not valid: {}", meta.problem),
                .advice = "pass a JSON object"});
  }
  json tensors = json::object();
  for (const auto& [name, tensor] : index.tensors) {
    json parts = json::array();
    for (const StoredPart& part : tensor.parts) {
      parts.push_back({{"file", part.file},
                       {"key", part.key},
                       {"offset", list_of(part.box.offset)},
                       {"shape", list_of(part.box.shape)},
                       {"hashes", part.hashes}});
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
  json files = json::object();
  for (const auto& [name, file] : index.files) {
    files[name] = {{"bytes", file.bytes}, {"header", file.header}};
  }
  json whole = {{"format", format_name}, {"version", format_version}, {"meta", meta.value},
                {"files", files},        {"scalars", scalars},        {"tensors", tensors}};
  try {
    whole["hash"] = hash_of_index(whole);
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
