module;
#include <chrono>
#include <filesystem>
#include <system_error>
module tessera.data;

import tessera.base;
import tessera.cache;
import :data_cache;

namespace tessera::data {

namespace fs = std::filesystem;

fs::path data_cache() {
  return cache_folder({.what = "data", .variable = "TESSERA_DATA_CACHE", .folder = "data"});
}

void use_kept_file(const fs::path& file) {
  constexpr auto a_day = std::chrono::hours(24);  // often enough for a limit of 30
  std::error_code ignored;
  const auto now = fs::file_time_type::clock::now();
  if (now - fs::last_write_time(file, ignored) > a_day) {
    fs::last_write_time(file, now, ignored);
  }
}

void remove_old_files(const fs::path& folder) {
  constexpr auto most = std::chrono::hours(24 * 30);
  try_side_work(SideWork::upkeep, "data cache", [&] {
    const auto now = fs::file_time_type::clock::now();
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::error_code ignored;
      if (entry.is_regular_file(ignored) && now - entry.last_write_time(ignored) > most) {
        fs::remove(entry.path(), ignored);
      }
    }
  });
}

}  // namespace tessera::data
