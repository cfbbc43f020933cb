// A .pt2 file: a zip archive with the program as JSON, and the bytes of weights and constants.
module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/exported_types.hpp>
#include <tessera/json.hpp>
#include <tessera/json_reading.hpp>
#include <tessera/shown.hpp>
#include <utility>
module tessera.checkpoint;

import tessera.base;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :box;
import :exported;
import :format;
import :mapped_file;
import :pickle;
import :source;

namespace tessera::checkpoint_detail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view advice = "export the program again with torch.export.save";

/// Where a tensor's elements are.
struct StoredTensor {
  const ZipEntry* entry = nullptr;   // has its storage
  std::span<const std::byte> bytes;  // of its storage
  Dims strides;
  std::int64_t offset = 0;
  bool contiguous = false;  // its elements are all of the bytes, in order
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Sizes or strides; all must be numbers of at least 0.
Dims dims_of(const json& list, const char* name) {
  if (!list.is_array() || list.size() > static_cast<std::size_t>(max_dims)) {
    throw JsonProblem(fmt::format("'{}' is not a list of at most {} numbers", name, max_dims));
  }
  Dims dims;
  for (const json& entry : list) {
    const auto number = json_member<std::int64_t>(entry, "as_int");
    if (number < 0) {
      throw JsonProblem(fmt::format("'{}' has a negative number", name));
    }
    dims.push_back(number);
  }
  return dims;
}

/// The place of the last element from the first one of the storage; none: beyond 2^62.
std::optional<std::int64_t> last_element(const Dims& shape, const Dims& strides,
                                         std::int64_t offset) {
  std::int64_t last = offset;
  std::int64_t elements = 1;
  for (int d = 0; d < shape.size(); ++d) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(shape[d], 1), &elements) ||
        __builtin_mul_overflow(std::max<std::int64_t>(shape[d] - 1, 0), strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  constexpr std::int64_t most = std::int64_t{1} << 58;
  return last < most && elements < most ? std::optional(last) : std::nullopt;
}

bool is_dense(const Dims& shape, const Dims& strides) {
  std::int64_t expected = 1;
  for (int d = shape.size() - 1; d >= 0; --d) {
    if (shape[d] != 1 && strides[d] != expected) {
      return false;
    }
    expected *= shape[d];
  }
  return true;
}

class ExportedFile final : public TensorSource {
 public:
  explicit ExportedFile(const std::string& path) : TensorSource(path), file_(path) {
    files_ = {fs::path(path).filename().string()};
    entries_ = zip_entries(file_.bytes(), path);
    find_prefix();
    const auto order = entries_.find(prefix_ + "byteorder");
    if (order != entries_.end() && text_of(order->second.bytes) != "little") {
      wrong("its tensors are not little-endian");
    }
    json program = parsed("models/model.json");
    json storages = json::object();
    reading_json(
        path,
        [&] {
          add_tensors("data/weights/", "model_weights_config.json", storages);
          add_tensors("data/constants/", "model_constants_config.json", storages);
          drop_traces(program);
        },
        std::string(advice));
    file_.check_intact();
    meta_ = json_text(
        json{{"pt2", {{"program", std::move(program)}, {"storages", std::move(storages)}}}});
  }

  std::uint64_t bytes_read() const override { return bytes_read_; }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    fail_input({.thing = path_, .wrong = what, .advice = std::string(advice)});
  }

  void check_intact(const std::string& name, const ZipEntry& entry) const {
    if (!entry.is_intact()) {
      fail_input({.thing = path_,
                  .wrong = fmt::format("'{}' is damaged: it has another checksum than the archive "
                                       "says",
                                       shown(name, 120)),
                  .advice = "copy the file again, or export the program again"});
    }
  }

  /// The archive's entries begin with a name of the writer's choice.
  void find_prefix() {
    constexpr std::string_view program = "models/model.json";
    bool found = false;
    for (const auto& [name, entry] : entries_) {
      if (name == program || name.ends_with(fmt::format("/{}", program))) {
        if (found) {
          wrong("it has more than one program");
        }
        found = true;
        prefix_ = name.substr(0, name.size() - program.size());
      }
      if (name.ends_with("serialized_exported_program.json")) {
        wrong("it was written by an older torch.export, whose files have another form");
      }
    }
    if (!found) {
      wrong("it has no program models/model.json");
    }
  }

  json parsed(const std::string& name) const {
    const auto found = entries_.find(prefix_ + name);
    if (found == entries_.end()) {
      wrong(fmt::format("'{}' is missing", name));
    }
    check_intact(name, found->second);
    ParsedJson result = parse_json_object(text_of(found->second.bytes));
    if (!result.problem.empty()) {
      wrong(fmt::format("{}: {}", name, result.problem));
    }
    return std::move(result.value);
  }

  void add_tensors(const std::string& folder, const std::string& config, json& storages) {
    const json described = parsed(folder + config);
    const json& all = json_member(described, "config");
    for (const auto& [name, payload] : all.items()) {
      const auto entry = json_member<std::string>(payload, "path_name");
      const bool pickled = json_member<bool>(payload, "use_pickle");
      if (pickled || json_member(payload, "tensor_meta").is_null()) {
        left_out_.push_back(name);  // an object of a program's own
        continue;
      }
      const auto stored = entries_.find(prefix_ + folder + entry);
      if (stored == entries_.end()) {
        throw JsonProblem(fmt::format("tensor '{}' has no bytes", shown(name, 80)));
      }
      add(name, json_member(payload, "tensor_meta"), stored->second);
      const StoredTensor& one = stored_.at(name);
      storages[name] = fmt::format("{}{}+{}:{}", folder, entry, one.offset, to_string(one.strides));
    }
  }

  void add(const std::string& name, const json& meta, const ZipEntry& entry) {
    const std::span<const std::byte> bytes = entry.bytes;
    const auto number = json_member<std::int64_t>(meta, "dtype");
    const std::optional<DType> dtype = exported_dtype(number);
    if (!dtype) {
      throw JsonProblem(
          fmt::format("tensor '{}' has the type {} of PyTorch's schema, which is not read",
                      shown(name, 80), number));
    }
    const Dims shape = dims_of(json_member(meta, "sizes"), "sizes");
    StoredTensor stored{
        .entry = &entry,
        .bytes = bytes,
        .strides = dims_of(json_member(meta, "strides"), "strides"),
        .offset = json_member<std::int64_t>(json_member(meta, "storage_offset"), "as_int")};
    const std::optional<std::int64_t> last =
        stored.strides.size() == shape.size() && stored.offset >= 0
            ? last_element(shape, stored.strides, stored.offset)
            : std::nullopt;
    const std::size_t width = size_of(*dtype);
    if (!last ||
        (shape.product() > 0 && static_cast<std::uint64_t>(*last) >= bytes.size() / width)) {
      throw JsonProblem(fmt::format("tensor '{}' of {} reaches beyond its {} bytes",
                                    shown(name, 80), to_string(shape), bytes.size()));
    }
    // Elements that repeat are read one by one into memory of their own.
    constexpr std::uint64_t most_repeated = std::uint64_t{1} << 24;
    const auto size = static_cast<std::uint64_t>(shape.product()) * width;
    if (size > bytes.size() && size > most_repeated) {
      throw JsonProblem(fmt::format("tensor '{}' of {} repeats its {} bytes", shown(name, 80),
                                    to_string(shape), bytes.size()));
    }
    stored.contiguous = stored.offset == 0 && is_dense(shape, stored.strides) &&
                        bytes.size() == static_cast<std::size_t>(shape.product()) * width;
    if (!tensors_.emplace(name, TensorInfo{*dtype, shape}).second) {
      throw JsonProblem(fmt::format("tensor '{}' is there twice", shown(name, 80)));
    }
    stored_.emplace(name, stored);
  }

  /// Without what only helps a reader of Python: where each node comes from.
  static void drop_traces(json& program) {
    json& graph = program["graph_module"]["graph"];
    if (!graph.is_object() || !graph["nodes"].is_array()) {
      throw JsonProblem("'graph_module.graph.nodes' is missing");
    }
    for (json& node : graph["nodes"]) {
      if (!node.is_object()) {
        throw JsonProblem("a node is not an object");
      }
      json kept = json::object();
      if (const auto metadata = node.find("metadata"); metadata != node.end() &&
                                                       metadata->is_object() &&
                                                       metadata->contains("nn_module_stack")) {
        kept["nn_module_stack"] = (*metadata)["nn_module_stack"];
      }
      node["metadata"] = std::move(kept);
    }
    program["graph_module"].erase("module_call_graph");
  }

  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    const TensorInfo& info = tensors_.at(name);
    const StoredTensor& stored = stored_.at(name);
    const std::string what = fmt::format("{}: tensor '{}'", path_, name);
    check_once(name, *stored.entry);
    bytes_read_ += static_cast<std::uint64_t>(box.shape.product()) * size_of(info.dtype);
    if (stored.contiguous) {
      copy_stored(file_, stored.bytes, info, box, into, what);
      return;
    }
    const auto elements = static_cast<std::int64_t>(stored.bytes.size() / size_of(info.dtype));
    const Tensor storage = empty({elements}, info.dtype);
    copy_stored(file_, stored.bytes.first(static_cast<std::size_t>(elements) * size_of(info.dtype)),
                {info.dtype, {elements}}, {{0}, {elements}}, storage, what);
    std::int64_t first = stored.offset;
    for (int d = 0; d < box.shape.size(); ++d) {
      first += box.offset[d] * stored.strides[d];
    }
    ops::copy_(into, alias(storage, box.shape, stored.strides, first));
  }

  /// The first read of a tensor compares the checksum of all its bytes.
  void check_once(const std::string& name, const ZipEntry& entry) const {
    const std::lock_guard lock(mutex_);
    if (!intact_.contains(&entry)) {
      check_intact(name, entry);
      intact_.insert(&entry);
    }
  }

  MappedFile file_;
  std::map<std::string, ZipEntry> entries_;
  std::string prefix_;
  std::map<std::string, StoredTensor> stored_;
  mutable std::atomic<std::uint64_t> bytes_read_{0};
  mutable std::mutex mutex_;
  mutable std::set<const ZipEntry*> intact_;  // whose checksums were compared
};

class ExportedFormat final : public CheckpointFormat {
 public:
  std::string described() const override { return "a program of torch.export, FILE.pt2"; }
  bool recognises(const std::string& path) const override {
    std::error_code ignored;
    return path.ends_with(".pt2") && fs::is_regular_file(path, ignored);
  }
  std::unique_ptr<TensorSource> open(const std::string& path) const override {
    return std::make_unique<ExportedFile>(path);
  }
  std::optional<std::string> weights_prefix() const override { return ""; }
};

}  // namespace

std::unique_ptr<CheckpointFormat> exported_format() { return std::make_unique<ExportedFormat>(); }

}  // namespace tessera::checkpoint_detail
