module;
#include <fmt/format.h>
#include <sodium.h>

#include <array>
#include <boost/uuid/detail/sha1.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
module tessera.stores;

import tessera.base;
import :object_hash;

namespace tessera::stores {

struct ObjectHash::State {
  ObjectFacts facts;
  std::uint64_t size = 0;
  crypto_hash_sha256_state sha256{};
  boost::uuids::detail::sha1 git_blob;
};

ObjectHash::ObjectHash(const ObjectFacts& facts) : state_(std::make_unique<State>()) {
  state_->facts = facts;
  crypto_hash_sha256_init(&state_->sha256);
  const std::string begin = fmt::format("blob {}", facts.size);
  state_->git_blob.process_bytes(begin.c_str(), begin.size() + 1);  // with its zero byte
}
ObjectHash::~ObjectHash() = default;

void ObjectHash::add(std::span<const std::byte> bytes) {
  state_->size += bytes.size();
  if (!state_->facts.sha256.empty()) {
    crypto_hash_sha256_update(&state_->sha256, reinterpret_cast<const unsigned char*>(bytes.data()),
                              bytes.size());
  }
  if (!state_->facts.git_blob.empty()) {
    state_->git_blob.process_bytes(bytes.data(), bytes.size());
  }
}

std::string ObjectHash::wrong() {
  State& s = *state_;
  if (s.size != s.facts.size) {
    return fmt::format("it has another size than the store says (expected {}, got {})",
                       s.facts.size, s.size);
  }
  if (!s.facts.sha256.empty()) {
    std::array<unsigned char, crypto_hash_sha256_BYTES> hash{};
    crypto_hash_sha256_final(&s.sha256, hash.data());
    std::string text;
    for (const unsigned char byte : hash) {
      text += fmt::format("{:02x}", byte);
    }
    if (text != s.facts.sha256) {
      return "its bytes have another SHA-256 than the store says";
    }
  }
  if (!s.facts.git_blob.empty()) {
    boost::uuids::detail::sha1::digest_type words;
    static_assert(sizeof words[0] == 4);
    s.git_blob.get_digest(words);
    std::string text;
    for (const unsigned int word : words) {
      text += fmt::format("{:08x}", word);
    }
    if (text != s.facts.git_blob) {
      return "its bytes have another git hash than the store says";
    }
  }
  return {};
}

}  // namespace tessera::stores
