// Launchers on several machines, which start the ranks of one run together.
module tessera.launch:launchers;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import tessera.machines;
import :start;

namespace tessera::collective {

/// Where the ranks of an attempt meet, and what makes them known to each other. They find it in
/// their environment, as the transport tcp reads it.
struct RankMeeting {
  Endpoint at;
  std::string key;
  Socket listener;  ///< of rank 0, on its machine

  /// Sets the environment of a forked rank. The listener stays open in rank 0 only.
  void enter(int rank);
};

/// How the ranks of a launcher have ended.
struct EndedRanks {
  int code = 0;
  bool from_outside = false;
  bool interrupted = false;
  std::int64_t step = -1;            ///< in which they were, at an error
  std::vector<std::int64_t> kept{};  ///< see LaunchOptions::kept
};

/// The connections of the launchers: a star around machine 0. They are kept until the run ends: a
/// launcher that ends or is silent is a machine that is lost.
class Launchers {
 public:
  /// Meets the others. Errors: see launch.
  explicit Launchers(const LaunchOptions& options);
  Launchers(const Launchers&) = delete;
  Launchers& operator=(const Launchers&) = delete;
  ~Launchers();

  bool is_first() const { return place_.machine == 0; }
  /// This machine's ranks.
  int first() const { return first_; }
  int here() const { return here_; }
  /// Its name, which no other has: "1 (beta)".
  const std::string& name() const { return names_[static_cast<std::size_t>(place_.machine)]; }

  /// Waits until all begin an attempt. Error (run): a machine is lost.
  RankMeeting begin();
  /// Call it several times a second while there are ranks: tells the others of an error here, and
  /// publishes theirs. A machine that is lost is an error.
  void serve(Control& control);
  /// Waits until all ranks of the world have ended. `again(all)` is called on machine 0, for all
  /// of them, and says whether they are started again: its answer is that of all.
  bool agree(Control& control, EndedRanks& ended,
             const std::function<bool(const EndedRanks& all)>& again);
  /// For a forked rank: the connections are its launcher's.
  void leave();

 private:
  struct Peer;
  struct Introduction;

  void listen_for_all(const std::string& own);
  void join_first(const std::string& own);
  void refuse_all(const std::string& text, ErrorKind kind);
  std::string introduce() const;
  /// Machine 0: why this one cannot take part; empty: it can.
  std::string objection(const Introduction& theirs) const;
  bool hear_introduction(Peer& peer);
  std::string missing() const;
  void set_ranks(const std::vector<int>& ranks);
  /// Moves all messages, and handles those that may come at any time; the others are kept for
  /// whoever waits for them. `control`: null between attempts.
  void move(Control* control);
  void take(Peer& from, const std::string& message, Control* control);
  void lose(Peer& peer, const std::string& why, Control* control);
  Peer* peer_of(int machine);
  void send_to_all(std::string_view message, const Peer* except = nullptr);
  [[noreturn]] void fail_lost() const;

  const LaunchOptions& options_;
  LauncherPlace place_;
  Endpoint meet_;
  double silence_;  // seconds after which a machine is lost
  int first_ = 0;
  int here_ = 0;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Peer>> peers_;  // all, or machine 0
  std::unique_ptr<Socket> listener_;
  std::unique_ptr<Stopwatch> beat_;
  double beaten_ = 0;
  bool told_ = false;   // the error of this attempt
  std::string lost_{};  // a machine, and why
};

}  // namespace tessera::collective
