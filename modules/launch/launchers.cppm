// Launchers on several machines, which start the ranks of one run together.
module tessera.launch:launchers;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import tessera.machines;
import :arrivals;
import :introduction;
import :start;

namespace tessera::collective {

/// Where the ranks of an attempt meet, and what makes them known to each other. They find it in
/// their environment, as meet_ranks reads it.
struct RankMeeting {
  Endpoint at;
  std::optional<RunKey> key{};      ///< of the attempt
  std::vector<Socket> listeners{};  ///< of rank 0, on its machine
  std::vector<Endpoint> homes{};    ///< by machine: where its launcher takes copies of states

  /// Sets the environment of a forked rank, and its key. The listeners stay open in rank 0 only.
  void enter(int rank);
};

/// How the ranks of a launcher have ended.
struct EndedRanks {
  int code = 0;
  bool from_outside = false;
  bool interrupted = false;
  std::int64_t step = -1;  ///< in which they were, at an error
  HeldSteps held{};
  std::int64_t kept = -1;  ///< the step that all can continue from, as machine 0 says
};

/// An attempt that a launcher joins in the place of one that is lost.
struct JoinedAttempt {
  int number = 0;          ///< attempts before it
  std::int64_t kept = -1;  ///< see EndedRanks
};

/// The connections of the launchers: a star around machine 0. They are kept until the run ends: a
/// launcher that ends or is silent is a machine that is lost. With LaunchOptions::replace_seconds
/// the others wait for another one in its place; where it is machine 0, they connect to it again.
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

  /// What this launcher joins, where others have begun before it.
  const std::optional<JoinedAttempt>& joined() const { return joined_; }

  /// The addresses of this machine at which its ranks and its second home listen.
  std::vector<std::string> addresses() const { return addresses_beside(own_address_, meet_.host); }
  /// Waits until all begin an attempt. `home`: the port at which this one takes copies of states;
  /// 0: it does not. Nothing: it cannot begin, as a machine is lost (`failure`).
  std::optional<RankMeeting> begin(int home);
  /// Call it several times a second between `begin` and the first rank. False: as begin.
  bool idle();
  /// Why the attempt cannot begin.
  const std::string& failure() const { return lost_.empty() ? failed_ : lost_; }
  /// Call it several times a second while there are ranks: tells the others of an error here, and
  /// publishes theirs. A machine that is lost is an error.
  void serve(Control& control);
  /// Waits until all ranks of the world have ended. `again(all)` is called on machine 0, for all
  /// of them, and says whether they are started again: its answer is that of all. `pause` waits a
  /// few milliseconds and answers signals. Waits for other machines in the place of lost ones.
  bool agree(Control& control, EndedRanks& ended, const std::function<void()>& pause,
             const std::function<bool(const EndedRanks& all)>& again);
  /// For a forked rank: the connections are its launcher's.
  void leave();

 private:
  void listen_for_all();
  /// Returns whether machine 0 has taken this one; false: `ended` has asked to stop waiting.
  bool join_first(double limit, const std::function<bool()>& ended);
  /// What machine 0 says when all have come. Error: it refuses this one.
  void take_welcome(const std::string& answer);
  /// Whether to wait for others in the place of lost machines.
  bool may_wait(const Control& control, const EndedRanks& ended) const;
  /// After an attempt: tells machine 0 how the ranks here have ended. Returns what it decides.
  bool follow_first(Control& control, EndedRanks& ended, const std::function<void()>& pause);
  /// Machine 0, after an attempt: how the ranks of all have ended, and what each has.
  std::vector<HeldSteps> hear_ends(Control& control, EndedRanks& ended,
                                   const std::function<void()>& pause);
  /// Machine 0, after an attempt: waits for others in the place of lost machines. False: none came.
  bool replace_lost(Control& control, std::vector<HeldSteps>& held,
                    const std::function<void()>& pause);
  /// As its machine 0 is lost: waits for another one.
  bool rejoin(Control& control, EndedRanks& ended, const std::function<void()>& pause);
  void welcome(const LauncherPeers& peers);
  void set_ranks(const std::vector<int>& ranks);
  /// Moves all messages, and handles those that may come at any time; the others are kept for
  /// whoever waits for them. `control`: null between attempts.
  void move(Control* control);
  void take(LauncherPeer& from, const std::string& message, Control* control);
  void lose(LauncherPeer& peer, const std::string& why, Control* control);
  void send_to_all(std::string_view message, const LauncherPeer* except = nullptr);

  const LaunchOptions& options_;
  LauncherPlace place_;
  Endpoint meet_;
  RunKey key_;
  std::string own_address_{};  // this end of the connection to machine 0
  double silence_;             // seconds after which a machine is lost
  int first_ = 0;
  int here_ = 0;
  std::vector<std::string> names_;
  std::vector<int> ranks_;            // by machine
  LauncherPeers peers_;               // all, or machine 0
  std::optional<Arrivals> arrivals_;  // machine 0
  std::unique_ptr<Stopwatch> beat_;
  double beaten_ = 0;
  bool told_ = false;     // the error of this attempt
  bool stopped_ = false;  // somebody does not want to wait for lost machines
  int attempts_ = 0;      // that have ended
  HeldSteps held_{};      // after the last one
  std::string lost_{};    // a machine, and why
  std::string failed_{};  // what other launchers have said before ranks have started here
  std::optional<JoinedAttempt> joined_{};
};

}  // namespace tessera::collective
