module tessera.stores:object_hash;

import tessera.base;
import :store;

namespace tessera::stores {

/// The hashes that a store has of an object, of bytes that arrive in pieces.
class ObjectHash {
 public:
  explicit ObjectHash(const ObjectFacts& facts);
  ObjectHash(const ObjectHash&) = delete;
  ObjectHash& operator=(const ObjectHash&) = delete;
  ~ObjectHash();
  void add(std::span<const std::byte> bytes);
  /// Why what was added is not the object, in a few words; empty: nothing speaks against it.
  /// Nothing may be added then.
  std::string wrong();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::stores
