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
#include <span>
#include <string>
#include <system_error>
#include <tessera/block_codes.hpp>
#include <tessera/gguf.hpp>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.ggml;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :box;
import :mapped_file;
import :format;
import :gguf;
import :source;
import :stored_values;

namespace tessera::checkpoint_detail {
namespace {

namespace fs = std::filesystem;

/// The bytes of a tensor of this type; nothing where its rows are no whole blocks, or where they do
/// not fit into 63 bits.
std::optional<std::uint64_t> stored_bytes(const Dims& shape, const GgufStoredType& type) {
  const std::int64_t row = shape.size() == 0 ? 1 : shape[shape.size() - 1];
  std::int64_t bytes = 0;
  if (row % type.elements != 0 ||
      __builtin_mul_overflow(shape.product() / type.elements, type.bytes, &bytes)) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(bytes);
}

class GgufFile final : public TensorSource {
 public:
  explicit GgufFile(const std::string& path) : TensorSource(path), file_(path) {
    files_ = {fs::path(path).filename().string()};
    const GgufHeader header = read_gguf(path);
    const std::span<const std::byte> bytes = file_.bytes();
    const auto data = bytes.subspan(std::min<std::size_t>(header.bytes, bytes.size()));
    std::map<std::uint64_t, std::pair<std::uint64_t, const std::string*>> ranges;
    for (const GgufTensor& tensor : header.tensors) {
      add(tensor, header.alignment, data);
      const std::uint64_t size = stored_.at(tensor.name).bytes.size();
      if (size > 0 &&
          !ranges.emplace(tensor.begin, std::pair(tensor.begin + size, &tensor.name)).second) {
        wrong(tensor.name, "its bytes overlap those of another tensor");
      }
    }
    std::uint64_t end = 0;
    for (const auto& [begin, range] : ranges) {
      if (begin < end) {
        wrong(*range.second, "its bytes overlap those of another tensor");
      }
      end = range.first;
    }
    meta_ = json_text(nlohmann::json{{"gguf", header.fields}});
  }

  std::uint64_t bytes_read() const override { return bytes_read_; }

  std::string stored_type(const std::string& name) const override {
    info(name);  // throws for a name that is not there
    return std::string(stored_.at(name).type->name);
  }

  Tensor stored_rows(const std::string& name, std::int64_t row, std::int64_t rows) const override {
    const Dims& shape = info(name).shape;
    const StoredBytes& at = stored_.at(name);
    if (at.type->decode == nullptr || shape.size() < 2) {
      return {};
    }
    const std::int64_t columns = shape.back();
    const std::int64_t all = columns == 0 ? 0 : shape.product() / columns;
    require(row >= 0 && rows >= 0 && row + rows <= all, "GGUF: rows that are not there");
    const std::int64_t bytes = columns / at.type->elements * at.type->bytes;
    const Tensor codes = empty({rows, bytes}, DType::u8);
    const auto first = static_cast<std::size_t>(row * bytes);
    const auto count = static_cast<std::size_t>(rows * bytes);
    std::memcpy(codes.raw_data(), at.bytes.subspan(first, count).data(), count);
    file_.check_intact();
    bytes_read_ += count;
    return codes;
  }

 private:
  struct StoredBytes {
    const GgufStoredType* type = nullptr;
    std::span<const std::byte> bytes;
  };

  [[noreturn]] void wrong(const std::string& name, const std::string& what) const {
    fail_input({.thing = path_,
                .wrong = fmt::format("tensor '{}': {}", shown(name, 80), what),
                .advice = "download or write the file again"});
  }

  void add(const GgufTensor& tensor, std::uint64_t alignment, std::span<const std::byte> data) {
    const GgufStoredType* const type = gguf_type(tensor.type);
    if (type == nullptr) {
      fail_input({.thing = path_,
                  .wrong = fmt::format("tensor '{}' has the type {}, which is not read",
                                       shown(tensor.name, 80), gguf_type_name(tensor.type)),
                  .expected = gguf_types_read(),
                  .advice = "use a file of the model with these types, such as Q8_0 or F16"});
    }
    const Dims shape{std::span<const std::int64_t>(tensor.shape)};
    const auto bytes = stored_bytes(shape, *type);
    if (!bytes) {
      wrong(tensor.name,
            fmt::format(
                "its rows are no whole blocks of {} elements, or its dims are too large (got {})",
                type->elements, to_string(shape)));
    }
    if (tensor.begin % alignment != 0 || tensor.begin > data.size() ||
        *bytes > data.size() - tensor.begin) {
      wrong(tensor.name,
            fmt::format(
                "its {} bytes at {} are not within the {} bytes of data, or not aligned to {}",
                *bytes, tensor.begin, data.size(), alignment));
    }
    tensors_.emplace(tensor.name, TensorInfo{type->dtype, shape});
    stored_.emplace(tensor.name, StoredBytes{type, data.subspan(tensor.begin, *bytes)});
  }

  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    const TensorInfo& stored = tensors_.at(name);
    const StoredBytes& at = stored_.at(name);
    bytes_read_ += static_cast<std::uint64_t>(box.shape.product()) *
                   static_cast<std::uint64_t>(at.type->bytes) /
                   static_cast<std::uint64_t>(at.type->elements);
    if (at.type->decode == nullptr) {
      copy_stored(file_, at.bytes, stored, box, into, fmt::format("{}: tensor '{}'", path_, name));
      return;
    }
    const Tensor decoded = empty(box.shape, DType::f32);
    float* to = decoded.data<float>();
    for_each_run(stored.shape, box, [&](std::int64_t first, std::int64_t count) {
      decode(at, first, count, to);
      to += count;
    });
    file_.check_intact();
    ops::copy_(into, decoded);
    if (box.shape == stored.shape) {
      file_.drop(at.bytes);
    }
  }

  /// The elements of a range, which may begin and end within a block.
  static void decode(const StoredBytes& from, std::int64_t first, std::int64_t count, float* to) {
    const std::int64_t size = from.type->elements;
    std::vector<float> whole(static_cast<std::size_t>(size));
    while (count > 0) {
      const std::int64_t inside = first % size;
      const std::int64_t taken = std::min(count, size - inside);
      const std::byte* const block =
          from.bytes.data() + static_cast<std::ptrdiff_t>(first / size * from.type->bytes);
      from.type->decode(block, taken == size ? to : whole.data());
      if (taken < size) {
        std::copy_n(whole.begin() + inside, taken, to);
      }
      first += taken;
      count -= taken;
      to += taken;
    }
  }

  MappedFile file_;
  std::map<std::string, StoredBytes> stored_;
  mutable std::atomic<std::uint64_t> bytes_read_{0};
};

/// How a tensor of a source is written: as it is stored there where that can be written, else with
/// its plain elements.
const GgufStoredType& written_type(const TensorSource& from, const std::string& name) {
  const TensorInfo& info = from.info(name);
  const GgufStoredType* type = gguf_type(from.stored_type(name));
  if (type == nullptr || (type->decode != nullptr && type->encode == nullptr) ||
      !stored_bytes(info.shape, *type)) {
    type = gguf_type(info.dtype);
  }
  if (type == nullptr) {
    fail_input({.thing = from.path(),
                .wrong = fmt::format("tensor '{}' has the type {}, which GGUF does not have", name,
                                     name_of(info.dtype)),
                .expected = gguf_types_read()});
  }
  return *type;
}

/// The bytes of some rows in the type that is written.
std::vector<std::byte> encoded(const Tensor& rows, const GgufStoredType& type,
                               const std::string& what) {
  const auto elements = static_cast<std::size_t>(rows.numel());
  if (type.encode == nullptr) {
    const auto* const bytes = static_cast<const std::byte*>(rows.raw_data());
    return {bytes, bytes + elements * size_of(type.dtype)};
  }
  const auto size = static_cast<std::size_t>(type.elements);
  std::vector<std::byte> out(elements / size * static_cast<std::size_t>(type.bytes));
  for (std::size_t i = 0; i < elements / size; ++i) {
    if (!type.encode(rows.data<float>() + i * size,
                     out.data() + i * static_cast<std::size_t>(type.bytes))) {
      fail_input({.thing = what,
                  .wrong = fmt::format("its values are too large for {}", type.name),
                  .advice = "write it with another type"});
    }
  }
  return out;
}

/// Writes a tensor, some rows at a time.
void write_tensor(const TensorSource& from, const std::string& name, const GgufStoredType& type,
                  std::uint64_t at, OutputFile& file) {
  const std::string what = fmt::format("{}: tensor '{}'", from.path(), name);
  for_each_block(from.info(name).shape, [&](const LocalPart& box) {
    const Tensor rows = empty(box.shape, type.dtype);
    from.read(name, box, rows);
    check_finite(rows, box.offset, what);
    const std::vector<std::byte> bytes = encoded(rows, type, what);
    file.write(at, bytes);
    at += bytes.size();
  });
}

void write_gguf(const TensorSource& from, const std::string& path) {
  constexpr std::uint64_t alignment = 32;
  nlohmann::json fields = parse_json(from.meta()).value("gguf", nlohmann::json::object());
  fields.erase("general.alignment");  // that of another file
  if (!fields.contains("general.architecture")) {
    fields["general.architecture"] = {{"type", "text"}, {"value", "unknown"}};
  }
  std::vector<GgufTensor> table;
  std::vector<const GgufStoredType*> types;
  std::uint64_t end = 0;
  for (const auto& [name, info] : from.tensors()) {
    if (info.shape.size() > 4) {
      fail_input(
          {.thing = from.path(),
           .wrong = fmt::format(
               "tensor '{}' has more dims than GGUF can describe (expected at most 4, got {})",
               name, info.shape.size())});
    }
    types.push_back(&written_type(from, name));
    table.push_back({name, types.back()->number, {info.shape.begin(), info.shape.end()}, end});
    end += (*stored_bytes(info.shape, *types.back()) + alignment - 1) / alignment * alignment;
  }
  const std::string header = gguf_header(fields, table);
  OutputFile file(path);
  file.write(0, std::as_bytes(std::span(header)));
  for (std::size_t i = 0; i < table.size(); ++i) {
    write_tensor(from, table[i].name, *types[i], header.size() + table[i].begin, file);
  }
  // Readers expect the last tensor to be filled up too.
  const std::uint64_t written =
      table.empty()
          ? 0
          : table.back().begin + *stored_bytes(from.info(table.back().name).shape, *types.back());
  file.write(header.size() + written, std::vector<std::byte>(end - written));
  file.finish();
}

class GgufFormat final : public CheckpointFormat {
 public:
  std::string described() const override { return "a GGUF file, or a folder with model.gguf"; }
  bool recognises(const std::string& path) const override {
    return is_gguf(path) || is_gguf(inside(path));
  }
  std::unique_ptr<TensorSource> open(const std::string& path) const override {
    std::error_code ignored;
    return std::make_unique<GgufFile>(fs::is_directory(path, ignored) ? inside(path) : path);
  }
  bool can_write() const override { return true; }
  WrittenCounts write(const TensorSource& from, const std::string& folder,
                      const WriteOptions& /*options*/) const override {
    const auto write = [&](const std::string& into) { write_gguf(from, inside(into)); };
    std::error_code ignored;
    if (fs::exists(folder, ignored)) {
      write(folder);
      sync_folder(folder);
    } else {
      NewFolder made(folder);
      write(made.path());
      made.complete();
    }
    return {from.tensors().size(), 0};
  }

 private:
  static std::string inside(const std::string& folder) {
    return (fs::path(folder) / "model.gguf").string();
  }
};

}  // namespace

std::unique_ptr<CheckpointFormat> gguf_format() { return std::make_unique<GgufFormat>(); }

}  // namespace tessera::checkpoint_detail
