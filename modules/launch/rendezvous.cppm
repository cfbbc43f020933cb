module tessera.launch:rendezvous;

import tessera.base;
import tessera.ranks;
import :external;
import :messages;

namespace tessera::collective {

/// How ranks that another program started get common memory: rank 0 makes it, listens on a Unix
/// socket without a file (an abstract address) and hands its descriptor to each rank that connects.
/// Until all have come each rank holds its connection, so that one that dies is noticed at once.
/// Nothing is left when all are killed: neither the socket nor the memory has a name in a folder.
class Rendezvous {
 public:
  Rendezvous(const ExternalRank& self, double timeout, double report_after);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// Makes (rank 0) or receives the memory. Errors before this returns are this rank's own.
  std::shared_ptr<Region> memory(std::size_t bytes);
  /// Returns when all ranks have the memory. Errors after `memory` are to be published in it.
  void wait_for_all();
  /// Rank 0: whether a rank ended before it joined; how many ranks have joined.
  bool refused() const { return refused_; }
  int joined() const;

 private:
  struct Peer {
    int socket = -1;
    int rank = -1;  // -1: has not said yet
  };

  void connect_to_first();
  /// Connects, says hello and waits for the answer. False: rank 0 went away meanwhile, or, `again`,
  /// it does not listen.
  bool ask_first(Answer& answer, int& descriptor, Patience& patience, bool again);
  void accept_peer();
  /// Whether the peer is still there.
  bool hear(Peer& peer);
  std::string missing_ranks() const;
  /// One round of a wait for these ranks. Throws after the limit.
  void look(Patience& patience, const std::function<std::string()>& missing) const;

  ExternalRank self_;
  double timeout_;
  double report_after_;
  std::shared_ptr<Region> region_;
  int socket_ = -1;  // rank 0: listens; the others: the connection to it
  std::vector<Peer> peers_;
  bool refused_ = false;
};

}  // namespace tessera::collective
