// What the plugin tests share: a folder of their own, environment variables for a while, stamps
// that lie.
#pragma once
#include <elf.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "elf_file.hpp"
#include "folder.hpp"
#include "tessera/plugin_gate.h"

using Content = std::vector<std::byte>;

/// A folder with plugins.
class PluginFolder : public tessera::testing::Folder {
 public:
  /// A copy of one of the test's plugins, under a name of its own.
  std::string copy(const std::string& plugin, const std::string& as) const {
    const std::filesystem::path to = path() / as;
    std::filesystem::copy_file(std::string(LIBRARIES "/") + plugin + ".so", to);
    return to.string();
  }
  std::string write(const Content& content, const std::string& as) const {
    const std::filesystem::path to = path() / as;
    std::ofstream(to, std::ios::binary)
        .write(reinterpret_cast<const char*>(content.data()),
               static_cast<std::streamsize>(content.size()));
    return to.string();
  }
};

/// An environment variable that gets its old value back.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    const char* old = std::getenv(name);
    had_ = old != nullptr;
    old_ = had_ ? old : "";
    setenv(name, value.c_str(), 1);
  }
  ~Setting() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
  bool had_;
  std::string old_;
};

inline Content content_of(const std::string& plugin) {
  std::ifstream stream(std::string(LIBRARIES "/") + plugin + ".so", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  Content content(text.size());
  std::memcpy(content.data(), text.data(), text.size());
  return content;
}

inline Elf64_Ehdr header_of(const Content& content) {
  Elf64_Ehdr header;
  std::memcpy(&header, content.data(), sizeof(header));
  return header;
}

/// Offset and size of the dynamic section.
inline std::pair<std::size_t, std::size_t> dynamic_place(const Content& content) {
  const Elf64_Ehdr header = header_of(content);
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, content.data() + header.e_phoff + i * sizeof(segment), sizeof(segment));
    if (segment.p_type == PT_DYNAMIC) {
      return {segment.p_offset, segment.p_filesz};
    }
  }
  throw std::runtime_error("the test's plugin has no dynamic section");
}

inline std::size_t stamp_offset(const Content& content) {
  tessera::plugin::StampPlace place;
  if (!tessera::plugin::locate_stamp(content, place).empty()) {
    throw std::runtime_error("the test's plugin has no stamp");
  }
  return place.offset;
}

/// Makes the digest right again, as an attacker would.
inline void stamp_again(Content& content, std::size_t offset) {
  const std::size_t at = offset + offsetof(tessera::plugin::GateStamp, digest);
  const tessera::plugin::Digest digest = tessera::plugin::content_digest(content, at);
  std::memcpy(content.data() + at, digest.data(), digest.size());
}

/// A plugin's content with another stamp, and the digest right.
inline Content with_stamp(Content content,
                          const std::function<void(tessera::plugin::GateStamp&)>& change) {
  const std::size_t offset = stamp_offset(content);
  tessera::plugin::GateStamp stamp;
  std::memcpy(&stamp, content.data() + offset, sizeof(stamp));
  change(stamp);
  std::memcpy(content.data() + offset, &stamp, sizeof(stamp));
  stamp_again(content, offset);
  return content;
}
