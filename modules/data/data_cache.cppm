module tessera.data:data_cache;

import tessera.base;

namespace tessera::data {

/// The folder of the cache of data: blocks of compressed files, indexes. What no run has used for
/// 30 days is removed. CacheError; Error (input): see cache_folder.
std::filesystem::path data_cache();

/// Marks a file of the cache as used, and once in a while removes old ones.
void use_kept_file(const std::filesystem::path& file);
void remove_old_files(const std::filesystem::path& folder);

}  // namespace tessera::data
