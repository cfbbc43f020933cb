// The hash by which stored bytes are recognised: XXH3-128. It finds damage and mix-ups, and is no
// protection from somebody who wants two contents to have one hash.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tessera {

/// The hash of bytes that arrive in pieces; how they are cut does not matter.
class ContentHash {
 public:
  ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;
  ~ContentHash();
  void add(std::span<const std::byte> bytes);
  /// 32 hexadecimal digits (xxHash's canonical form); more bytes may follow.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The hash of one piece.
std::string content_hash(std::span<const std::byte> bytes);

}  // namespace tessera
