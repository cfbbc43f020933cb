module;
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
export module tessera.placement:plan;

import tessera.base;
import tessera.mesh;
import :kind;
import :layout;

export namespace tessera {

/// What a step does along its one mesh axis, of k ranks. "Chunk c" is the part that the rank with
/// coordinate c gets: ceil(n / k) long, trailing ones short or empty.
enum class StepKind : std::uint8_t {
  slice,           // Replicate -> Shard(to_dim): keep the own chunk; local
  all_gather,      // Shard(from_dim) -> Replicate: join all chunks along from_dim
  all_reduce,      // Partial(op) -> Replicate
  reduce_scatter,  // Partial(op) -> Shard(to_dim): reduce, keep the own chunk of to_dim
  all_to_all,      // Shard(from_dim) -> Shard(to_dim): send chunk c of to_dim to rank c, join along
                   // from_dim
  keep_first,      // Replicate -> Partial(sum or product): coordinate 0 keeps its values, the
                   // others hold the operation's identity, 0 or 1; local
  relabel,         // the rank's data stays as it is: Replicate -> Partial(avg, max or min), and
                   // every change along an axis of one rank
  pad,             // Shard(from_dim) -> Partial(sum): the own chunk, zeros around it; local
};

/// "slice", "all_gather", ...
std::string_view name_of(StepKind kind);
inline constexpr bool communicates(StepKind kind) {
  return kind >= StepKind::all_gather && kind <= StepKind::all_to_all;
}

/// One change of one mesh axis' placement. A gathered or exchanged shard is the innermost cut of
/// its dim (axes of one rank aside), a new shard is applied last, so both cut the local tensor.
struct Step {
  StepKind kind;
  int axis = 0;
  int from_dim = -1;            // the dim sharded before, or -1
  int to_dim = -1;              // the dim sharded after, or -1
  ReduceOp op = ReduceOp::sum;  // of the Partial before or after
  Layout before;
  Layout after;
  std::int64_t bytes = 0;  // that a rank receives, chunks padded; 0 for local steps
  double cost = 0;         // seconds, by the axis' link
};

/// The steps that bring a tensor from one layout to another, in order; none when they are equal.
struct Plan {
  Layout from;
  Layout to;
  Dims shape;
  std::size_t element_size = 0;
  std::vector<Step> steps;
  double cost = 0;  // seconds, the sum of the steps'
  /// Whether no step communicates.
  bool is_local() const;
};

/// The cheapest plan over one-axis steps; an axis whose placement stays and that is in nobody's
/// way is not touched. The same on every rank. Cached for its arguments; the
/// reference stays valid until the process ends. Partials are reduced by increasing axis unless
/// their operations commute (equal ones, and sum with avg); Partial to Partial of another
/// operation goes through Replicate.
/// Error (input): the layouts are of different meshes, or shard a dim that the tensor lacks.
const Plan& plan_redistribute(const Layout& from, const Layout& to, const Dims& shape,
                              std::size_t element_size);

/// The plan as text: a line for each step with its axis, placements, bytes and cost, then the sum.
std::string explain(const Plan& plan);

}  // namespace tessera

namespace tessera::plan_detail {

/// The search behind plan_redistribute; the layouts fit each other and the shape.
std::vector<Step> cheapest_steps(const Layout& from, const Layout& to, const Dims& shape,
                                 std::size_t element_size);

}  // namespace tessera::plan_detail
