module;
#include <cerrno>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
module tessera.base;

namespace tessera {

std::string write_file(const std::string& path, std::string_view bytes) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  return file ? std::string() : std::generic_category().message(errno != 0 ? errno : EIO);
}

}  // namespace tessera
