// What the ranks of one machine keep, in the memory of a second one.
module tessera.launch:second_home;

import tessera.base;
import tessera.machines;
import :start;

namespace tessera::collective {

/// How a launcher reaches the memory of the next one in an attempt.
struct HomeLink {
  int machine = 0;  ///< this one
  int machines = 1;
  std::optional<RunKey> key{};  ///< of the attempt, which all its launchers know
  Endpoint next{};              ///< where the launcher that has this one's copies listens
};

/// Fetches the state of a step, which this machine no longer has, from its second home. `go_on` is
/// called several times a second; false: the function returns false. Error (run): the second home
/// does not give it within the time limit.
bool fetch_state(StateStore& into, std::int64_t step, const HomeLink& link,
                 const std::function<bool()>& go_on);

/// While it lives, two threads keep copies up to date: one sends what the ranks here have kept to
/// the next launcher, the other one takes what the one before sends. A process that forks must not
/// have one.
class SecondHome {
 public:
  /// `listeners`: where the launcher before connects to. The options must outlive it.
  SecondHome(const LaunchOptions& options, const HomeLink& link, std::vector<Socket> listeners);
  ~SecondHome();
  SecondHome(const SecondHome&) = delete;
  SecondHome& operator=(const SecondHome&) = delete;

  /// Why there can be no copies; empty: nothing is wrong.
  std::string failure() const;

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

}  // namespace tessera::collective
