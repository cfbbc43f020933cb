module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../json.hpp"
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :box;
import :mapped_file;
import :header;

namespace tessera {
namespace checkpoint_detail {

struct SafetensorsContent {
  explicit SafetensorsContent(const std::string& path) : file(path) {}
  MappedFile file;
  std::map<std::string, std::string> metadata;
  std::map<std::string, const std::byte*> data;  // of each tensor
  std::atomic<std::uint64_t> bytes_read{0};
};

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_parts(const std::string& path) {
  fail_input({.thing = path,
              .wrong = "its tensors are parts of larger ones, as PyTorch's sharded safetensors "
                       "writer (HuggingFaceStorageWriter) saves them for each rank",
              .advice = "put the parts together with PyTorch's consolidate_safetensors_files "
                        "(torch.distributed.checkpoint), or save again with "
                        "enable_consolidation=True"});
}

/// Reads the header; the first wrong thing ends it.
class HeaderReader {
 public:
  HeaderReader(std::string path, SafetensorsContent& content,
               std::map<std::string, TensorInfo>& tensors)
      : path_(std::move(path)), content_(content), tensors_(tensors) {}

  void read() {
    read_header();
    content_.file.check_intact();
  }

 private:
  void read_header() {
    const std::span<const std::byte> bytes = content_.file.bytes();
    std::uint64_t length = 0;
    if (bytes.size() < sizeof length) {
      wrong(fmt::format("the file is truncated (expected at least 8 bytes, got {})", bytes.size()));
    }
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > longest_header || length > bytes.size() - sizeof length) {
      wrong(fmt::format(
          "the length of the header is wrong, or the file is truncated (expected at most {}, "
          "got {})",
          std::min<std::uint64_t>(longest_header, bytes.size() - sizeof length), length));
    }
    const ParsedJson header =
        parse_json_object({reinterpret_cast<const char*>(bytes.data()) + sizeof length, length});
    if (!header.problem.empty()) {
      wrong("wrong header: " + header.problem);
    }
    data_ = bytes.subspan(sizeof length + length);
    for (const auto& [name, entry] : header.value.items()) {
      if (name == "__metadata__") {
        read_metadata(entry);
      } else {
        read_tensor(name, entry);
      }
    }
    check_ranges();
    check_whole();
  }

  struct Range {
    std::int64_t begin;
    std::int64_t end;
    const std::string* name;
  };

  [[noreturn]] void wrong(const std::string& what) const {
    content_.file.check_intact();
    fail_input({.thing = path_, .wrong = what, .advice = "download or write the file again"});
  }
  [[noreturn]] void wrong(const std::string& name, const std::string& what) const {
    wrong(fmt::format("tensor '{}': {}", name, what));
  }

  void read_metadata(const nlohmann::json& entry) {
    if (!entry.is_object()) {
      wrong("__metadata__ is not an object");
    }
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) {
        wrong(fmt::format("__metadata__ '{}' is not a string", key));
      }
      content_.metadata.emplace(key, value.get<std::string>());
    }
  }

  void read_tensor(const std::string& name, const nlohmann::json& entry) {
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets")) {
      wrong(name, "the entry must have dtype, shape and data_offsets");
    }
    const nlohmann::json& type = entry["dtype"];
    const auto dtype =
        type.is_string() ? dtype_from_safetensors(type.get<std::string>()) : std::nullopt;
    if (!dtype) {
      wrong(name,
            fmt::format(
                "unknown type {} (expected one of {})", json_text(type).substr(0, 40),
                fmt::join(dtype_facts | std::views::transform(&DTypeFacts::safetensors), ", ")));
    }
    const auto shape = naturals(entry["shape"], max_dims);
    if (!shape) {
      wrong(name,
            fmt::format("the shape is not a list of at most {} non-negative integers", max_dims));
    }
    const auto offsets = naturals(entry["data_offsets"], 2);
    if (!offsets || offsets->size() != 2) {
      wrong(name, "data_offsets is not a list of two non-negative integers, begin and end");
    }
    const std::int64_t begin = (*offsets)[0];
    const std::int64_t end = (*offsets)[1];
    if (begin > end || end > static_cast<std::int64_t>(data_.size())) {
      wrong(name, fmt::format("its bytes [{}, {}) are not within the {} bytes of data", begin, end,
                              data_.size()));
    }
    const auto expected = byte_count(*shape, size_of(*dtype));
    const Dims dims{std::span<const std::int64_t>(*shape)};
    if (!expected || *expected != end - begin) {
      wrong(name,
            fmt::format("data_offsets do not have the size of {}{} (expected {} bytes, got {})",
                        name_of(*dtype), to_string(dims),
                        expected ? std::to_string(*expected) : "more than 2^63", end - begin));
    }
    const auto at = tensors_.emplace(name, TensorInfo{*dtype, dims}).first;
    content_.data.emplace(name, data_.data() + begin);
    ranges_.push_back({begin, end, &at->first});
  }

  /// PyTorch's writer notes where each tensor begins in the whole one. It writes whole tensors into
  /// files model-*, and parts of them into shard-*, of which the first begin at 0 too.
  void check_whole() const {
    const auto found = content_.metadata.find("DCP_SHARDING_INFO");
    if (found == content_.metadata.end()) {
      return;
    }
    const ParsedJson parts = parse_json_object(found->second);
    const bool begins_at_0 =
        parts.problem.empty() && std::ranges::all_of(tensors_, [&](const auto& tensor) {
          const nlohmann::json entry = parts.value.value(tensor.first, nlohmann::json::object());
          const nlohmann::json none =
              std::vector<int>(static_cast<std::size_t>(tensor.second.shape.size()), 0);
          return entry.is_object() && entry.value("saved_offsets", nlohmann::json()) == none;
        });
    if (!begins_at_0 || !fs::path(path_).filename().string().starts_with("model")) {
      fail_parts(path_);
    }
  }

  /// The format wants every byte to be in exactly one tensor.
  void check_ranges() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    std::int64_t expected = 0;
    for (const Range& range : ranges_) {
      if (range.begin != expected) {
        wrong(*range.name, fmt::format("its bytes {} (expected to start at {}, got {})",
                                       range.begin < expected ? "overlap those of another tensor"
                                                              : "leave a gap",
                                       expected, range.begin));
      }
      expected = range.end;
    }
    if (expected != static_cast<std::int64_t>(data_.size())) {
      wrong(fmt::format(
          "the file does not end at the end of its tensors (expected {} bytes of data, got {})",
          expected, data_.size()));
    }
  }

  std::string path_;
  SafetensorsContent& content_;
  std::map<std::string, TensorInfo>& tensors_;
  std::span<const std::byte> data_;
  std::vector<Range> ranges_;
};

}  // namespace

namespace {

/// The path of a rank's parts in the folder; empty: there is none.
std::string parts_in(const std::string& folder) {
  // transformers' is_sharded_checkpoint: one such file is enough for it to read no other form.
  constexpr std::string_view form = "shard-00000-model-00000-of-00000.safetensors";
  const auto fits = [&](const std::string& name) {
    return std::ranges::equal(name, form, [](char c, char expected) {
      return expected == '0' ? c >= '0' && c <= '9' : c == expected;
    });
  };
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (fits(entry.path().filename().string())) {
      return entry.path().string();
    }
  }
  return "";
}

}  // namespace

bool has_parts(const std::string& folder) { return !parts_in(folder).empty(); }

void check_no_parts(const std::string& folder) {
  if (const std::string path = parts_in(folder); !path.empty()) {
    fail_parts(path);
  }
}

}  // namespace checkpoint_detail

std::string_view safetensors_name(DType dtype) { return facts_of(dtype).safetensors; }

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (int i = 0; i < dtype_count; ++i) {
    if (const auto dtype = static_cast<DType>(i); safetensors_name(dtype) == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : TensorSource(path), content_(std::make_shared<checkpoint_detail::SafetensorsContent>(path)) {
  files_ = {std::filesystem::path(path).filename().string()};
  checkpoint_detail::HeaderReader(path, *content_, tensors_).read();
}

const std::map<std::string, std::string>& SafetensorsFile::metadata() const {
  return content_->metadata;
}
std::uint64_t SafetensorsFile::file_bytes() const { return content_->file.bytes().size(); }
std::span<const std::byte> SafetensorsFile::bytes(const std::string& name) const {
  const TensorInfo& stored = info(name);
  return {content_->data.at(name),
          static_cast<std::size_t>(stored.shape.product()) * size_of(stored.dtype)};
}
void SafetensorsFile::check_intact() const { content_->file.check_intact(); }
std::uint64_t SafetensorsFile::bytes_read() const { return content_->bytes_read; }

void SafetensorsFile::copy_box(const std::string& name, const LocalPart& box,
                               const Tensor& into) const {
  const TensorInfo& stored = tensors_.at(name);
  checkpoint_detail::copy_stored(content_->file, bytes(name), stored, box, into,
                                 fmt::format("{}: tensor '{}'", path_, name));
  content_->bytes_read += static_cast<std::uint64_t>(box.shape.product()) * size_of(stored.dtype);
}

}  // namespace tessera
