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
#include <optional>
#include <range/v3/view/zip.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :mapped_file;
import :coverage;
import :pickle;
import :torch;
import :torch_types;

namespace tessera {

namespace checkpoint_detail {

using Kind = PickleValue::Kind;

/// A stored value: a range of a file.
struct TorchItem {
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

struct TorchChunk {
  LocalPart box;
  TorchItem item;
};

struct TorchContent {
  std::string folder;
  std::map<std::string, std::unique_ptr<MappedFile>> files;
  std::map<std::string, std::vector<TorchChunk>> chunks;  // by tensor
  std::atomic<std::uint64_t> bytes_read{0};

  std::string path_of(const std::string& file) const {
    return (std::filesystem::path(folder) / file).string();
  }
  std::span<const std::byte> bytes(const TorchItem& item) const {
    return files.at(item.file)->bytes().subspan(static_cast<std::size_t>(item.offset),
                                                static_cast<std::size_t>(item.length));
  }
};

namespace {

using ranges::views::zip;

constexpr std::string_view metadata_module = "torch.distributed.checkpoint.metadata ";

[[noreturn]] void wrong(const std::string& where, const std::string& what) {
  fail_input({.thing = where, .wrong = what, .advice = "use another checkpoint"});
}

bool is_metadata(const PickleValue* value, std::string_view name) {
  return value != nullptr && value->kind == Kind::object &&
         value->type->text.starts_with(metadata_module) &&
         value->type->text.substr(metadata_module.size()) == name;
}

/// A field of an object; null: it has none, or so many that a search in each would take long.
const PickleValue* field(const PickleValue* object, std::string_view name) {
  constexpr std::size_t most = 64;
  return object == nullptr || object->state == nullptr || object->state->items.size() > 2 * most
             ? nullptr
             : object->state->find(name);
}

/// The whole numbers, at least 0, of a torch.Size or a tuple.
std::optional<Dims> dims_of(const PickleValue* value) {
  if (value != nullptr && value->is_a("torch Size") && value->items.size() == 1) {
    value = value->items[0];
  }
  if (value == nullptr || (value->kind != Kind::tuple && value->kind != Kind::list) ||
      value->items.size() > static_cast<std::size_t>(max_dims)) {
    return std::nullopt;
  }
  Dims dims;
  for (const PickleValue* item : value->items) {
    if (item->kind != Kind::integer || item->integer < 0) {
      return std::nullopt;
    }
    dims.push_back(item->integer);
  }
  return dims;
}

/// The bytes of that many elements; nothing above 2^62.
bool fits_memory(const Dims& shape, DType dtype) {
  auto bytes = static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, std::max<std::int64_t>(extent, 1), &bytes) ||
        bytes > (std::int64_t{1} << 62)) {
      return false;
    }
  }
  return true;
}

/// Reads `.metadata`.
class MetadataReader {
 public:
  MetadataReader(TorchContent& content, std::map<std::string, TensorInfo>& tensors,
                 std::map<std::string, StateDict::Scalar>& scalars,
                 std::vector<std::string>& left_out)
      : content_(content),
        tensors_(tensors),
        scalars_(scalars),
        left_out_(left_out),
        path_(content.path_of(".metadata")) {}

  void read() {
    const MappedFile file(path_);
    const Pickle pickle(file.bytes(), path_);
    file.check_intact();
    chunks_left_ = file.bytes().size();
    const PickleValue* const root = &pickle.root();
    const PickleValue* const described = field(root, "state_dict_metadata");
    const PickleValue* const stored = field(root, "storage_data");
    if (!is_metadata(root, "Metadata") || described == nullptr || described->kind != Kind::dict ||
        stored == nullptr || stored->kind != Kind::dict) {
      wrong(path_, "it does not describe a checkpoint of torch.distributed");
    }
    for (std::size_t i = 0; i < stored->items.size(); i += 2) {
      read_item(stored->items[i], stored->items[i + 1]);
    }
    for (std::size_t i = 0; i < described->items.size(); i += 2) {
      const PickleValue* const name = described->items[i];
      if (name->kind != Kind::text) {
        wrong(path_, "a name is not a text");
      }
      if (is_metadata(described->items[i + 1], "TensorStorageMetadata")) {
        read_tensor(name->text, described->items[i + 1]);
      } else {
        read_scalar(name->text);
      }
    }
  }

 private:
  using ItemKey = std::pair<std::string, std::vector<std::int64_t>>;  // name, offsets

  void read_item(const PickleValue* index, const PickleValue* info) {
    const PickleValue* const name = field(index, "fqn");
    const PickleValue* const file = field(info, "relative_path");
    const PickleValue* const offset = field(info, "offset");
    const PickleValue* const length = field(info, "length");
    if (name == nullptr || name->kind != Kind::text || file == nullptr ||
        file->kind != Kind::text || offset == nullptr || offset->kind != Kind::integer ||
        length == nullptr || length->kind != Kind::integer || offset->integer < 0 ||
        length->integer < 0) {
      wrong(path_, "an entry of storage_data lacks name, file, offset or length");
    }
    const std::string where = fmt::format("'{}'", name->text);
    if (const PickleValue* const transform = field(info, "transform_descriptors");
        transform != nullptr && transform->kind != Kind::none) {
      wrong(path_, where + " was stored with a transformation (compression)");
    }
    if (file->text.empty() || file->text.find('/') != std::string::npos || file->text == "." ||
        file->text == "..") {
      wrong(path_, fmt::format("{}: '{}' is not a file of this folder", where, file->text));
    }
    std::unique_ptr<MappedFile>& opened = content_.files[file->text];
    if (!opened) {
      opened = std::make_unique<MappedFile>(content_.path_of(file->text));
    }
    const std::uint64_t size = opened->bytes().size();
    const auto begin = static_cast<std::uint64_t>(offset->integer);
    const auto count = static_cast<std::uint64_t>(length->integer);
    if (begin > size || count > size - begin) {
      wrong(content_.path_of(file->text),
            fmt::format("{} is beyond its end (expected at least {} bytes, got {})", where,
                        begin + count, size));
    }
    const std::optional<Dims> offsets = dims_of(field(index, "offset"));
    items_[{name->text, offsets ? std::vector<std::int64_t>(offsets->begin(), offsets->end())
                                : std::vector<std::int64_t>()}] = {file->text, begin, count};
  }

  const TorchItem* item_of(const std::string& name, const Dims& offsets) const {
    const auto found = items_.find({name, {offsets.begin(), offsets.end()}});
    return found == items_.end() ? nullptr : &found->second;
  }

  void read_tensor(const std::string& name, const PickleValue* tensor) {
    const std::string where = fmt::format("tensor '{}'", name);
    const PickleValue* const properties = field(tensor, "properties");
    const PickleValue* type = nullptr;
    if (properties != nullptr && properties->state != nullptr) {
      type = properties->state->kind == Kind::tuple && !properties->state->items.empty()
                 ? properties->state->items[0]
                 : properties->state->find("dtype");
    }
    const auto* const known = std::ranges::find_if(torch_types, [&](const TorchType& names) {
      return type != nullptr && type->kind == Kind::global && type->text == names.dtype;
    });
    if (known == torch_types.end()) {
      wrong(path_, fmt::format("{}: its type is not known{}", where,
                               type == nullptr ? "" : " (" + type->text + ")"));
    }
    const std::optional<Dims> shape = dims_of(field(tensor, "size"));
    const PickleValue* const chunks = field(tensor, "chunks");
    if (!shape || !fits_memory(*shape, known->type) || chunks == nullptr ||
        chunks->kind != Kind::list) {
      wrong(path_, where + ": it has no shape, or no chunks");
    }
    if (chunks->items.size() > chunks_left_) {
      wrong(path_, where + ": it has more chunks than the file has room for");
    }
    chunks_left_ -= chunks->items.size();
    std::vector<TorchChunk> parts;
    for (const PickleValue* chunk : chunks->items) {
      const std::optional<Dims> offsets = dims_of(field(chunk, "offsets"));
      const std::optional<Dims> sizes = dims_of(field(chunk, "sizes"));
      if (!offsets || !sizes) {
        wrong(path_, where + ": a chunk lacks offsets or sizes");
      }
      if (fits_memory(*sizes, known->type) && sizes->product() == 0) {
        continue;
      }
      const TorchItem* const item = item_of(name, *offsets);
      if (item == nullptr || !is_inside({*offsets, *sizes}, *shape)) {
        wrong(path_, fmt::format("{}: the chunk of {} at {} {}", where, to_string(*sizes),
                                 to_string(*offsets),
                                 item == nullptr ? "is not stored" : "is not inside it"));
      }
      parts.push_back({{*offsets, *sizes}, *item});
    }
    std::vector<const LocalPart*> boxes;
    for (const TorchChunk& part : parts) {
      boxes.push_back(&part.box);
    }
    check_coverage(name, {known->type, *shape}, boxes, path_);
    tensors_.emplace(name, TensorInfo{known->type, *shape});
    content_.chunks.emplace(name, std::move(parts));
  }

  /// Numbers and texts; other objects stay out.
  void read_scalar(const std::string& name) {
    const TorchItem* const item = item_of(name, {});
    if (item == nullptr) {
      wrong(path_, fmt::format("'{}' is not stored", name));
    }
    const std::string path = content_.path_of(item->file);
    const auto entries = zip_entries(content_.bytes(*item), path);
    const auto data = entries.find("archive/data.pkl");
    if (data == entries.end()) {
      wrong(path, fmt::format("'{}' has no data.pkl", name));
    }
    try {
      const Pickle pickle(data->second.bytes, path);
      const PickleValue& value = pickle.root();
      if (value.kind == Kind::integer || value.kind == Kind::boolean) {
        scalars_[name] = value.integer;
      } else if (value.kind == Kind::real) {
        scalars_[name] = value.real;
      } else if (value.kind == Kind::text) {
        scalars_[name] = value.text;
      } else {
        left_out_.push_back(name);
      }
    } catch (const Error&) {
      left_out_.push_back(name);  // an object of a program's own
    }
  }

  TorchContent& content_;
  std::map<std::string, TensorInfo>& tensors_;
  std::map<std::string, StateDict::Scalar>& scalars_;
  std::vector<std::string>& left_out_;
  std::string path_;
  std::size_t chunks_left_ = 0;  // tensors may share a list of them
  std::map<ItemKey, TorchItem> items_;
};

/// The tensor of a stored value, which torch.save wrote: in memory of its own.
Tensor tensor_of(std::span<const std::byte> item, const std::string& where, const TensorInfo& info,
                 const Dims& shape) {
  const auto entries = zip_entries(item, where);
  const auto data = entries.find("archive/data.pkl");
  if (data == entries.end()) {
    wrong(where, "a stored value has no data.pkl");
  }
  if (const auto order = entries.find("archive/byteorder");
      order != entries.end() &&
      std::string_view(reinterpret_cast<const char*>(order->second.bytes.data()),
                       order->second.bytes.size()) != "little") {
    wrong(where, "a stored value is not little-endian");
  }
  const Pickle pickle(data->second.bytes, where);
  const PickleValue& value = pickle.root();
  const TorchType& names = torch_type(info.dtype);
  const bool untyped = names.storage == untyped_storage;
  const bool is_tensor =
      value.is_a(untyped ? "torch._utils _rebuild_tensor_v3" : "torch._utils _rebuild_tensor_v2") &&
      value.items.size() >= (untyped ? 7 : 4) && value.items[0]->kind == Kind::persistent &&
      value.items[0]->items[0]->kind == Kind::tuple &&
      value.items[0]->items[0]->items.size() == 5 && value.items[1]->kind == Kind::integer;
  const std::optional<Dims> size = is_tensor ? dims_of(value.items[2]) : std::nullopt;
  const std::optional<Dims> strides = is_tensor ? dims_of(value.items[3]) : std::nullopt;
  if (!size || !strides || strides->size() != size->size()) {
    wrong(where, "a stored value is not a tensor");
  }
  const std::vector<const PickleValue*>& storage = value.items[0]->items[0]->items;
  const std::string& type = untyped ? value.items[6]->text : storage[1]->text;
  if (!(*size == shape) || storage[1]->text != names.storage || (untyped && type != names.dtype)) {
    wrong(where, fmt::format("a stored tensor is not the one that .metadata describes (expected "
                             "{}{}, got {}{})",
                             name_of(info.dtype), to_string(shape), type, to_string(*size)));
  }
  const auto found = entries.find("archive/data/" + storage[2]->text);
  const std::size_t width = size_of(info.dtype);
  // The last element, in steps that cannot overflow.
  std::int64_t last = value.items[1]->integer;
  bool inside = found != entries.end() && last >= 0;
  for (const auto [extent, stride] : zip(*size, *strides)) {
    std::int64_t reach = 0;
    inside = inside && !__builtin_mul_overflow(extent - 1, stride, &reach) &&
             !__builtin_add_overflow(last, reach, &last);
  }
  const std::span<const std::byte> bytes =
      inside ? found->second.bytes : std::span<const std::byte>();
  if (!inside || static_cast<std::uint64_t>(last) >= bytes.size() / width) {
    wrong(where, "a stored tensor reaches beyond its bytes");
  }
  const auto elements = static_cast<std::int64_t>(bytes.size() / width);
  const Tensor whole = empty({elements}, info.dtype);
  std::memcpy(whole.raw_data(), bytes.data(), static_cast<std::size_t>(elements) * width);
  if (info.dtype == DType::boolean &&
      std::ranges::any_of(bytes, [](std::byte b) { return b > std::byte{1}; })) {
    wrong(where, "a stored bool is neither 0 nor 1");
  }
  return alias(whole, *size, *strides, value.items[1]->integer);
}

}  // namespace
}  // namespace checkpoint_detail

TorchCheckpoint::TorchCheckpoint(const std::string& folder)
    : TensorSource(folder), content_(std::make_shared<checkpoint_detail::TorchContent>()) {
  content_->folder = folder;
  checkpoint_detail::MetadataReader(*content_, tensors_, scalars_, left_out_).read();
  for (const auto& [name, file] : content_->files) {
    files_.push_back(name);
  }
}

std::uint64_t TorchCheckpoint::bytes_read() const { return content_->bytes_read; }

void TorchCheckpoint::copy_box(const std::string& name, const LocalPart& box,
                               const Tensor& into) const {
  using namespace checkpoint_detail;
  const TensorInfo& stored = tensors_.at(name);
  for (const TorchChunk& chunk : content_->chunks.at(name)) {
    LocalPart both = chunk.box;
    std::int64_t from = 0;
    std::int64_t to = into.offset();
    for (int d = 0; d < both.shape.size(); ++d) {
      both.offset[d] = std::max(chunk.box.offset[d], box.offset[d]);
      both.shape[d] =
          std::min(chunk.box.offset[d] + chunk.box.shape[d], box.offset[d] + box.shape[d]) -
          both.offset[d];
    }
    if (std::ranges::any_of(both.shape, [](std::int64_t extent) { return extent < 1; })) {
      continue;
    }
    const MappedFile& file = *content_->files.at(chunk.item.file);
    const std::span<const std::byte> item = content_->bytes(chunk.item);
    const Tensor whole =
        tensor_of(item, content_->path_of(chunk.item.file), stored, chunk.box.shape);
    file.check_intact();
    from = whole.offset();
    for (int d = 0; d < both.shape.size(); ++d) {
      from += (both.offset[d] - chunk.box.offset[d]) * whole.strides()[d];
      to += (both.offset[d] - box.offset[d]) * into.strides()[d];
    }
    ops::copy_(alias(into, both.shape, into.strides(), to),
               alias(whole, both.shape, whole.strides(), from));
    file.drop(item);
    content_->bytes_read +=
        static_cast<std::uint64_t>(both.shape.product()) * size_of(stored.dtype);
  }
}

}  // namespace tessera
