// What the two ends of a proof send: who connects its magic and a random number; who listens a
// random number; who connects its hash; who listens its hash.
module tessera.machines:proof_bytes;

import tessera.base;
import :run_key;
import :proof;
import :sockets;

namespace tessera::collective {

struct ProofBytes {
  using Hash = RunKey::Bytes;
  struct Nonces {
    Hash connects{};
    Hash listens{};
  };
  static constexpr std::string_view magic = "tessera+";
  static constexpr std::string_view refused = "refused";
  /// Roles: a hash of one is never that of the other.
  static constexpr std::string_view connects = "connects";
  static constexpr std::string_view listens = "listens";

  RunKey key;

  Hash hash(std::string_view role, std::string_view purpose, const Nonces& nonces) const;
  static bool same(const Hash& a, const Hash& b);
  static Hash fresh();
  /// The connection of such a role, once both hashes were right.
  ProvenLink link(Socket socket, std::string_view role, std::string_view purpose,
                  const Nonces& nonces) const;
};

}  // namespace tessera::collective
