module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "../json.hpp"
#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import :mapped_file;
import :checkpoint_index;

namespace tessera::checkpoint_detail {
namespace {

using nlohmann::json;

constexpr std::size_t most_ranks = std::size_t{1} << 24;
constexpr const char* format_name = "tessera.checkpoint";
/// 3 had an object for each tensor, 2 the parts in the index, 1 no hashes. With a base it is one
/// more, so that a reader which knows none refuses it.
constexpr std::int64_t format_version = 4;
constexpr std::int64_t version_with_base = 5;
constexpr std::size_t hash_digits = 32;

[[noreturn]] void wrong(const std::string& path, const std::string& what) {
  fail_input({.thing = path, .wrong = what, .advice = "use another checkpoint"});
}

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

/// 32 lower-case hexadecimal digits.
std::string hash_of(const json& value, const std::string& where, const std::string& path) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text.size() != hash_digits ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    wrong(path, fmt::format("{} is not a hash (expected 32 hexadecimal digits, got {})", where,
                            json_text(value)));
  }
  return text;
}

/// An index begins with the hash of the bytes after it, so that nothing is parsed or written again
/// to compare them: every rank reads the index.
std::string hash_line(const std::string& hash) {
  return fmt::format("{{\"hash\": \"{}\",\n", hash);
}

std::string hash_after_line(std::string_view text) {
  const std::size_t line = hash_line(std::string(hash_digits, '0')).size();
  return content_hash(std::as_bytes(std::span(text.substr(std::min(line, text.size())))));
}

/// Reads what layout_text wrote, for a tensor of this shape. `known`: those of other tensors.
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

/// "f32[2,3]".
TensorInfo info_of(const std::string& text, const std::string& where, const std::string& path) {
  const std::size_t at = text.find('[');
  const bool closed = at != std::string::npos && text.ends_with(']');
  const auto shape =
      closed ? dims_from_text(std::string_view(text).substr(at + 1, text.size() - at - 2))
             : std::nullopt;
  const auto dtype = dtype_from_name(text.substr(0, at));
  if (!shape || !dtype) {
    wrong(path, fmt::format("{} is not a type and a shape (expected one such as 'f32[2,3]', got "
                            "'{}')",
                            where, text));
  }
  if (!byte_count({shape->begin(), shape->end()}, size_of(*dtype))) {
    wrong(path, fmt::format("{}: shape {} has more than 2^63 bytes", where, to_string(*shape)));
  }
  return {*dtype, *shape};
}

/// Calls read(name, value) for each entry of an object.
void for_each_entry(const json& object, const std::string& where, const std::string& path,
                    const auto& read) {
  if (!object.is_object()) {
    wrong(path, where + " is not an object");
  }
  for (const auto& [name, value] : object.items()) {
    read(name, value);
  }
}

std::string type_text(const TensorInfo& info) {
  return fmt::format("{}[{}]", name_of(info.dtype), dims_text(info.shape));
}

json base_to_json(const CheckpointBase& base) {
  json tensors = json::object();
  for (const auto& [name, info] : base.tensors) {
    tensors[name] = type_text(info);
  }
  return {{"path", base.path},
          {"relative", base.relative},
          {"hash", base.hash},
          {"tensors", std::move(tensors)}};
}

/// `stored`: the tensors that the checkpoint has itself.
std::shared_ptr<const CheckpointBase> base_from_json(const json& value,
                                                     const IndexedTensors& stored,
                                                     const std::string& path) {
  const auto text = [&](const char* key) {
    return text_of(entry(value, key, "'base'", path), fmt::format("'base': {}", key), path);
  };
  CheckpointBase base{.path = text("path"), .relative = text("relative"), .hash = text("hash")};
  for_each_entry(entry(value, "tensors", "'base'", path), "'base': 'tensors'", path,
                 [&](const std::string& name, const json& type) {
                   const std::string where = fmt::format("tensor '{}' of the base", name);
                   if (stored.contains(name)) {
                     wrong(path, where + " is stored too");
                   }
                   base.tensors.emplace(name, info_of(text_of(type, where, path), where, path));
                 });
  return std::make_shared<const CheckpointBase>(std::move(base));
}

CheckpointIndex index_from(std::string_view text, const std::string& path) {
  const ParsedJson parsed = parse_json_object(text);
  if (!parsed.problem.empty()) {
    wrong(path, parsed.problem);
  }
  const json& whole = parsed.value;
  if (entry(whole, "format", "the index", path) != format_name) {
    wrong(path, fmt::format("it is not the index of a checkpoint (expected format '{}', got {})",
                            format_name, json_text(whole["format"])));
  }
  const json& version = entry(whole, "version", "the index", path);
  if (version != format_version && version != version_with_base) {
    fail_input({.thing = path,
                .wrong = "the checkpoint has another format version",
                .expected = fmt::format("{} or {}", format_version, version_with_base),
                .got = json_text(version),
                .advice = "export it with the Tessera that wrote it ('tessera checkpoint export') "
                          "and start from there (model.from)"});
  }
  const std::string hash = hash_of(entry(whole, "hash", "the index", path), "'hash'", path);
  const std::string own = hash_after_line(text);
  if (hash != own || !text.starts_with(hash_line(hash))) {
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
    for_each_entry(entry(whole, key, "the index", path), fmt::format("'{}'", key), path, read);
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
  each("tensors", [&](const std::string& layout, const json& group) {
    for_each_entry(group, fmt::format("'tensors': '{}'", layout), path,
                   [&](const std::string& name, const json& value) {
                     const std::string where = fmt::format("tensor '{}'", name);
                     const TensorInfo info = info_of(text_of(value, where, path), where, path);
                     const IndexedTensor tensor{
                         info, layout_of(layouts, layout, info.shape, where, path)};
                     if (!index.tensors.emplace(name, tensor).second) {
                       wrong(path, where + " has two layouts");
                     }
                   });
  });
  if (version == version_with_base) {
    index.base = base_from_json(entry(whole, "base", "the index", path), index.tensors, path);
  }
  return index;
}

}  // namespace

std::string layout_text(const Layout& layout) {
  return layout ? to_string(layout) + " on " + to_string(layout.mesh()) : "plain";
}

std::string dims_text(const Dims& dims) { return fmt::format("{}", fmt::join(dims.span(), ",")); }

std::optional<Dims> dims_from_text(std::string_view text) {
  Dims dims;
  while (!text.empty()) {
    std::int64_t value = -1;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc() || value < 0 || dims.size() == max_dims) {
      return std::nullopt;
    }
    dims.push_back(value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.empty() && (text.front() != ',' || text.size() == 1)) {
      return std::nullopt;
    }
    text.remove_prefix(text.empty() ? 0 : 1);
  }
  return dims;
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
    tensors[layout_text(tensor.layout)][name] = type_text(tensor.info);
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
  if (index.base) {
    whole["version"] = version_with_base;
    whole["base"] = base_to_json(*index.base);
  }
  try {
    const std::string text = json_text(whole, 1).substr(2) + "\n";  // without its "{\n"
    return hash_line(content_hash(std::as_bytes(std::span(text)))) + text;
  } catch (const json::exception&) {
    fail({.thing = "checkpoint",
          .wrong = "a name or a string of the state is not UTF-8",
          .advice = "rename it"});
  }
}

CheckpointIndex index_from_json(const std::string& text, const std::string& path) {
  return index_from(text, path);
}

CheckpointIndex read_index(const std::string& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  CheckpointIndex index =
      index_from({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
  file.check_intact();
  return index;
}

IndexedTensors merged(const std::vector<IndexedTensors>& of_ranks, const std::string& path) {
  IndexedTensors all;
  const auto describe = [](const IndexedTensor& tensor) {
    return fmt::format("{}{} {}", name_of(tensor.info.dtype), to_string(tensor.info.shape),
                       layout_text(tensor.layout));
  };
  for (const IndexedTensors& tensors : of_ranks) {
    for (const auto& [name, tensor] : tensors) {
      const IndexedTensor& known = all.emplace(name, tensor).first->second;
      if (!(known.info == tensor.info) || !(known.layout == tensor.layout)) {
        fail({.thing = fmt::format("checkpoint {}", path),
              .wrong = fmt::format("the ranks disagree about tensor '{}' ({} and {})", name,
                                   describe(known), describe(tensor)),
              .advice = "every rank must save the same model"});
      }
    }
  }
  for (const auto& [name, tensor] : all) {
    const int zero = 0;
    for (const int rank : tensor.layout ? tensor.layout.mesh().ranks() : std::span(&zero, 1)) {
      if (rank >= static_cast<int>(of_ranks.size()) ||
          !of_ranks[static_cast<std::size_t>(rank)].contains(name)) {
        fail({.thing = fmt::format("checkpoint {}", path),
              .wrong = fmt::format("tensor '{}' ({}): its parts leave gaps, as rank {} does not "
                                   "save it",
                                   name, describe(tensor), rank),
              .advice = "every rank must save the same model"});
      }
    }
  }
  return all;
}

}  // namespace tessera::checkpoint_detail
