export module tessera.stores:local_copy;

import tessera.base;
import :address;
import :opened;
import :store;

export namespace tessera::stores {

/// Where copies are kept, and how many.
struct CopyRules {
  StoreRules store = {};
  /// Empty: TESSERA_STORE_CACHE, else ~/.cache/tessera/stores.
  std::string folder = {};
  /// Bytes of all copies: those that were used longest ago, and by nobody now, are removed for new
  /// ones. 0: TESSERA_STORE_CACHE_GIB says it; where that is not set, until the disk is full.
  std::uint64_t most = 0;
  /// Files of a folder that are fetched at the same time.
  std::size_t at_once = 4;
  /// Leaves out objects of a folder that the caller does not need. Empty: all are fetched.
  std::function<void(std::vector<ListedObject>& objects)> choose = {};
};

/// A copy on this machine of what an address names. As long as an object or a copy of it is there,
/// in this process or one that was forked from it, nobody removes the files.
class LocalCopy {
 public:
  /// A file, or a folder with the names that the objects have below the address.
  const std::string& path() const { return path_; }
  const Address& address() const { return address_; }
  /// 32 hexadecimal digits that follow from the address, and the names, sizes and versions (hashes,
  /// ETags) of the objects: equal as long as nothing changes in the store.
  const std::string& content() const { return content_; }
  /// Bytes that came from the store for it, now.
  std::uint64_t fetched() const { return fetched_; }

 private:
  friend LocalCopy fetch(const Address& address, const CopyRules& rules);
  class Use;
  LocalCopy(Address address) : address_(std::move(address)) {}

  Address address_;
  std::string path_;
  std::string content_;
  std::uint64_t fetched_ = 0;
  std::shared_ptr<const Use> use_;
};

/// Copies what an address names: an object, or the objects below it; where its last parts have a
/// '*' or '?' (which does not go over '/'), those that match. What is there already is not fetched
/// again, and what was begun by a process that was killed is continued. Of several processes that
/// need it, one fetches, and the others wait. Each file has the size and the hashes that the store
/// says before it gets its name. Errors: StoreError, also no_space for this machine's disk and for
/// `most`; CacheError (of tessera.cache) where there is no folder for copies.
LocalCopy fetch(const Address& address, const CopyRules& rules = {});

}  // namespace tessera::stores
