#include "support.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>

import tessera.base;
import tessera.collective;
import tessera.mesh;

namespace checkpoint_test {
namespace {

std::string error_of(const std::function<void()>& call, tessera::ErrorKind kind) {
  try {
    call();
  } catch (const tessera::Error& error) {
    if (error.kind() != kind) {
      throw;
    }
    return error.what();
  }
  return "";
}

}  // namespace

Folder::Folder() {
  static std::atomic<int> count{0};
  path_ = std::filesystem::temp_directory_path() /
          ("tessera-checkpoint-" + std::to_string(::getpid()) + "-" + std::to_string(++count));
  std::filesystem::create_directories(path_);
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, std::string_view bytes) const {
  const std::filesystem::path path = path_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path.string();
}

std::vector<std::string> Folder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string file_of(const std::string& header, std::size_t data) {
  const std::uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data, '\0');
}

std::string input_error(const std::function<void()>& call) {
  return error_of(call, tessera::ErrorKind::input);
}

std::string run_error(const std::function<void()>& call) {
  return error_of(call, tessera::ErrorKind::run);
}

void on_ranks(int ranks, const std::function<void(int rank)>& run) {
  tessera::collective::run_threads(ranks,
                                   [&](tessera::collective::World& world) { run(world.rank()); });
}

}  // namespace checkpoint_test
