export module tessera.placement:redistribution_plan;

import tessera.base;
import tessera.mesh;
import :kind;
import :layout;
import :local;

export namespace tessera {

/// Work of a step along its one mesh axis, of k ranks. "Chunk c" is the part that the rank with
/// coordinate c gets: ceil(n / k) long, trailing ones short or empty.
enum class StepKind : std::uint8_t {
  slice,           // Replicate -> Shard(to_dim): keep the own chunk; local
  all_gather,      // Shard(from_dim) -> Replicate: join all chunks along from_dim
  all_reduce,      // Partial(op) -> Replicate
  reduce_scatter,  // Partial(op) -> Shard(to_dim): reduce, keep the own chunk of to_dim
  all_to_all,      // Shard(from_dim) -> Shard(to_dim): send chunk c of to_dim to rank c, join along
                   // from_dim
  keep_first,      // Replicate -> Partial(sum, product or norm): coordinate 0 keeps its values,
                   // the others hold terms of the operation's identity, 0 or 1; local
  relabel,         // the rank's data stays as it is: Replicate -> Partial(avg, max or min), and
                   // every change along an axis of one rank
  pad,             // Shard(from_dim) -> Partial(sum): the own chunk, zeros around it; local
  exchange,        // shards and replicas of several axes -> others: every rank gets exactly the
                   // boxes that it lacks, each from one rank that holds it
};

/// "slice", "all_gather", ...
std::string_view name_of(StepKind kind);
inline constexpr bool communicates(StepKind kind) {
  return (kind >= StepKind::all_gather && kind <= StepKind::all_to_all) ||
         kind == StepKind::exchange;
}

/// One change of the placements of one mesh axis, or of several axes at once. A gathered or
/// exchanged shard is the innermost cut of its dim (axes of one rank aside), a new shard is applied
/// last, so both cut the local tensor. Over several axes a step is one collective of their
/// flattened group, row-major in the order of `axes`: outermost cut first; it is planned only where
/// the cuts are even, so that cutting by all axes in turn is cutting by the flattened one.
struct Step {
  StepKind kind;
  InlineVector<int, 4> axes;    // one, or those that the step merges
  int from_dim = -1;            // the dim sharded before, or -1
  int to_dim = -1;              // the dim sharded after, or -1
  ReduceOp op = ReduceOp::sum;  // of the Partial before or after
  Layout before;
  Layout after;
  std::int64_t bytes = 0;  // that the rank which receives most receives; 0 for local steps
  double cost = 0;         // seconds, by the axes' links
};

/// How many ranks take part in a step: the product of its axes' sizes.
int rank_count(const Step& step);
/// Order of a step from or to a norm's Partial. What is reduced are the values' powers of it,
/// in f64, and their root is the result. 0 for all other steps.
double norm_order(const Step& step);
/// The names of a step's axes, "shard" or "replicate+shard".
std::string axis_names(const Step& step);

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

/// The cheapest plan by the links of the axes; an axis whose placement stays and that blocks no
/// other axis is not touched. Steps of one kind over several axes become one where that is
/// cheaper. The same on every rank. The last plans are cached; the reference stays valid for the
/// next 255 calls of this thread. Partials are reduced by increasing axis unless their operations
/// commute (equal ones, and sum with avg); Partial to Partial of another operation goes through
/// Replicate. Errors (input): the layouts are of different meshes, or shard a dim that the tensor
/// lacks; `to` has a norm's Partial on an axis where `from` does not: a norm cannot be below 0.
const Plan& plan_redistribute(const Layout& from, const Layout& to, const Dims& shape,
                              std::size_t element_size);

/// The plan as text: a line for each step with its axis, placements, bytes and cost, then the sum.
std::string explain(const Plan& plan);
/// Explains a plan that is looked up, or made, as plan_redistribute does.
std::string explain(const Layout& from, const Layout& to, const Dims& shape,
                    std::size_t element_size);

/// A box of a tensor, in global indices, that one rank sends to another (or to itself: it stays).
struct Transfer {
  int source = 0;       // global rank
  int destination = 0;  // global rank
  LocalPart box;
};

/// The boxes to send so that `destinations` hold their parts in layout `to` of the tensor that
/// `sources` hold in layout `from`: each destination gets each element once, from itself where it
/// has it, else from one of the ranks that have it, in turn. Empty boxes are left out. By
/// destination, then in the order of the source boxes; the same on every rank. The layouts may be
/// of different meshes; both must be without Partial among the ranks named.
std::vector<Transfer> transfers(const Layout& from, std::span<const int> sources, const Layout& to,
                                std::span<const int> destinations, const Dims& shape);
/// Transfers between all ranks of two layouts' meshes. Error: either layout has a Partial.
std::vector<Transfer> transfers(const Layout& from, const Layout& to, const Dims& shape);

}  // namespace tessera

namespace tessera::plan_detail {

/// Fills a step's cost, and its bytes unless it is an exchange: those that a rank receives in a
/// ring (all-gather, reduce-scatter, all-reduce) or directly (all-to-all). Sizes are the largest of
/// any rank, so that all ranks agree.
void price(Step& step, const Dims& shape, std::int64_t element_size);

/// The search of plan_redistribute; the layouts fit each other and the shape.
std::vector<Step> cheapest_steps(const Layout& from, const Layout& to, const Dims& shape,
                                 std::size_t element_size);

}  // namespace tessera::plan_detail
