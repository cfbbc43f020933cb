export module tessera.train:stragglers;

import tessera.base;
import tessera.collective;
import tessera.parallel;

export namespace tessera {

/// A rank for which others wait.
struct Straggler {
  int rank = -1;
  double seconds = 0;  ///< by which it delays a step
};

/// The ranks that compute the same in a step, by groups: all of them, or those of each stage.
std::vector<std::vector<int>> ranks_alike(const parallel::ParallelPlan& plan);

/// Finds the ranks for which the others wait, step after step, from what each rank tells of its
/// waits (World::tell_waits). Whoever is waited for waits least itself. Steps are looked at in
/// blocks of at least `block_seconds`; in each, a rank delays the others by as much as it has
/// waited less than the median of the ranks alike. It is a straggler when the mean of the last 16
/// blocks is above `share` of the step's time by four standard errors, so neither by chance nor by
/// one long step, and until the mean is below `share`. A rank that has no ranks alike (a stage of
/// one rank) is compared with itself: how much longer its steps take, without its waits, than in
/// the least median of 16 blocks so far. Where that is 1.5 times as much as the median of the other
/// such ranks, it delays by the difference.
class Stragglers {
 public:
  static constexpr double block_seconds = 0.1;
  static constexpr std::size_t window = 16;  ///< blocks

  /// `alike`: see ranks_alike. `share`: above 0.
  Stragglers(std::vector<std::vector<int>> alike, double share);

  /// After step `step`, at the time `now` (seconds of any clock). `waits_of(rank)`: what the rank
  /// has told last; called for every rank at the end of a block only. Returns whether stragglers()
  /// is another set of ranks than it was; a change is told when two blocks agree on it.
  bool observe(double now, std::int64_t step,
               const std::function<collective::RankWaits(int)>& waits_of);

  /// The same with what the ranks of `world` have told, now; what changes is a warning. Rank 0
  /// calls it after a collective call of all ranks that follows their World::tell_waits.
  void watch(const collective::World& world, std::int64_t step);

  /// By rank. The delays are means of the last 16 blocks.
  const std::vector<Straggler>& stragglers() const { return told_; }
  /// The rank that was waited for most in the last block; none: no block is complete.
  const std::optional<Straggler>& last() const { return last_; }
  /// Seconds of a step in the last block.
  double step_seconds() const { return step_seconds_; }
  /// "the other ranks wait for rank 3, which ...", or that they no longer do. `machine_of`: see
  /// World::machine_of.
  std::string text(const std::function<std::string(int)>& machine_of) const;

 private:
  using Window = std::array<double, window>;
  struct Rank {
    int group = -1;  // of alike_; -1: it takes no part
    collective::RankWaits before;
    double waited = -1;      // seconds of a step in the last block; -1: not told
    Window delays{};         // shares of a step by which it delayed the others
    std::size_t judged = 0;  // blocks with a delay
    Window busy{};           // seconds of a step in which it did not wait
    double usual = -1;       // the least median of `busy`; -1: not known
    bool slow = false;
  };

  void begin_block(double now, std::int64_t step,
                   const std::function<collective::RankWaits(int)>& waits_of);
  void compare_alike(const std::vector<int>& ranks);
  void compare_with_before();
  /// `delay`: seconds of a step in this block.
  void judge(int rank, double delay);
  bool tell();

  std::vector<std::vector<int>> alike_;
  std::vector<int> alone_;  // ranks of groups of one
  std::vector<Rank> ranks_;
  double share_;
  double begun_ = -1;  // the block; -1: there is none
  std::int64_t first_ = 0;
  std::int64_t last_step_ = 0;
  double step_seconds_ = 0;
  std::size_t blocks_ = 0;  // complete ones before this one
  std::optional<Straggler> last_;
  std::vector<int> slow_;  // after the block before
  std::vector<Straggler> told_;
};

}  // namespace tessera
