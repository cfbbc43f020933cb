export module tessera.meeting:rank_links;

import tessera.base;
import tessera.machines;
import :rank_meeting;

export namespace tessera::collective {

/// Proven connections between the ranks that have met, for short messages. Each has one direction,
/// and the sender makes it with its first message; the receiver may answer. A connection that ends
/// without that the rank has said so is a rank that is lost. Nothing here waits.
class RankLinks {
 public:
  /// A message that has arrived.
  struct RankMessage {
    int from = -1;
    bool is_answer = false;
    std::string message;
  };
  /// A rank with which no messages can be exchanged any more.
  struct LostRank {
    int rank = -1;
    std::string why;
  };

  RankLinks();
  explicit RankLinks(RunRanks met);
  RankLinks(RankLinks&&) noexcept;
  RankLinks& operator=(RankLinks&&) noexcept;
  ~RankLinks();

  /// Queues a message of at most 1 MiB; connects first. A rank that is lost gets nothing.
  void send(int to, std::string_view message);
  /// Queues an answer on the connection by which this rank has sent something. False: it has ended.
  bool answer(int to, std::string_view message);
  /// Moves what can be moved. Returns what has arrived, in the order of each sender.
  std::vector<RankMessage> progress();
  /// Whether all messages to this rank have left, as far as this rank can see.
  bool flushed(int to) const;
  /// This rank is lost, for a reason that the caller has found.
  void lose(int rank, std::string_view why);
  bool is_lost(int rank) const;
  /// Ranks that are lost, each once, half a second after that was noticed: whoever started them
  /// may know more by then. One that has ended in order is not among them.
  std::vector<LostRank> newly_lost();

  /// Says on all connections that this rank ends in order.
  void end();
  /// Whether all other ends of them have said so, or are closed.
  bool all_have_ended() const;
  void close();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

}  // namespace tessera::collective
