// Zip archives of entries that are not compressed, taken apart and put together by a test.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "sealed_zip.hpp"

namespace tessera::testing {

/// The bytes of entries by their names.
using ZipTexts = std::map<std::string, std::string>;

/// The entries of an archive as PyTorch writes it, without 64-bit sizes.
inline ZipTexts unzipped(const std::string& bytes) {
  ZipTexts texts;
  std::size_t at = zip_number(bytes, bytes.rfind("PK\x05\x06") + 16, 4);
  while (bytes.compare(at, 4, "PK\x01\x02") == 0) {
    const std::size_t header = zip_number(bytes, at + 42, 4);
    const std::size_t data =
        header + 30 + zip_number(bytes, header + 26, 2) + zip_number(bytes, header + 28, 2);
    const std::size_t name = zip_number(bytes, at + 28, 2);
    texts[bytes.substr(at + 46, name)] = bytes.substr(data, zip_number(bytes, at + 20, 4));
    at += 46 + name + zip_number(bytes, at + 30, 2) + zip_number(bytes, at + 32, 2);
  }
  return texts;
}

/// An archive of them. `last_twice`: the directory has its last entry twice. `deflated`: it says
/// that the first entry is compressed.
inline std::string zipped(const ZipTexts& texts, bool last_twice = false, bool deflated = false) {
  const auto number = [](std::uint64_t value, int count) {
    std::string bytes;
    for (int i = 0; i < count; ++i) {
      bytes += static_cast<char>(value >> (8 * i));
    }
    return bytes;
  };
  std::string archive;
  std::string directory;
  std::uint64_t count = 0;
  for (const auto& [name, text] : texts) {
    const std::string method = number(deflated && count == 0 ? 8 : 0, 2);
    const std::string sizes = number(text.size(), 4) + number(text.size(), 4);
    const std::string common = number(20, 2) + number(0, 2) + method + number(0, 4) + number(0, 4) +
                               sizes + number(name.size(), 2) + number(0, 2);
    const std::string entry = "PK\x01\x02" + number(20, 2) + common + std::string(10, '\0') +
                              number(archive.size(), 4) + name;
    ++count;
    directory += entry;
    if (last_twice && count == texts.size()) {
      directory += entry;
      ++count;
    }
    archive += "PK\x03\x04" + common + name + text;
  }
  const std::size_t begin = archive.size();
  archive += directory + "PK\x05\x06" + number(0, 4) + number(count, 2) + number(count, 2) +
             number(directory.size(), 4) + number(begin, 4) + number(0, 2);
  seal_zip(archive);
  return archive;
}

}  // namespace tessera::testing
