module;
#include <fmt/format.h>
#include <sodium.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
module tessera.stores;

import tessera.base;
import :sha256;

namespace tessera::stores {

struct Sha256::State {
  crypto_hash_sha256_state sum{};
};

Sha256::Sha256() : state_(std::make_unique<State>()) { crypto_hash_sha256_init(&state_->sum); }
Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  crypto_hash_sha256_update(&state_->sum, reinterpret_cast<const unsigned char*>(bytes.data()),
                            bytes.size());
}

std::string Sha256::hex() {
  std::array<unsigned char, crypto_hash_sha256_BYTES> hash{};
  crypto_hash_sha256_final(&state_->sum, hash.data());
  std::string text;
  for (const unsigned char byte : hash) {
    text += fmt::format("{:02x}", byte);
  }
  return text;
}

}  // namespace tessera::stores
