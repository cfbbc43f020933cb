// Redistributions that are resolved once.
module tessera.dtensor:redistribution;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

namespace tessera {

/// A step of a plan with all that follows from layouts, shape and rank.
struct ResolvedStep {
  const Step* step;
  int ranks = 1;
  bool communicates = false;  // with other ranks
  std::int64_t extent = 0;    // of from_dim before the innermost cuts by the step's axes
  ShardRange mine;            // what a slice keeps, or where a pad puts the shard
  Dims shape;                 // of this rank's part after the step
  ops::GroupArgument group;   // the ranks that take part
  SpecHandle before;
  SpecHandle after;
};

/// A redistribution as one rank carries it out.
struct Redistribution {
  SpecHandle from;
  SpecHandle to;
  Dims coordinates;
  Plan plan;
  std::vector<ResolvedStep> steps;
  bool moves = false;  // some step has more than one rank, so ranks hold other data than before
};

/// Found once for two Specs of one mesh and the calling rank, while the links stay the same.
/// Bounded.
std::shared_ptr<const Redistribution> redistribution_between(const Spec& from, const Spec& to);

/// The Specs of what is redistributed, of the result and of its gradient.
struct Targets {
  SpecHandle from;
  SpecHandle to;
  SpecHandle gradient;
};
/// x's Spec in layout `to`, and the gradient's: in layout `gradient`, or as `from` with Replicate
/// instead of Partial. Bounded too.
Targets targets_of(const Spec& from, const Layout& to, const std::optional<Layout>& gradient);

/// How many entries the calling rank's caches of the two functions hold.
std::size_t redistributions_kept();

}  // namespace tessera
