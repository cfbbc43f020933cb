export module tessera.train:training_checkpoints;

import tessera.base;
import tessera.checkpoint;
import tessera.optim;
import :captured_steps;

namespace tessera {
class EagerSteps;
}

export namespace tessera {

/// What a checkpoint says of a run besides its tensors.
struct TrainingProgress {
  std::int64_t step = 0;     // steps that are done
  std::int64_t tokens = 0;   // of these steps
  std::int64_t skipped = 0;  // of these steps
  std::map<std::string, RandomStream> streams = {};
};
/// Error (input) that names the scalar: it is absent, of a wrong type or out of range.
TrainingProgress read_training_progress(const TensorSource& reader);

/// One of TrainingCheckpoints::texts in a checkpoint; empty: it has none of this name.
std::string stored_text(const TensorSource& reader, const std::string& name);

/// The tensors and counts of a model and its optimizer, as a checkpoint has them: "model.NAME" of
/// parameters and saved buffers, "optimizer.STATE.NAME". They are the live ones.
StateDict training_state(nn::Module& model, const optim::Optimizer& optimizer);

/// The state of a training that is saved and loaded, Training::checkpoints(). RunCheckpoints
/// decides when.
class TrainingCheckpoints {
 public:
  TrainingCheckpoints(EagerSteps& steps, CapturedSteps& captured)
      : steps_(steps), captured_(captured) {}

  /// The model's values were filled from this base: what is saved leaves out its tensors, which
  /// training does not change, and names it; a checkpoint that does so is loaded only where the
  /// base has its hash. Before anything is loaded, and the same on all ranks. Without tensors,
  /// everything is saved.
  void set_base(std::shared_ptr<const CheckpointBase> base) { base_ = std::move(base); }
  /// Texts of whoever trains that are part of the state, by their names. After a load they are
  /// those that were loaded.
  std::map<std::string, std::string>& texts() { return texts_; }
  /// The part of `state` that is saved.
  StateDict saved_state();

  /// Everything that the next step depends on: parameters, optimizer, the number of steps, random
  /// streams. The tensors are the live ones: see CapturedSteps::finish_updates.
  StateDict state();
  /// Saves the state (see save_checkpoint). Errors name the last checkpoint, which stays: values
  /// that are not finite, a full disk.
  void save(const std::string& folder, const std::string& meta_data = "{}",
            const SaveOptions& options = {});
  /// The same in the background: returns when the state was copied (see CheckpointSaver::start).
  /// Errors of it are thrown by the next two, which return the folder when it was saved.
  void start(const std::string& folder, const std::string& meta_data = "{}",
             const SaveOptions& options = {});
  /// Nothing where no save has ended since; never blocks, and ranks may call it alone.
  std::optional<std::string> finished();
  std::optional<std::string> wait();
  /// Whether a save is running on any rank; the same on all of them.
  bool saving_anywhere() const { return saver_.saving_anywhere(); }
  /// Restores the state, whatever the mesh and the layout that it was saved from: the next step is
  /// the one that would have followed. All ranks call it, after an error of a step too: it waits
  /// until none reads the parameters for that step. Tensors of the base that are stored with other
  /// values are no longer left out by the saves that follow. Errors (input): another model, another
  /// base, damage.
  void load(const std::string& folder);
  /// The same from an opened checkpoint, or from memory. `last`: the last checkpoint of the run,
  /// for the texts of errors; empty: there is none.
  void load(const TensorSource& reader, const std::string& last);
  /// Keeps the state in memory that outlives this rank (see MemoryStateStore::keep).
  void keep(MemoryStateStore& in);
  /// Loads the newest checkpoint among FOLDER/step-N; false where there is none.
  bool resume(const std::string& folder);
  /// Error: a parameter or the optimizer's state has values that are NaN or infinite on this rank.
  void check_finite();
  /// "the last good checkpoint is ...", for the end of an error's text. Waits for a save that is
  /// running: it may be that one. Ranks may call it alone.
  std::string last();

 private:
  /// With the copies of shared parameters (see parallel::Stages::is_copy).
  StateDict live_state() const;
  /// Errors of saving, with the last checkpoint in their advice.
  void saving(const std::function<void()>& act);
  ErrorFields with_last(const Error& error);
  std::optional<std::string> saved(std::optional<std::string> folder);
  /// With the base of this training, where the caller names none.
  SaveOptions with_base(SaveOptions options) const;
  /// Whether the base's tensors have, on all ranks, the values that are stored of them.
  bool is_still_base(const TensorSource& reader, const StateDict& all) const;

  EagerSteps& steps_;
  CapturedSteps& captured_;
  std::string last_;  // saved or loaded; empty: none
  CheckpointSaver saver_;
  std::shared_ptr<const CheckpointBase> base_;  // null: there is none
  std::map<std::string, std::string> texts_;
  std::optional<std::string> ended_save_;  // that an error's text has waited for
};

}  // namespace tessera
