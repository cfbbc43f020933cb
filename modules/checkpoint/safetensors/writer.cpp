module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.ops;
import tessera.tensor;
import :mapped_file;
import :header;

namespace tessera {

namespace checkpoint_detail {
struct WriterContent {
  explicit WriterContent(const std::string& path) : file(path) {}
  struct Entry {
    TensorInfo info;
    std::uint64_t at = 0;  // in the file
  };
  OutputFile file;
  std::map<std::string, Entry> missing;  // not yet written
  std::uint64_t bytes = 0;
};

std::string safetensors_header(const std::vector<HeaderEntry>& entries,
                               const std::map<std::string, std::string>& metadata,
                               const std::string& where) {
  // Written as text: as JSON values, half of the time of a large save's planning went into them.
  std::string text = "{";
  try {
    if (!metadata.empty()) {
      text += R"("__metadata__":)" + json_text(nlohmann::json(metadata));
    }
    for (const auto& [name, info, begin] : entries) {
      const std::uint64_t end =
          begin + static_cast<std::uint64_t>(info.shape.product()) * size_of(info.dtype);
      fmt::format_to(std::back_inserter(text),
                     R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                     text.size() == 1 ? "" : ",", json_text(nlohmann::json(name)),
                     safetensors_name(info.dtype), fmt::join(info.shape.span(), ","), begin, end);
    }
  } catch (const nlohmann::json::exception&) {
    fail({.thing = where,
          .wrong = "a tensor's name or the metadata is not UTF-8",
          .advice = "rename it"});
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}
}  // namespace checkpoint_detail

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::map<std::string, TensorInfo>& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  std::vector<const std::pair<const std::string, TensorInfo>*> order;
  order.reserve(tensors.size());
  for (const auto& entry : tensors) {
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const auto* x, const auto* y) {
    const std::size_t x_size = size_of(x->second.dtype);
    const std::size_t y_size = size_of(y->second.dtype);
    return x_size != y_size ? x_size > y_size : x->first < y->first;
  });
  std::vector<checkpoint_detail::HeaderEntry> entries;
  std::uint64_t at = 0;
  for (const auto* entry : order) {
    const auto& [name, info] = *entry;
    entries.push_back({name, info, at});
    at += static_cast<std::uint64_t>(info.shape.product()) * size_of(info.dtype);
  }
  const std::string header = checkpoint_detail::safetensors_header(entries, metadata, path);
  content_ = std::make_unique<checkpoint_detail::WriterContent>(path);
  for (const checkpoint_detail::HeaderEntry& entry : entries) {
    content_->missing.emplace(entry.name, checkpoint_detail::WriterContent::Entry{
                                              entry.info, header.size() + entry.begin});
  }
  content_->bytes = header.size() + at;
  content_->file.write(0, std::as_bytes(std::span(header)));
}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const std::string& name, const Tensor& values) {
  const std::string& path = content_->file.path();
  const auto found = content_->missing.find(name);
  if (found == content_->missing.end()) {
    fail({.thing = path,
          .wrong = fmt::format("tensor '{}' was not announced, or is written twice", name)});
  }
  const TensorInfo& info = found->second.info;
  if (values.is_distributed() || values.is_meta() || values.dtype() != info.dtype ||
      !(values.shape() == info.shape)) {
    fail({.thing = path,
          .wrong = fmt::format("tensor '{}' is not the one that was announced", name),
          .expected = fmt::format("a plain {}{}", name_of(info.dtype), to_string(info.shape)),
          .got = to_string(values)});
  }
  const Tensor packed = ops::contiguous(on_host(detached(values)));
  content_->file.write(found->second.at,
                       {static_cast<const std::byte*>(packed.raw_data()),
                        static_cast<std::size_t>(packed.numel()) * size_of(info.dtype)});
  content_->missing.erase(found);
}

void SafetensorsWriter::finish() {
  for (const auto& [name, entry] : content_->missing) {
    if (entry.info.shape.product() > 0) {
      fail({.thing = content_->file.path(),
            .wrong = fmt::format("tensor '{}' was announced and not written", name)});
    }
  }
  content_->file.finish();
}

std::uint64_t SafetensorsWriter::file_bytes() const { return content_->bytes; }

}  // namespace tessera
