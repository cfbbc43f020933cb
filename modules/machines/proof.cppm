export module tessera.machines:proof;

import tessera.base;
import :run_key;
import :sockets;

export namespace tessera::collective {

/// A keyed checksum of one text (Poly1305), with a key for this text only.
class Checksum {
 public:
  static constexpr std::size_t size = 16;  // bytes
  using Tag = std::array<std::byte, size>;

  explicit Checksum(const RunKey::Bytes& key);
  void add(const void* data, std::size_t bytes);
  /// Of all that was added; called once.
  Tag tag();
  /// Whether that is `tag`, in a time that does not depend on it; called once.
  bool is(const Tag& tag);

 private:
  struct alignas(64) State {
    std::array<std::byte, 256> bytes;
  };
  State state_;
};

/// The checksums of what one direction of a connection carries. Each has the next number in its
/// key, so that nothing can be changed, left out, repeated or moved on the way.
class ChecksumSequence {
 public:
  explicit ChecksumSequence(const RunKey& key) : key_(key) {}
  Checksum next();

 private:
  RunKey key_;
  std::uint64_t used_ = 0;
};

/// A connection whose ends have proven to each other that they have the run's key.
struct ProvenLink {
  Socket socket;
  ChecksumSequence out;
  ChecksumSequence in;
  std::size_t purpose = 0;  ///< its number among those of the gate
};

/// The end that connects proves itself, without waiting: both send a random number, and a hash of
/// the two, the purpose and who it is, with the key. Nothing else is sent or read before.
class Proof {
 public:
  enum class State { going, proven, refused, ended };

  Proof(Socket socket, const RunKey& key, std::string_view purpose);
  Proof(Proof&&) noexcept;
  Proof& operator=(Proof&&) noexcept;
  ~Proof();
  State progress();
  /// POLLIN or POLLOUT: what it waits for.
  short event() const;
  const Socket& socket() const;
  /// Why it was refused or has ended.
  const std::string& why() const;
  /// Whether nobody but one with another key would have been refused: the answer was in time.
  bool has_other_key() const;
  /// Of a proof that is complete.
  ProvenLink take();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

/// Why there is no connection.
struct ProofFailure {
  std::string why{};
  bool other_key = false;  ///< who listens there has another key, or another version of the proof
};
/// Connects and proves, for at most `seconds`. Nothing: see `failure`.
std::optional<ProvenLink> connect_proven(const Endpoint& to, const RunKey& key,
                                         std::string_view purpose, double seconds,
                                         ProofFailure& failure);
/// Error (input): it is because of another key.
void refuse_other_key(const Endpoint& to, const ProofFailure& failure);

/// Lets in those who prove that they have the key, at some listening sockets. Others are told
/// "refused" and nothing else. Of those who have not proven it yet there are at most 64, with at
/// most 128 bytes each and for two seconds; where more come, the oldest of the address that has
/// most gives way.
class Gate {
 public:
  static constexpr std::size_t most_unproven = 64;
  static constexpr double longest_proof = 2;  // seconds

  Gate();
  /// `purposes`: what connections may be for; each proves one of them.
  Gate(std::vector<Socket> listeners, const RunKey& key, std::vector<std::string> purposes);
  Gate(Gate&&) noexcept;
  Gate& operator=(Gate&&) noexcept;
  ~Gate();
  /// Hears whoever is there, without waiting, and returns those who have proven themselves. Call it
  /// when `descriptor` can be read, and several times a second.
  std::vector<ProvenLink> admit();
  /// For poll and epoll.
  int descriptor() const;
  int port() const;
  bool open() const { return static_cast<bool>(work_); }
  /// How many have not proven themselves yet.
  std::size_t unproven() const;
  void close();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace tessera::collective
