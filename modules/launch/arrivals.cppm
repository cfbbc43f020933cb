// Launchers that come to that of machine 0: at the start, and in the place of lost ones.
module tessera.launch:arrivals;

import tessera.base;
import tessera.machines;
import :introduction;
import :start;

namespace tessera::collective {

/// Another launcher, and the connection to it.
struct LauncherPeer {
  explicit LauncherPeer(ProvenLink link);

  MessageStream stream;
  bool spare = false;  ///< a machine that waits for one to be lost
  int machine = -1;    ///< -1: it has not said yet, or is a spare one
  int ranks = 0;
  std::string name{};
  bool lost = false;
  int attempts = 0;  ///< that it has seen
  HeldSteps held{};  ///< when it came
  Stopwatch since{};
  double heard = 0;                     ///< the last message
  std::optional<std::string> answer{};  ///< a message that somebody waits for
};
using LauncherPeers = std::vector<std::unique_ptr<LauncherPeer>>;

/// The launchers that have come to machine 0, have proven that they have the run's key, and that it
/// has not taken yet.
class Arrivals {
 public:
  /// Listens at the host of the meeting. Error (input): see listen_at.
  Arrivals(Introduction own, const Endpoint& meet, const RunKey& key);

  /// Lets in those who have the key, without hearing them: call it several times a second.
  void admit();

  /// Takes what has come. `there`: those that machine 0 has taken already. Error (input), told to
  /// all who have come: one of them cannot take part.
  void hear(const LauncherPeers& there);
  /// From the first attempt on: only others in the place of lost ones come, and start as many ranks
  /// (`ranks`, by machine). One that cannot take part is told, and nobody else.
  void replace_only(std::vector<int> ranks);
  /// The machines that are neither among `there` nor have come.
  std::vector<int> missing(const LauncherPeers& there) const;
  /// "machines 1 and 3 of 4".
  std::string in_words(const std::vector<int>& machines) const;
  /// Those who have introduced themselves.
  std::vector<const LauncherPeer*> introduced() const;
  /// The same, by machine, taken away. Spare ones stay, and the others are sent away.
  LauncherPeers take();
  /// Gives spare machines the places of those that are missing (as `missing` says).
  void send_spares(const LauncherPeers& there);
  /// Tells all who have come, but the spare ones, that they cannot start, and sends them away.
  void refuse(const std::string& text, ErrorKind kind);
  /// The run has ended: as refuse, also of those who have not been heard yet; spare machines are
  /// told that they are not needed.
  void dismiss();

 private:
  /// Whether it is still there. Error (input): it cannot take part.
  bool hear_one(LauncherPeer& peer, const LauncherPeers& there);
  std::string objection(const Introduction& theirs, const LauncherPeers& there) const;

  Introduction own_;
  Gate gate_;
  LauncherPeers peers_;
  std::vector<int> ranks_;          // by machine; empty: there was no attempt yet
  std::map<int, Stopwatch> given_;  // places that spare machines were given, by machine
};

}  // namespace tessera::collective
