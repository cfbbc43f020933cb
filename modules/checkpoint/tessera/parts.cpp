module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/content_hash.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :chunks;
import :coverage;
import :checkpoint_files;
import :file_bytes;
import :header;
import :checkpoint_index;
import :parts;
import :save_plan;
import :table;

namespace tessera::checkpoint_detail {
namespace {

constexpr std::size_t digits = 32;  // of a hash

[[noreturn]] void wrong(const std::string& path, const std::string& what) {
  fail_input({.thing = path, .wrong = what, .advice = "use another checkpoint"});
}

/// "'x@32' (f32[32])".
std::string described(const std::string& key, const TensorInfo& info) {
  return fmt::format("'{}' ({}{})", key, name_of(info.dtype), to_string(info.shape));
}

/// The header of a file of at most that many bytes; "" when it does not fit.
std::string read_header(const DataFile& file, std::uint64_t bytes) {
  constexpr std::size_t usual = std::size_t{64} << 10;  // most headers come with their length
  std::string front = file.front(usual);
  std::uint64_t length = 0;
  if (front.size() < sizeof length || bytes < sizeof length) {
    return "";
  }
  std::memcpy(&length, front.data(), sizeof length);
  if (length > longest_header || length > bytes - sizeof length) {
    return "";
  }
  const std::size_t whole = sizeof length + length;
  if (whole > front.size()) {
    return file.front(whole);
  }
  front.resize(whole);
  return front;
}

/// The part of a row, once it is known to fit its tensor and the file, whose data are from `begin`
/// to `end`.
StoredPart part_of(const std::string& path, const TableRow& row, std::uint64_t begin,
                   std::uint64_t end, const NumberedTensors& tensors) {
  if (row.tensor >= tensors.size()) {
    wrong(path, fmt::format("its table has a part of tensor {}, and the checkpoint has only {}",
                            row.tensor, tensors.size()));
  }
  const auto& [name, tensor] = *tensors[row.tensor];
  const std::string key = key_of(name, row.box.offset);
  if (!is_inside(row.box, tensor.info.shape)) {
    wrong(path, fmt::format("{} is not a part of a tensor of the checkpoint",
                            described(key, {tensor.info.dtype, row.box.shape})));
  }
  const std::size_t bytes =
      static_cast<std::size_t>(row.box.shape.product()) * size_of(tensor.info.dtype);
  if (row.begin > end - begin || bytes > end - begin - row.begin) {
    wrong(path, fmt::format("the bytes of '{}' are not within the file", key));
  }
  if (row.hashes.size() != chunks_of(bytes) * digits) {
    wrong(path,
          fmt::format("'{}' does not have {} hashes, one for each MiB", key, chunks_of(bytes)));
  }
  return {row.tensor, row.box, begin + row.begin, bytes, row.hashes, 0};
}

}  // namespace

std::span<const StoredPart> PartFile::of(std::size_t tensor) const {
  const auto found = std::ranges::equal_range(parts, tensor, {}, &StoredPart::tensor);
  return {found.begin(), found.end()};
}

std::unique_ptr<PartFile> open_parts(const std::string& path, std::unique_ptr<DataFile> file,
                                     const StoredFile& expected, const NumberedTensors& tensors) {
  std::string header = read_header(*file, expected.bytes);
  const bool same_header = content_hash(std::as_bytes(std::span(header))) == expected.header;
  if (const std::uint64_t bytes = file->size(); bytes != expected.bytes) {
    fail_input({.thing = path,
                .wrong = "the file is not the one that was saved",
                .expected = fmt::format("{} bytes", expected.bytes),
                .got = fmt::format("{}", bytes),
                .advice = "use another checkpoint"});
  }
  if (header.empty() || !same_header) {
    wrong(path, "the file's header is not the one that was saved");
  }
  auto opened = std::make_unique<PartFile>(std::move(file), std::move(header));
  const auto table = table_in(std::string_view(opened->header).substr(sizeof(std::uint64_t)));
  const auto rows = table ? table_rows(*table) : std::nullopt;
  if (!rows || !std::ranges::is_sorted(*rows, {}, &TableRow::tensor)) {
    wrong(path, "the file's header does not begin with a table of its parts");
  }
  std::size_t chunks = 0;
  opened->parts.reserve(rows->size());
  for (const TableRow& row : *rows) {
    StoredPart& part = opened->parts.emplace_back(
        part_of(path, row, opened->header.size(), expected.bytes, tensors));
    part.first_chunk = chunks;
    chunks += chunks_of(part.bytes);
  }
  opened->compared = std::unique_ptr<std::atomic<bool>[]>(new std::atomic<bool>[chunks]());
  return opened;
}

void check_header(const std::string& path, const PartFile& file, const NumberedTensors& tensors) {
  const std::optional<std::string> there = file.file->local_path();
  if (!there) {
    return;
  }
  const SafetensorsFile listed(*there);
  std::map<std::string, const StoredPart*> parts;
  for (const StoredPart& part : file.parts) {
    parts.emplace(key_of(tensors[part.tensor]->first, part.box.offset), &part);
  }
  const std::byte* first = nullptr;  // of the data, in the other mapping
  for (const auto& [key, info] : listed.tensors()) {
    const std::byte* const at = listed.bytes(key).data();
    first = first == nullptr ? at : std::min(first, at);
  }
  for (const auto& [key, info] : listed.tensors()) {
    const auto part = parts.find(key);
    if (part == parts.end() || !(part->second->box.shape == info.shape) ||
        tensors[part->second->tensor]->second.info.dtype != info.dtype ||
        part->second->begin - file.header.size() !=
            static_cast<std::uint64_t>(listed.bytes(key).data() - first)) {
      wrong(path, described(key, info) + " is not a part of a tensor of the checkpoint");
    }
  }
  if (listed.tensors().size() != file.parts.size()) {
    wrong(path, fmt::format("its header does not have the parts of its table (expected {}, got {})",
                            file.parts.size(), listed.tensors().size()));
  }
}

ComparedPart load_part(const PartFile& file, const StoredPart& part, std::size_t first,
                       std::size_t last) {
  ComparedPart result{file.file->load(part.begin, part.bytes, first * chunk_bytes,
                                      std::min(part.bytes, (last + 1) * chunk_bytes)),
                      std::nullopt};
  std::atomic<bool>* const compared = file.compared.get() + part.first_chunk;
  const bool stays = file.file->stays();
  for (std::size_t i = first; i <= last; ++i) {
    if (stays && compared[i].load(std::memory_order_relaxed)) {
      continue;
    }
    if (content_hash(chunk_at(result.loaded.bytes, i)) != part.hashes.substr(i * digits, digits)) {
      result.loaded.owner->check_intact();  // zeros have another hash
      result.damaged = i;
      return result;
    }
    compared[i].store(true, std::memory_order_relaxed);
  }
  return result;
}

}  // namespace tessera::checkpoint_detail
