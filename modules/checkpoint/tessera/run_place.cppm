export module tessera.checkpoint:run_place;

import tessera.base;
import :save;

export namespace tessera {

/// The place of a run's checkpoints: a folder of this machine, or one in a store. Functions are
/// rank 0's, unless they say otherwise.
class RunPlace {
 public:
  virtual ~RunPlace();
  /// The place that a config names: a path, or an address ("s3://bucket/run"). For any rank.
  /// Errors (input): an address of a wrong form; no plugin serves its scheme, or it can only be
  /// read.
  static std::unique_ptr<RunPlace> named(const std::string& text);

  /// Before a run starts: whether its first save can succeed, as far as can be known; what is made
  /// for that is removed again. Error (input): it cannot.
  virtual void check_can_save() const = 0;
  /// While the run goes on. Error: the place is no longer the one that the run began to use.
  virtual void check() = 0;
  /// What ties a save to this place.
  virtual SaveOptions save_options() const = 0;
  /// Removes all but the `keep` newest checkpoints: see prune_checkpoints.
  virtual void prune(int keep) = 0;
  /// A folder of this machine for a state that the place does not take; empty: such a failure ends
  /// the run. The same on all ranks.
  virtual std::string rescue_folder() const = 0;
};

}  // namespace tessera
