export module tessera.cache:cache_folder;

import tessera.base;

export namespace tessera {

/// The cache cannot be used; nothing is wrong with what is in it.
class CacheError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Where files of a kind are kept.
struct CachePlace {
  std::string what = {};      // "compiled kernels"
  std::string variable = {};  // of the environment, that names the folder: "TESSERA_KERNEL_CACHE"
  std::string folder = {};    // below ~/.cache/tessera where the variable names none: "kernels"
};

/// The folder, which is made where it is not there. CacheError: nothing says where it is, or it
/// cannot be made or written. Error (input): somebody besides this user and root could change it.
std::filesystem::path cache_folder(const CachePlace& place);

}  // namespace tessera
