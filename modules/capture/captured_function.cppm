export module tessera.capture:captured_function;

import tessera.base;
import tessera.program;
import :recording;

export namespace tessera {

/// How the calls of a captured function were taken; for Training, a call is a step.
struct ReplayCounts {
  std::int64_t eager = 0;
  std::int64_t recorded = 0;
  std::int64_t replayed = 0;
  std::int64_t verified = 0;  // of the replayed ones: taken as they are written too, and compared
  std::int64_t captured = 0;  // programs
  std::int64_t left = 0;      // updates that were left to the next step, or to finish_updates()
  std::string not_left = {};  // why the last program cannot leave its update; empty: it can
  std::int64_t evicted = 0;   // programs that were dropped for newer ones
  /// Replays that a guard has ended, before they changed anything; such a step counts again as what
  /// it was taken as then.
  std::int64_t given_up = 0;
  /// Why programs were captured, and how many for each reason; few texts are kept, and "others"
  /// has the rest.
  std::map<std::string, std::int64_t> reasons = {};
  /// Why the last eager step was not replayed; empty: before the recording.
  std::string refusal = {};
};

/// "6 replayed, 2 recorded, 2 others; 2 programs: the first (1), guard 'stage' is 2, was 1 (1)".
std::string to_string(const ReplayCounts& counts);

/// A function that is captured: a call of a kind is taken as it is, the next one is recorded, and
/// later ones are replayed by the program that was made of it. It selects the program of a call,
/// keeps the few that were used last, and counts; it knows nothing of what the function computes.
/// One thread uses it.
class CapturedFunction {
 public:
  /// A program, with what its owner keeps beside it.
  class Entry {
   public:
    Entry() = default;
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    virtual ~Entry();
    virtual const Program& program() const = 0;
    /// Drops what a replay has computed, after an error.
    virtual void abandon() noexcept = 0;
    /// Gives back the memory that is kept between calls.
    virtual void release_memory() noexcept = 0;
  };
  using Make = std::function<std::unique_ptr<Entry>(Program program)>;

  /// Questions that one call asks and answers.
  struct Call {
    /// Why the entry's program is none of such calls; "": it is.
    std::function<std::string(const Entry& entry)> misfit = {};
    /// Equal for calls that one program can be right for.
    std::function<std::string()> kind = {};
    /// Replays it. A guard that fails (GuardFailure) has changed nothing.
    std::function<void(Entry& entry)> replay = {};
    /// It will not be replayed, because there is no program of it: `why`. May refuse that.
    std::function<void(const std::string& why)> before_taking = {};
    /// Takes it. Returns what kind() is now, where taking it has shown that; "": as before.
    std::function<std::string()> take = {};
    /// Takes it under a recorder; nothing where it has no program (it was skipped).
    std::function<std::optional<Recording>()> record = {};
    Make make = {};
    /// Why it can be neither replayed nor recorded; "": it can.
    std::string refused = {};
  };

  /// `before_switch`: called before another program than the last one is used or made.
  explicit CapturedFunction(std::function<void()> before_switch);
  ~CapturedFunction();
  CapturedFunction(const CapturedFunction&) = delete;
  CapturedFunction& operator=(const CapturedFunction&) = delete;

  /// Errors: those of the call; two recordings that are compared differ (see program_of).
  void call(const Call& call);
  /// Adds a program that was captured in another way. `reason`: see ReplayCounts::reasons.
  void add(Program program, const Make& make, const std::string& reason);
  /// Makes calls until one is captured by a second recording of an equal one, which must be the
  /// same but for what follows from the variables.
  const Program& capture(const std::function<void()>& call);
  /// Whether recordings are compared in all calls: see ExecutionOptions::compares_recordings.
  void set_comparing(bool compares) { always_compares_ = compares; }
  /// Forgets everything.
  void clear();

  /// That of the last call that was replayed or recorded; null: there was none.
  Entry* last() const { return entries_.empty() ? nullptr : entries_.back().program.get(); }
  /// Gives back the memory that programs keep between calls.
  void release_memory() noexcept;
  ReplayCounts& counts() { return counts_; }
  const ReplayCounts& counts() const { return counts_; }

 private:
  struct CachedProgram {
    std::unique_ptr<Entry> program;
    std::vector<GuardValue> guards;  // those within it
  };
  /// The program of a call, which is the last of entries_ then. `known`: guards that the call has
  /// read. Null: there is none, and the counts say why the one that was used last is not.
  CachedProgram* find(const Call& call, const std::vector<GuardValue>& known);
  /// Whether it was replayed; otherwise the counts say why not, and `known` what it has read.
  bool replayed(const Call& call, std::vector<GuardValue>& known);
  void record(const Call& call, const std::string& kind);
  /// Of programs that were not used for long.
  void release_old_memory();

  std::function<void()> before_switch_;
  std::vector<CachedProgram> entries_;         // the one that was used last is the last
  std::map<std::string, std::int64_t> kinds_;  // of calls without a program: how many were taken
  bool compares_ = false;                      // in capture()
  bool always_compares_ = false;
  std::map<std::string, Recording> recorded_;  // by kind: those that others are compared with
  ReplayCounts counts_;
};

}  // namespace tessera
