// unpack FILE.zst: makes FILE of it, on a machine with a GPU that has nothing. It links no library,
// and a process that is killed leaves nothing that looks complete.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

int fail(const std::string& file, const char* why) {
  std::fprintf(stderr, "%s: %s\n", file.c_str(), why);
  return 1;
}

bool write_all(int file, const char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t written = ::write(file, bytes, count);
    if (written < 0 && errno != EINTR) {
      return false;
    }
    if (written > 0) {
      bytes += written;
      count -= static_cast<std::size_t>(written);
    }
  }
  return true;
}

int unpack(const std::string& packed) {
  const std::string file = packed.substr(0, packed.size() - std::strlen(".zst"));
  const std::string part = file + ".part." + std::to_string(::getpid());
  const int from = ::open(packed.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status{};
  if (from < 0 || ::fstat(from, &status) != 0) {
    return fail(packed, std::strerror(errno));
  }
  const int to = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (to < 0) {
    return fail(part, std::strerror(errno));
  }
  ZSTD_DCtx* const context = ::ZSTD_createDCtx();
  std::vector<char> in(::ZSTD_DStreamInSize());
  std::vector<char> out(::ZSTD_DStreamOutSize());
  const char* wrong = context == nullptr ? "no memory" : nullptr;
  std::size_t rest = 1;  // of the frame; 0: it has ended
  while (wrong == nullptr) {
    const ssize_t count = ::read(from, in.data(), in.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      wrong = count < 0 ? std::strerror(errno) : rest != 0 ? "the file ends too early" : nullptr;
      break;
    }
    ZSTD_inBuffer given{in.data(), static_cast<std::size_t>(count), 0};
    while (wrong == nullptr && given.pos < given.size) {
      ZSTD_outBuffer made{out.data(), out.size(), 0};
      rest = ::ZSTD_decompressStream(context, &made, &given);
      if (::ZSTD_isError(rest) != 0) {
        wrong = ::ZSTD_getErrorName(rest);
      } else if (!write_all(to, out.data(), made.pos)) {
        wrong = std::strerror(errno);
      }
    }
  }
  ::ZSTD_freeDCtx(context);
  if (wrong == nullptr && (::fchmod(to, status.st_mode & 0777U) != 0 || ::close(to) != 0 ||
                           std::rename(part.c_str(), file.c_str()) != 0)) {
    wrong = std::strerror(errno);
  }
  if (wrong != nullptr) {
    ::unlink(part.c_str());
    return fail(packed, wrong);
  }
  ::unlink(packed.c_str());  // another start may have done all of this
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string packed = count == 2 ? arguments[1] : "";
  if (!packed.ends_with(".zst")) {
    return fail("unpack", "usage: unpack FILE.zst");
  }
  return unpack(packed);
}
