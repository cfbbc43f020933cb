#include "tessera/secret_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tessera {
namespace {

/// Of an open file, the checks and then its bytes.
void read_checked(int file, const SecretFileRules& rules, SecretFile& out) {
  struct stat about{};
  if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
    out.wrong = "is not a regular file";
    return;
  }
  if (about.st_uid != geteuid() && !(rules.of_root && about.st_uid == 0)) {
    out.wrong = "belongs to another user";
    return;
  }
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    out.wrong = fmt::format("can be read or changed by other users (mode {:03o})",
                            about.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO));
    out.open_to_all = true;
    return;
  }
  out.bytes.resize(rules.most + 1);
  const ssize_t got = read(file, out.bytes.data(), out.bytes.size());
  out.bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  if (got < 0) {
    out.wrong = fmt::format("cannot be read ({})", std::strerror(errno));
  } else if (out.bytes.size() > rules.most) {
    out.wrong = fmt::format("is larger than {} bytes", rules.most);
    out.too_large = true;
  }
}

}  // namespace

SecretFile read_secret_file(const std::string& path, const SecretFileRules& rules) {
  SecretFile out;
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (rules.links ? 0 : O_NOFOLLOW);
  const int file = open(path.c_str(), flags);
  if (file < 0) {
    out.missing = errno == ENOENT;
    out.wrong = errno == ELOOP && !rules.links
                    ? std::string("is a link")
                    : fmt::format("cannot be read ({})", std::strerror(errno));
    return out;
  }
  read_checked(file, rules, out);
  close(file);
  return out;
}

}  // namespace tessera
