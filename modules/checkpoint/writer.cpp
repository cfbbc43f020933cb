module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <range/v3/view/zip.hpp>
#include <span>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.ops;
import tessera.tensor;
import :file;

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
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    header["__metadata__"] = metadata;
  }
  std::uint64_t at = 0;
  std::vector<std::uint64_t> begins;
  for (const auto* entry : order) {
    const auto& [name, info] = *entry;
    const std::uint64_t end =
        at + static_cast<std::uint64_t>(info.shape.product()) * size_of(info.dtype);
    header[name] = {{"dtype", safetensors_name(info.dtype)},
                    {"shape", std::vector<std::int64_t>(info.shape.begin(), info.shape.end())},
                    {"data_offsets", {at, end}}};
    begins.push_back(at);
    at = end;
  }
  std::string text;
  try {
    text = json_text(header);
  } catch (const nlohmann::json::exception&) {
    fail({.thing = path,
          .wrong = "a tensor's name or the metadata is not UTF-8",
          .advice = "rename it"});
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  content_ = std::make_unique<checkpoint_detail::WriterContent>(path);
  const std::uint64_t length = text.size();
  for (const auto& [entry, begin] : ranges::views::zip(order, begins)) {
    content_->missing.emplace(entry->first, checkpoint_detail::WriterContent::Entry{
                                                entry->second, sizeof length + length + begin});
  }
  content_->bytes = sizeof length + length + at;
  content_->file.write(0, std::as_bytes(std::span(&length, 1)));
  content_->file.write(sizeof length, std::as_bytes(std::span(text)));
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
