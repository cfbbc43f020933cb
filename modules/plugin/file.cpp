module;
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tessera/descriptor.hpp>
#include <tessera/limits.hpp>
#include <vector>

#include "dependencies.hpp"
#include "elf_file.hpp"
#include "trust.hpp"
module tessera.plugin;

namespace tessera::plugin {
namespace {

constexpr std::uint64_t largest_library = std::uint64_t{2} << 30;

FileIdentity identity_from(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
}

bool read_all(int descriptor, std::vector<std::byte>& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(descriptor, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return false;
    }
    done += static_cast<std::size_t>(got);
  }
  return true;
}

std::string absolute(const std::string& path) {
  char folder[PATH_MAX];
  return path.front() == '/' || getcwd(folder, sizeof(folder)) == nullptr
             ? path
             : fmt::format("{}/{}", folder, path);
}

}  // namespace

LibraryFile read_library_file(const std::string& path) {
  LibraryFile file;
  file.path = path;
  const auto refuse = [&](std::string why) {
    file.refusals.push_back(std::move(why));
    return file;
  };
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) {
    return refuse(fmt::format("cannot be found: {}", reason_of(errno)));
  }
  file.path = resolved;
  // O_NONBLOCK: a pipe in a plugin's place must not block; O_NOFOLLOW: links are resolved.
  const Descriptor opened(open(resolved, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status{};
  if (!opened.is_open() || fstat(opened.value(), &status) != 0) {
    return refuse(fmt::format("cannot be opened: {}", reason_of(errno)));
  }
  if (!S_ISREG(status.st_mode)) {
    return refuse("is not a plain file");
  }
  Trust trust;
  trust.check_file(absolute(path));
  file.identity = identity_from(status);
  if (file.identity.size > largest_library) {
    return refuse(fmt::format("is larger than {} bytes", largest_library));
  }
  file.bytes.resize(file.identity.size);
  if (!read_all(opened.value(), file.bytes)) {
    return refuse("changed while it was read");
  }
  DynamicSection dynamic;  // what is not a library is refused with its stamp
  if (read_dynamic_section(file.bytes, dynamic).empty()) {
    check_dependencies(file.path, file.bytes, trust);
  }
  file.refusals = trust.refusals();
  return file;
}

FileIdentity identity_of(const std::string& path) {
  struct stat status{};
  return stat(path.c_str(), &status) == 0 ? identity_from(status) : FileIdentity{};
}

}  // namespace tessera::plugin
