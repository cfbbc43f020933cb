export module tessera.train:checkpoints;

import tessera.base;
import tessera.collective;
import tessera.checkpoint;
import :training;

export namespace tessera {

/// When and how a run saves.
struct SaveSchedule {
  std::string folder = {};  // of its checkpoints: a path or an address; empty: none are saved
  std::int64_t every = 0;   // steps; there is always one at the end. 0: only at the end
  int keep = 0;             // of the newest; 0: all
  /// Saves run in the background, except for a copy of the state. See TrainingCheckpoints::start.
  bool background = true;
  /// A save that is due while one is running is left out; otherwise the run waits for that one.
  bool skip_when_busy = false;
  /// Where the state is kept for ranks that are started again; null: nowhere. And after how many
  /// steps; also after the last one.
  MemoryStateStore* kept = nullptr;
  std::int64_t keep_every = 1;
  /// After how many steps the ranks compare what several of them hold (check_copies), before a
  /// state is kept or saved. 0: never.
  std::int64_t compare_every = 0;
};

/// Saves the checkpoints of a run, and removes old ones.
class RunCheckpoints {
 public:
  /// `meta_data`: see save_checkpoint. `say`: called with lines for people.
  RunCheckpoints(Training& training, SaveSchedule schedule,
                 std::function<std::string()> meta_data = {},
                 std::function<void(const std::string&)> say = {});

  /// Before the first step, on all ranks: where they continue from a state that was kept, saves it
  /// if ranks that died have not completed the save that was due. `last`: there are no steps left.
  void before_steps(bool last);
  /// After each step, on all ranks: keeps the state, and saves if a save is due. `last`: the run
  /// ends here; then there is a save, and it has ended when the function returns. Errors: of a
  /// save, also of one that began after an earlier step; the folder was removed, moved or replaced
  /// since the run began to use it; without a folder, the values of the last state are not finite.
  /// An old checkpoint that cannot be removed is a warning, and is tried again after the next save.
  void after_step(bool last);
  /// When the run ends with an error: waits for a save that is running, and says how it ended.
  /// Ranks may call it alone.
  void after_error();
  /// Whether the state is looked at after this step because of its number: it is compared, kept or
  /// saved.
  bool takes_state_after(std::int64_t step) const {
    return compares_after(step) || keeps_after(step) || saves_after(step);
  }
  /// Whether there is a save after this step because of its number.
  bool saves_after(std::int64_t step) const {
    return schedule_.every > 0 && step % schedule_.every == 0;
  }
  /// For how many seconds the last call of it held the run up with saving.
  double seconds() const { return seconds_; }

 private:
  /// Rank 0's: see RunPlace::check.
  void check_place();
  bool compares_after(std::int64_t step) const {
    return schedule_.compare_every > 0 && step % schedule_.compare_every == 0;
  }
  bool keeps_after(std::int64_t step) const {
    return schedule_.kept != nullptr && step % schedule_.keep_every == 0;
  }
  void keep();
  void save(bool last);
  /// Saves the state in a folder of this machine, as the place has refused one.
  void rescue(const CheckpointRefusal& why);
  /// Removes old checkpoints when one is there.
  void ended(const std::string& folder);
  void say(const std::string& text) const;

  Training& training_;
  SaveSchedule schedule_;
  std::function<std::string()> meta_data_;
  std::function<void(const std::string&)> say_;
  std::shared_ptr<RunPlace> place_;  // null: nothing is saved
  std::int64_t rescued_ = -1;        // the last step whose state was saved elsewhere
  double seconds_ = 0;
};

/// What a program does besides in the steps of a run, on every rank.
struct RunSteps {
  std::int64_t steps = 0;  // of all starts together
  /// Takes the next step. `looked_at`: what it leaves is saved or evaluated before the next one;
  /// see StepBatch::last_train_step.
  std::function<void(bool looked_at)> step = {};
  /// After each step: whether the training has gone back to an earlier one, from which it goes on.
  /// Null: it never does.
  std::function<bool()> goes_back = {};
  /// Whether step number `done` is evaluated. Null: none is.
  std::function<bool(std::int64_t done)> is_evaluated = {};
  /// After each step, before a save; all ranks have told of their waits (World::tell_waits).
  /// `stop`: the run ends before all steps are done.
  std::function<void(bool stop)> after_step = {};
};

/// Takes the steps of a run that are left, and saves. Returns whether it was interrupted: then the
/// last step is saved too. Errors: those of the functions and of saves, after
/// RunCheckpoints::after_error.
bool take_steps(collective::World& world, const Training& training, RunCheckpoints& checkpoints,
                const RunSteps& run);

}  // namespace tessera
