#include "dependencies.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "elf_file.hpp"

namespace tessera::plugin {
namespace {

/// The SONAMEs of what this process has loaded: the loader takes these for a name that is needed.
std::set<std::string> loaded_names() {
  std::set<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        // Neither the program nor the kernel's own library has a path.
        const bool file = info->dlpi_name != nullptr && info->dlpi_name[0] == '/';
        for (int i = 0; file && i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) {
            continue;
          }
          std::uint64_t table = 0;
          std::optional<std::uint64_t> name;
          for (const auto* entry =
                   reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
               entry->d_tag != DT_NULL; ++entry) {
            if (entry->d_tag == DT_STRTAB) {
              table = entry->d_un.d_ptr;
            } else if (entry->d_tag == DT_SONAME) {
              name = entry->d_un.d_val;
            }
          }
          if (name && table != 0) {
            // glibc has made the address absolute, other loaders leave it relative.
            table += table < info->dlpi_addr ? info->dlpi_addr : 0;
            static_cast<std::set<std::string>*>(result)->insert(
                reinterpret_cast<const char*>(table + *name));
          }
        }
        return 0;
      },
      &names);
  return names;
}

std::vector<std::string> split(std::string_view text, std::string_view separators) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find_first_of(separators);
    parts.emplace_back(text.substr(0, end));
    if (end == text.npos) {
      return parts;
    }
    text.remove_prefix(end + 1);
  }
}

/// $ORIGIN and ${ORIGIN} replaced by the folder of the library that says so.
std::string with_origin(std::string text, const std::string& origin) {
  for (const std::string_view token : {"${ORIGIN}", "$ORIGIN"}) {
    for (std::size_t at = 0; (at = text.find(token, at)) != text.npos; at += origin.size()) {
      text.replace(at, token.size(), origin);
    }
  }
  return text;
}

/// A file's content, mapped for reading; empty when that is not possible.
class FileMapping {
 public:
  explicit FileMapping(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat status{};
    if (file >= 0 && fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
      void* memory =
          mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
      if (memory != MAP_FAILED) {
        bytes_ = {static_cast<const std::byte*>(memory), static_cast<std::size_t>(status.st_size)};
      }
    }
    if (file >= 0) {
      close(file);
    }
  }
  ~FileMapping() {
    if (!bytes_.empty()) {
      munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    }
  }
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// A library to look into, and the RPATHs of those that led to it.
struct Library {
  std::string path;
  std::vector<std::string> inherited;
};

class Search {
 public:
  explicit Search(Trust& trust) : trust_(trust), loaded_(loaded_names()) {}

  void look_into(const Library& library, std::span<const std::byte> bytes) {
    DynamicSection dynamic;
    if (std::string why = read_dynamic_section(bytes, dynamic); !why.empty()) {
      trust_.refuse(why);
      return;
    }
    const std::string origin = library.path.substr(0, library.path.rfind('/'));
    std::vector<std::string> own;  // RPATH or RUNPATH
    const auto& folders = dynamic.runpath ? dynamic.runpath : dynamic.rpath;
    if (folders && !folders->empty()) {  // the loader ignores an empty one
      for (std::string& folder : split(*folders, ":")) {
        own.push_back(with_origin(std::move(folder), origin));
      }
    }
    std::vector<std::string> first;  // searched before LD_LIBRARY_PATH, and by what is found
    if (!dynamic.runpath) {
      first = own;
      own.clear();
    }
    std::vector<std::string> inherited = first;
    inherited.insert(inherited.end(), library.inherited.begin(), library.inherited.end());
    if (!dynamic.runpath) {
      first = inherited;
    }
    for (const std::string& needed : dynamic.needed) {
      if (loaded_.contains(needed) || !names_.insert(needed).second) {
        continue;
      }
      trust_.set_subject(fmt::format("library '{}' (needed by {}): ", needed, library.path));
      const std::string found = needed.find('/') != needed.npos ? take(with_origin(needed, origin))
                                                                : find(needed, first, own);
      if (!found.empty()) {
        next_.push_back({found, inherited});
      }
    }
  }

  void follow_all() {
    while (!next_.empty()) {
      const Library library = std::move(next_.front());
      next_.pop_front();
      if (paths_.insert(library.path).second) {
        trust_.set_subject(fmt::format("library {}: ", library.path));
        look_into(library, FileMapping(library.path).bytes());
      }
    }
  }

 private:
  /// The file that is loaded for a name without a slash; "" for one of the system's.
  std::string find(const std::string& name, const std::vector<std::string>& rpath,
                   const std::vector<std::string>& runpath) {
    const auto search = [&](const std::vector<std::string>& folders) -> std::string {
      for (const std::string& folder : folders) {
        if (folder.empty() || folder.front() != '/') {
          trust_.refuse(
              fmt::format("it is searched in '{}', which depends on the working directory; "
                          "link it with a full path or $ORIGIN",
                          folder));
        } else if (folder.find('$') != folder.npos) {
          trust_.refuse(
              fmt::format("it is searched in '{}', of which only $ORIGIN is known; link it "
                          "with a full path",
                          folder));
        } else if (std::string found = find_in(folder, name); !found.empty()) {
          return found;
        }
      }
      return "";
    };
    if (std::string found = search(rpath); !found.empty()) {
      return found;
    }
    // The user chose these folders, for all programs: only what is found in them is checked.
    const char* variable = std::getenv("LD_LIBRARY_PATH");
    if (variable != nullptr && *variable != '\0') {
      for (const std::string& folder : split(variable, ":;")) {
        const std::string path = (folder.empty() ? "." : folder) + "/" + name;
        if (access(path.c_str(), F_OK) == 0) {
          return take(path);
        }
      }
    }
    return search(runpath);
  }

  /// The loader looks into these subfolders first, for the processor's own variant.
  std::string find_in(const std::string& folder, const std::string& name, int depth = 0) {
    if (!trust_.check_folder(folder)) {
      return "";
    }
    std::string found;
    for (const std::string_view part : {"glibc-hwcaps", "x86-64-v4", "x86-64-v3", "x86-64-v2",
                                        "tls", "haswell", "avx512_1", "x86_64"}) {
      const std::string below = fmt::format("{}/{}", folder, part);
      struct stat status{};
      if (depth < 4 && stat(below.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
        const std::string variant = find_in(below, name, depth + 1);
        if (found.empty()) {
          found = variant;
        }
      }
    }
    const std::string plain = take(folder + "/" + name);
    return found.empty() ? plain : found;
  }

  std::string take(const std::string& path) {
    if (path.front() != '/') {
      trust_.refuse("its path depends on the working directory; link it with a full path");
      return "";
    }
    return trust_.check_file(path) ? path : "";
  }

  Trust& trust_;
  std::set<std::string> loaded_;
  std::set<std::string> names_;  // what has been searched
  std::set<std::string> paths_;  // what has been looked into
  std::deque<Library> next_;
};

}  // namespace

void check_dependencies(const std::string& path, std::span<const std::byte> bytes, Trust& trust) {
  Search search(trust);
  search.look_into({path, {}}, bytes);
  search.follow_all();
  trust.set_subject("");
}

}  // namespace tessera::plugin
