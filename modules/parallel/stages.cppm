export module tessera.parallel:stages;

import tessera.base;
import tessera.pipeline;
import tessera.mesh;
import tessera.ops;
import tessera.nn;

// A model whose pieces are divided over the ranks of a mesh axis.

export namespace tessera::parallel {

/// A model's chain of pieces (nn::LanguageModel::pieces) divided into stages, as a style says.
struct StageDivision {
  std::vector<std::size_t> begins;  // each stage's first piece, ascending; the first one's is 0
  std::vector<int> rank_of_stage;   // the coordinate on the axis
  /// What each rank computes, sends and receives in a step of so many micro-batches. Error (input):
  /// the schedule has no form for this number.
  std::function<pipeline::Schedule(int micro_batches)> schedule;
};

/// A parameter of several stages (tied weights): each has a copy, and their gradients are summed.
struct SharedParameter {
  std::string name;
  std::vector<int> stages;  // the first one owns it: it counts it in norms, and saves it
};

/// The stages of a model, as the calling rank sees them. A stage's ranks are those of one
/// coordinate on the axis, and have a mesh of their own, without the axis: plans, layouts and
/// gradients of a stage know nothing of the others.
class Stages {
 public:
  /// Errors (input), with the entry's place: the family has no pieces; stages without parameters,
  /// not in order, or on ranks that do not exist; a rank without a stage.
  Stages(nn::Module& model, const DeviceMesh& mesh, int axis, StageDivision division,
         std::string entry);

  /// That of the whole run, with the axis.
  const DeviceMesh& mesh() const { return mesh_; }
  int axis() const { return axis_; }
  int count() const { return static_cast<int>(pieces_.size()); }
  nn::PieceRange pieces(int stage) const { return pieces_[static_cast<std::size_t>(stage)]; }
  /// The coordinate on the axis of the ranks that compute a stage.
  int place_of(int stage) const { return division_.rank_of_stage[static_cast<std::size_t>(stage)]; }
  /// The calling rank's coordinate, and its stages in order.
  int place() const { return mesh_.coordinate_of(current_rank(), axis_); }
  std::vector<int> own() const;
  bool is_own(int stage) const { return place_of(stage) == place(); }
  bool is_last(int stage) const { return stage + 1 == count(); }
  /// The ranks along the axis through the calling one.
  ops::GroupArgument group() const;
  /// The mesh of the calling rank's stages: the others' axes. One axis of size 1 where the run's
  /// mesh has no other.
  DeviceMesh stage_mesh() const;
  /// The checked schedule. Error (input): see StageDivision::schedule, pipeline::check.
  const pipeline::Schedule& schedule(int micro_batches) const;
  const std::vector<SharedParameter>& shared() const { return shared_; }
  /// Whether another stage owns the parameter (see SharedParameter).
  bool is_copy(const nn::Parameter& parameter) const;
  /// Those of the calling rank's stages that compute with the parameter, where it has several.
  std::vector<int> own_users(nn::Module& model, const nn::Parameter& parameter) const;
  /// "stage 1 (model.layers.2 to lm_head)".
  std::string text(int stage) const;

  /// Puts absent modules in the places of those that the calling rank's stages do not have.
  /// Returns which modules are gone.
  std::set<const nn::Module*> cut(nn::Module& model) const;

 private:
  DeviceMesh mesh_;
  int axis_;
  StageDivision division_;
  std::string entry_;
  std::vector<std::vector<std::string>> chain_;  // the modules of each piece
  std::vector<nn::PieceRange> pieces_;           // of each stage
  std::vector<SharedParameter> shared_;
  mutable std::map<int, pipeline::Schedule> schedules_;  // by micro-batches
};

}  // namespace tessera::parallel
