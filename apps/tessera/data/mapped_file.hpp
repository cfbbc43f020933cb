// A file's bytes in memory, read by the system when they are touched.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace tessera::app {

class MappedFile {
 public:
  /// Throws Error (input) when the file is missing, cannot be read or is not a regular file.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tessera::app
