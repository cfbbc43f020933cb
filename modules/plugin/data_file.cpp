module;
#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
module tessera.plugin;

import tessera.base;

namespace tessera::plugin {
namespace {

struct DataFileFormats {
  std::mutex mutex;
  std::deque<DataFileFormat> all;  // pointers to its elements stay valid
};

DataFileFormats& formats() {
  static auto* declared = new DataFileFormats;  // never destroyed, as the host
  return *declared;
}

}  // namespace

bool declare_data_files(DataFileFormat format) {
  DataFileFormats& known = formats();
  const std::lock_guard lock(known.mutex);
  known.all.push_back(std::move(format));
  return true;
}

const DataFileFormat* data_file_format(std::string_view file) {
  DataFileFormats& known = formats();
  const std::lock_guard lock(known.mutex);
  for (const DataFileFormat& format : known.all) {
    if (file.ends_with(format.ending)) {
      return &format;
    }
  }
  return nullptr;
}

bool is_plugin_name(std::string_view file) {
  return file.ends_with(".so") || data_file_format(file) != nullptr;
}

std::string read_and_register(const DataFileFormat& format, const LibraryFile& file,
                              Registrar& registrar) {
  const std::string_view text(reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size());
  try {
    format.read(file.path, text, registrar);
  } catch (const std::exception& error) {
    return error.what();
  }
  const bool one = registrar.entries().size() == 1 && registrar.entries()[0].kind == format.kind;
  require(one, "plugin: the reader of a file of data registers one name of its kind");
  return "";
}

StampReading stamp_of(const LibraryFile& file) {
  const DataFileFormat* const format = data_file_format(file.path);
  if (format == nullptr) {
    return read_stamp(file.bytes);
  }
  Registrar registrar(file.path, file.path);
  StampReading reading;
  if (std::string why = read_and_register(*format, file, registrar); !why.empty()) {
    reading.refusals.push_back(std::move(why));
    return reading;
  }
  const Entry& entry = registrar.entries().front();
  const XXH128_hash_t digest = XXH3_128bits(file.bytes.data(), file.bytes.size());
  reading.stamp = {.name = entry.name,
                   .version = host_version(),
                   .description = "",
                   .provides = {{entry.kind, entry.name}},
                   .facts = {},
                   .digest = fmt::format("{:016x}{:016x}", digest.high64, digest.low64)};
  return reading;
}

}  // namespace tessera::plugin
