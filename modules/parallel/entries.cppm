// The entries of a plan with what they mean for a model and a mesh; their order and conflicts.
module tessera.parallel:entries;

import tessera.base;
import tessera.mesh;
import tessera.nn;
import :style;
import :parallel_plan;

namespace tessera::parallel {

/// An entry, and what it means for this model and mesh.
struct ResolvedEntry {
  const StyleEntry& entry;
  std::vector<int> axes;
  StyleFacts facts;
  std::vector<nn::Module*> modules;  // inner ones first

  bool on_axis(int axis) const;
};

/// The style with its location: "run.toml:31: FSDP".
std::string place_of(const StyleEntry& entry);
/// "module 'head'", "the whole model".
std::string in_words(const nn::Module& module);
/// "'shard'", "'replicate' and 'shard'".
std::string axes_in_words(const StyleEntry& entry);

/// Axes and modules of an entry. Errors (input): see ParallelPlan.
ResolvedEntry resolve(const StyleEntry& entry, StyleFacts facts, nn::Module& model,
                      const DeviceMesh& mesh);
/// Holds what the styles declare against each other: order, shared axes, shared parameters. Errors
/// (input) name both entries.
void check_together(const std::vector<ResolvedEntry>& entries, const DeviceMesh& mesh);

}  // namespace tessera::parallel
