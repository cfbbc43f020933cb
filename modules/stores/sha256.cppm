module tessera.stores:sha256;

import tessera.base;

namespace tessera::stores {

/// SHA-256 of bytes that arrive in pieces.
class Sha256 {
 public:
  Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  ~Sha256();
  void add(std::span<const std::byte> bytes);
  /// 64 small hexadecimal digits of what was added; nothing may follow.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::stores
