// Who connects proves that it has the run's key; checksums of what follows.
module;
#include <fmt/format.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
module tessera.machines;

import tessera.base;
import :run_key;
import :proof;
import :proof_bytes;
import :sockets;

namespace tessera::collective {

Checksum::Checksum(const RunKey::Bytes& key) {
  static_assert(sizeof(State) >= sizeof(crypto_onetimeauth_state) &&
                RunKey::size == crypto_onetimeauth_KEYBYTES && size == crypto_onetimeauth_BYTES);
  crypto_onetimeauth_init(reinterpret_cast<crypto_onetimeauth_state*>(&state_), key.data());
}

void Checksum::add(const void* data, std::size_t bytes) {
  crypto_onetimeauth_update(reinterpret_cast<crypto_onetimeauth_state*>(&state_),
                            static_cast<const unsigned char*>(data), bytes);
}

Checksum::Tag Checksum::tag() {
  Tag tag{};
  crypto_onetimeauth_final(reinterpret_cast<crypto_onetimeauth_state*>(&state_),
                           reinterpret_cast<unsigned char*>(tag.data()));
  return tag;
}

bool Checksum::is(const Tag& other) {
  const Tag own = tag();
  return sodium_memcmp(own.data(), other.data(), size) == 0;
}

Checksum ChecksumSequence::next() {
  static_assert(RunKey::size == crypto_stream_chacha20_ietf_KEYBYTES);
  std::array<unsigned char, crypto_stream_chacha20_ietf_NONCEBYTES> number{};
  std::memcpy(number.data(), &used_, sizeof(used_));
  ++used_;
  RunKey::Bytes once{};
  crypto_stream_chacha20_ietf(once.data(), once.size(), number.data(), key_.bytes().data());
  return Checksum(once);
}

ProofBytes::Hash ProofBytes::hash(std::string_view role, std::string_view purpose,
                                  const Nonces& nonces) const {
  const auto add = [](crypto_generichash_state& state, const void* data, std::size_t bytes) {
    crypto_generichash_update(&state, static_cast<const unsigned char*>(data), bytes);
  };
  crypto_generichash_state state;
  crypto_generichash_init(&state, key.bytes().data(), key.bytes().size(), Hash().size());
  for (const std::string_view text : {std::string_view("tessera proof 1"), role, purpose}) {
    const std::uint64_t length = text.size();
    add(state, &length, sizeof(length));
    add(state, text.data(), text.size());
  }
  add(state, nonces.connects.data(), nonces.connects.size());
  add(state, nonces.listens.data(), nonces.listens.size());
  Hash hash{};
  crypto_generichash_final(&state, hash.data(), hash.size());
  return hash;
}

bool ProofBytes::same(const Hash& a, const Hash& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

ProofBytes::Hash ProofBytes::fresh() {
  RunKey::random();  // the library is ready
  Hash nonce{};
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

struct Proof::Work {
  enum class Step { begins, asked, answered, done };

  Socket socket;
  ProofBytes bytes;
  std::string purpose;
  ProofBytes::Nonces nonces;
  Step step = Step::begins;
  std::string out{};  // that has not left
  std::string in{};
  State state = State::going;
  std::string why{};
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  bool in_time = true;

  void end(State how, std::string_view reason) {
    state = how;
    why = reason;
    in_time = std::chrono::steady_clock::now() - began < std::chrono::seconds(1);
    socket.close();
  }

  void append(const ProofBytes::Hash& hash) {
    out.append(reinterpret_cast<const char*>(hash.data()), hash.size());
  }

  void send() {
    while (state == State::going && !out.empty()) {
      const ssize_t sent = ::send(socket.descriptor(), out.data(), out.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        out.erase(0, static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN || errno == EINTR || errno == ENOTCONN) {
        return;
      } else {
        end(State::ended, std::strerror(errno));
      }
    }
  }

  /// The next hash that has come; nothing: it has not, or the other end has refused.
  std::optional<ProofBytes::Hash> receive() {
    ProofBytes::Hash hash{};
    std::array<char, sizeof(hash)> room{};
    const ssize_t got = recv(socket.descriptor(), room.data(), hash.size() - in.size(), 0);
    if (got > 0) {
      in.append(room.data(), static_cast<std::size_t>(got));
    } else if (got == 0 && in == ProofBytes::refused) {
      end(State::refused, ProofBytes::refused);
    } else if (got == 0) {
      end(State::ended, "the connection was closed");
    } else if (errno != EAGAIN && errno != EINTR && errno != ENOTCONN) {
      end(State::ended, std::strerror(errno));
    }
    if (in.size() < hash.size()) {
      return std::nullopt;
    }
    std::memcpy(hash.data(), in.data(), hash.size());
    in.clear();
    return hash;
  }

  void progress() {
    if (step == Step::begins) {
      nonces.connects = ProofBytes::fresh();
      out = ProofBytes::magic;
      append(nonces.connects);
      step = Step::asked;
    }
    send();
    if (state != State::going || !out.empty()) {
      return;
    }
    const std::optional<ProofBytes::Hash> hash = receive();
    if (!hash) {
      return;
    }
    if (step == Step::asked) {
      nonces.listens = *hash;
      append(bytes.hash(ProofBytes::connects, purpose, nonces));
      step = Step::answered;
      send();
    } else if (ProofBytes::same(*hash, bytes.hash(ProofBytes::listens, purpose, nonces))) {
      step = Step::done;
      state = State::proven;
    } else {
      end(State::refused, "it has not proven that it has the run's key");
    }
  }
};

Proof::Proof(Socket socket, const RunKey& key, std::string_view purpose)
    : work_(std::make_unique<Work>(Work{.socket = std::move(socket),
                                        .bytes = {key},
                                        .purpose = std::string(purpose),
                                        .nonces = {}})) {}
Proof::Proof(Proof&&) noexcept = default;
Proof& Proof::operator=(Proof&&) noexcept = default;
Proof::~Proof() = default;

Proof::State Proof::progress() {
  if (work_->state == State::going) {
    work_->progress();
  }
  return work_->state;
}

short Proof::event() const {
  return work_->step == Work::Step::begins || !work_->out.empty() ? POLLOUT : POLLIN;
}

const Socket& Proof::socket() const { return work_->socket; }

const std::string& Proof::why() const { return work_->why; }

bool Proof::has_other_key() const {
  return work_->state == State::refused && work_->step == Work::Step::answered && work_->in_time;
}

ProvenLink Proof::take() {
  require(work_->state == State::proven, "a proof is taken that is not complete");
  return work_->bytes.link(std::move(work_->socket), ProofBytes::connects, work_->purpose,
                           work_->nonces);
}

ProvenLink ProofBytes::link(Socket socket, std::string_view role, std::string_view purpose,
                            const Nonces& nonces) const {
  // Of the direction from who connects, and to it.
  ChecksumSequence from(RunKey(hash("from who connects", purpose, nonces)));
  ChecksumSequence to(RunKey(hash("to who connects", purpose, nonces)));
  const bool is_from = role == connects;
  return {std::move(socket), is_from ? from : to, is_from ? to : from};
}

std::optional<ProvenLink> connect_proven(const Endpoint& to, const RunKey& key,
                                         std::string_view purpose, double seconds,
                                         ProofFailure& failure) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  failure = {};
  Socket socket = connect_within(to, seconds, failure.why);
  if (!socket.open()) {
    return std::nullopt;
  }
  Proof proof(std::move(socket), key, purpose);
  while (proof.progress() == Proof::State::going) {
    if (std::chrono::steady_clock::now() > limit) {
      failure.why = "what listens there does not answer";
      return std::nullopt;
    }
    pollfd waiting{proof.socket().descriptor(), proof.event(), 0};
    poll(&waiting, 1, 20);
  }
  if (proof.progress() == Proof::State::proven) {
    return proof.take();
  }
  failure = {proof.why(), proof.has_other_key()};
  return std::nullopt;
}

void refuse_other_key(const Endpoint& to, const ProofFailure& failure) {
  if (failure.other_key) {
    fail_input({.thing = "launch",
                .wrong = fmt::format("this process and what listens at {} have different keys ({})",
                                     to_string(to), failure.why),
                .advice = "give all processes of the run the same TESSERA_KEY or TESSERA_KEY_FILE, "
                          "and the same version of Tessera"});
  }
}

}  // namespace tessera::collective
