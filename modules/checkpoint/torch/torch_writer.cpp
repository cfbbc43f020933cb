module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :mapped_file;
import :pickle;
import :torch;
import :torch_types;

namespace tessera {

namespace checkpoint_detail {
namespace {

constexpr const char* data_name = "__0_0.distcp";
constexpr std::int64_t most_bytes = std::int64_t{1} << 31;  // of a chunk: archives end at 4 GiB

std::string metadata_class(std::string_view name) {
  return fmt::format("torch.distributed.checkpoint.metadata {}", name);
}

void write_tuple(PickleWriter& out, const Dims& dims) {
  out.begin_tuple();
  for (const std::int64_t value : dims) {
    out.integer(value);
  }
  out.end_tuple();
}

void write_size(PickleWriter& out, const Dims& dims) {
  out.global("torch Size");
  out.begin_tuple();
  write_tuple(out, dims);
  out.end_tuple();
  out.call();
}

/// Bytes of a value as torch.save writes it: its pickle, and the bytes of a tensor.
std::string saved_value(const std::string& pickle, std::span<const std::byte> data, bool is_tensor,
                        const std::string& where) {
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  std::vector<std::pair<std::string, std::span<const std::byte>>> entries = {
      {"archive/data.pkl", bytes(pickle)}, {"archive/byteorder", bytes("little")}};
  if (is_tensor) {
    entries.emplace_back("archive/data/0", data);
  }
  entries.emplace_back("archive/version", bytes("3\n"));
  return zip_archive(entries, where);
}

std::string saved_tensor(const Tensor& values, const std::string& where) {
  PickleWriter out;
  const TorchType& names = torch_type(values.dtype());
  const bool untyped = names.storage == untyped_storage;
  out.global(untyped ? "torch._utils _rebuild_tensor_v3" : "torch._utils _rebuild_tensor_v2");
  out.begin_tuple();
  out.begin_tuple();
  out.text("storage");
  out.global(names.storage);
  out.text("0");
  out.text("cpu");
  // An untyped storage counts bytes; elements of these types are bytes.
  out.integer(values.numel());
  out.end_tuple();
  out.persistent();
  out.integer(0);
  write_tuple(out, values.shape());
  write_tuple(out, contiguous_strides(values.shape()));
  out.boolean(false);
  out.global("collections OrderedDict");
  out.begin_tuple();
  out.end_tuple();
  out.call();
  if (untyped) {
    out.global(names.dtype);
  }
  out.end_tuple();
  out.call();
  return saved_value(out.finish(),
                     {static_cast<const std::byte*>(values.raw_data()),
                      static_cast<std::size_t>(values.numel()) * size_of(values.dtype())},
                     true, where);
}

std::string saved_scalar(const StateDict::Scalar& scalar, const std::string& where) {
  PickleWriter out;
  if (const std::int64_t* integer = std::get_if<std::int64_t>(&scalar)) {
    out.integer(*integer);
  } else if (const double* real = std::get_if<double>(&scalar)) {
    out.real(*real);
  } else {
    out.text(std::get<std::string>(scalar));
  }
  return saved_value(out.finish(), {}, false, where);
}

/// A value in the data file.
struct WrittenValue {
  std::string name;
  bool is_tensor = false;
  LocalPart box = {};
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

/// The boxes that a tensor is stored in: rows, so that none is larger than an archive may be.
std::vector<LocalPart> chunks_of_tensor(const TensorInfo& info) {
  const LocalPart all{Dims::filled(info.shape.size(), 0), info.shape};
  const std::int64_t rows = info.shape.empty() ? 1 : info.shape[0];
  const std::int64_t bytes = info.shape.product() * static_cast<std::int64_t>(size_of(info.dtype));
  if (bytes <= most_bytes || rows == 1) {
    return {all};
  }
  const std::int64_t step = std::max<std::int64_t>(1, most_bytes / (bytes / rows));
  std::vector<LocalPart> chunks;
  for (std::int64_t row = 0; row < rows; row += step) {
    chunks.push_back(all);
    chunks.back().offset[0] = row;
    chunks.back().shape[0] = std::min(step, rows - row);
  }
  return chunks;
}

void write_description(PickleWriter& out, const TensorInfo& info) {
  out.global(metadata_class("TensorStorageMetadata"));
  out.create();
  out.begin_dict();
  out.text("properties");
  out.global(metadata_class("TensorProperties"));
  out.create();
  out.begin_tuple();
  out.global(torch_type(info.dtype).dtype);
  out.global("torch.serialization _get_layout");
  out.begin_tuple();
  out.text("torch.strided");
  out.end_tuple();
  out.call();
  out.boolean(false);
  out.global(metadata_class("_MEM_FORMAT_ENCODING"));
  out.begin_tuple();
  out.integer(0);
  out.end_tuple();
  out.call();
  out.boolean(false);
  out.end_tuple();
  out.set_state();
  out.text("size");
  write_size(out, info.shape);
  out.text("chunks");
  out.begin_list();
  for (const LocalPart& chunk : chunks_of_tensor(info)) {
    out.global(metadata_class("ChunkStorageMetadata"));
    out.create();
    out.begin_dict();
    out.text("offsets");
    write_size(out, chunk.offset);
    out.text("sizes");
    write_size(out, chunk.shape);
    out.end_dict();
    out.set_state();
  }
  out.end_list();
  out.end_dict();
  out.set_state();
}

void write_place(PickleWriter& out, const WrittenValue& value) {
  out.global(metadata_class("MetadataIndex"));
  out.create();
  out.begin_dict();
  out.text("fqn");
  out.text(value.name);
  out.text("offset");
  value.is_tensor ? write_size(out, value.box.offset) : out.none();
  out.text("index");
  out.none();
  out.end_dict();
  out.set_state();
  out.global("torch.distributed.checkpoint.filesystem _StorageInfo");
  out.create();
  out.begin_dict();
  out.text("relative_path");
  out.text(data_name);
  out.text("offset");
  out.integer(static_cast<std::int64_t>(value.offset));
  out.text("length");
  out.integer(static_cast<std::int64_t>(value.length));
  out.end_dict();
  out.set_state();
}

std::string metadata_of(const TensorSource& from, const std::vector<WrittenValue>& values) {
  PickleWriter out;
  out.global(metadata_class("Metadata"));
  out.create();
  out.begin_dict();
  out.text("state_dict_metadata");
  out.begin_dict();
  for (const auto& [name, info] : from.tensors()) {
    out.text(name);
    write_description(out, info);
  }
  for (const auto& [name, scalar] : from.scalars()) {
    out.text(name);
    out.global(metadata_class("BytesStorageMetadata"));
    out.create();
  }
  out.end_dict();
  out.text("planner_data");  // the path of each name in a state: here all are flat
  out.begin_dict();
  for (const WrittenValue& value : values) {
    out.text(value.name);
    out.begin_tuple();
    out.text(value.name);
    out.end_tuple();
  }
  out.end_dict();
  out.text("storage_data");
  out.begin_dict();
  for (const WrittenValue& value : values) {
    write_place(out, value);
  }
  out.end_dict();
  out.end_dict();
  out.set_state();
  return out.finish();
}

}  // namespace
}  // namespace checkpoint_detail

void write_torch_checkpoint(const TensorSource& from, const std::string& folder) {
  using namespace checkpoint_detail;
  NewFolder made(folder);
  const std::string path = (std::filesystem::path(made.path()) / data_name).string();
  OutputFile file(path);
  std::vector<WrittenValue> values;
  std::uint64_t at = 0;
  const auto write = [&](WrittenValue value, const std::string& bytes) {
    file.write(at, std::as_bytes(std::span(bytes)));
    value.offset = at;
    value.length = bytes.size();
    at += bytes.size();
    values.push_back(std::move(value));
  };
  for (const auto& [name, info] : from.tensors()) {
    for (const LocalPart& box : chunks_of_tensor(info)) {
      const Tensor chunk = empty(box.shape, info.dtype);
      from.read(name, box, chunk);
      write({name, true, box}, saved_tensor(chunk, path));
    }
  }
  for (const auto& [name, scalar] : from.scalars()) {
    write({name}, saved_scalar(scalar, path));
  }
  file.finish();
  // PyTorch, too, writes it last: a folder without it is not a checkpoint.
  const std::string metadata = metadata_of(from, values);
  OutputFile out((std::filesystem::path(made.path()) / ".metadata").string());
  out.write(0, std::as_bytes(std::span(metadata)));
  out.finish();
  made.complete();
}

}  // namespace tessera
