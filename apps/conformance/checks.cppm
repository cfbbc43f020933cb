export module tessera.conformance:checks;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;

// Checks operators against what they declare: placements by brute force, effects, shapes,
// derivatives, strides, devices. No operator is known by name. Tests and `tessera plugin check` use
// it.

export namespace tessera::conformance {

/// One call on plain tensors, to be repeated on distributed ones.
struct CallSample {
  const Op* op = nullptr;
  std::string name;            // "sum/3"
  std::vector<Tensor> inputs;  // absent ones undefined
  Attributes attributes;
  std::vector<Tensor> output_gradients;  // undefined: the result takes part in no gradient
};

/// The samples that the operator takes with its floating operands in `dtype` (or, of a narrow type,
/// some of them in f32).
std::vector<CallSample> in_type(std::span<const CallSample> samples, DType dtype);

/// How far a result (or gradient) may be from the plain one, as a share of 1 + its value: what
/// rounding in the coarsest of the types does to a sum over all ranks and reduced elements.
double rounding(const CallSample& sample, const Tensor& result, std::size_t ranks);

/// How far a check goes.
struct Extent {
  std::size_t one_axis_cases = 45;  // for each sample and mesh
  std::size_t grid_cases = 8;
  std::size_t same_on_all_axes = 6;
  std::vector<int> sizes{2, 3};
  std::vector<Dims> grids{Dims{2, 2}, Dims{2, 1, 2}};
  bool both_gradient_forms = false;
  bool list_narrow = false;  // fills in Verdict::narrow, of what is right on all sizes
  int order = 1;             // of the gradients: 2 for those of gradients
  /// Moves a rank's part of an operand or a gradient to where the rank computes; none: it stays.
  std::function<Tensor(const Tensor&)> place = {};
};

/// How the operands of a call lie; absent operands have no layout.
using Layouts = std::vector<Layout>;
/// On one axis: a placement for each operand.
using Placements = std::vector<Placement>;

/// Strategies that the operator's rule has for the sample on one axis of two ranks.
Strategies strategies_of(const CallSample& sample);
/// Placements that the rule accepts, and every combination of Shard of each dim, Replicate and
/// Partial(sum): at most `most` of these (a fixed selection when there are more). And Replicate
/// with each other Partial, at most a third of `most`.
std::vector<Placements> axis_placements(const CallSample& sample, std::size_t most);
/// Layouts on a mesh of several axes: `same_on_all_axes` of `likely` that cut, each on every axis;
/// and `grid_cases` whose axes are drawn from `likely` three times in four, else from `all`; a dim
/// that several axes shard is cut in any order of them.
std::vector<Layouts> grid_layouts(const DeviceMesh& mesh, std::span<const Placements> all,
                                  std::span<const Placements> likely, const Extent& extent);
Layouts one_axis_layouts(const DeviceMesh& mesh, const CallSample& sample,
                         const Placements& placements);

/// This rank's operand of the value `whole`: its part, or a term of it where the layout is Partial.
Tensor make_operand(const Tensor& whole, const Layout& layout);

/// Results of a call: on one rank of a distributed call, or of the plain call.
struct CallResult {
  std::string error;           // empty: none
  bool refusal = false;        // the error is an Error
  std::string backward_error;  // empty: none
  /// Error of a backward that succeeds in an AllowRedistribution scope: then `gradients` are
  /// those found there.
  std::string communicating_error;
  std::string communicated;  // what a report lists of forward and backward
  std::vector<Tensor> out;
  std::vector<Tensor> written;    // the operands after the call, of operators that write them
  std::vector<Tensor> gradients;  // of the operands; undefined where there is none
};
/// `order` 2: the gradients are those of the first gradients' weighted sum.
CallResult call_plain(const CallSample& sample, int order = 1);
/// With these operands; `gradient` makes of its value what comes back to a result.
CallResult call_plain(const CallSample& sample, std::span<const Tensor> operands,
                      const std::function<Tensor(const Tensor&)>& gradient, int order = 1);

/// The gradients of the results come in as Replicate, or as they would from further operators.
enum class GradientForm { replicate, natural };
struct Case {
  const CallSample* sample;
  Layouts layouts;
  GradientForm form = GradientForm::replicate;
  int order = 1;
  std::function<Tensor(const Tensor&)> place = {};  // see Extent
};
/// Runs the cases on thread ranks: result[rank][case].
std::vector<std::vector<CallResult>> run_cases(const DeviceMesh& mesh, std::span<const Case> cases);

/// The whole value of a distributed tensor from all ranks' parts (by rank), without the library's
/// own redistribution. Errors: parts of another shape than the layout says, replicas that differ,
/// elements that nobody holds.
std::vector<double> whole_value(std::span<const Tensor> parts);

/// Under which placements of the results the plain operator, called by each of `size` ranks on its
/// parts of the operands, would be right: "Shard(0)", or "Shard(0), Partial(sum)" for two results.
/// Empty: none, or an operand is Partial. What a rule could say and does not.
std::string right_as(const CallSample& sample, const Placements& placements,
                     const CallResult& plain, int size);

/// Verdict on one case; empty when nothing is wrong. Counts refused and accepted ones.
struct Verdict {
  std::size_t accepted = 0;
  /// Accepted cases with an operand that is not Replicate on an axis of several ranks: an operator
  /// without any rule is accepted as Replicate.
  std::size_t placed = 0;
  std::size_t refused = 0;
  std::size_t excused = 0;       // accepted, and the backward needs communication
  std::set<std::string> narrow;  // placements that are refused and would be right
  std::vector<std::string> findings;
};

/// Checks the samples (of one operator) under all placements.
Verdict check_operator(std::span<const CallSample> samples, const Extent& extent);

/// Faults when tensors do not lie in order in memory, and how much was compared.
struct StrideAccount {
  std::size_t calls = 0;
  std::size_t gradients = 0;  // calls whose gradients were compared
  std::size_t refused = 0;    // operands that the operator does not take, with an Error of its own
  std::vector<std::string> findings;
};
/// The samples (of one operator) with transposed, spaced and expanded gradients of their results
/// (first and second derivatives), and with such operands where `operands_too`.
StrideAccount check_strides(std::span<const CallSample> samples, bool operands_too);

/// Compares what an operator declares besides its results with what its
/// calls do: memory, versions, addresses, repeated calls, other seeds, calls of communicators. The
/// samples are of one operator.
std::vector<std::string> check_effects(std::span<const CallSample> samples);

/// Shapes and types of the results on the meta device, compared with those of the CPU.
std::vector<std::string> check_meta(std::span<const CallSample> samples);

/// Long sums of equal values in types of 16 bits against those in f32.
struct SumAccount {
  std::size_t calls = 0;      // that were compared
  std::size_t compared = 0;   // elements
  std::size_t long_sums = 0;  // of these, that are thousands
  std::vector<std::string> findings;
};
/// The samples (of one operator) in bf16 and f16 with one extent of thousands and equal values:
/// results, written operands and gradients.
SumAccount check_sums(std::span<const CallSample> samples);

/// Compiled elements (Op::element) against kernels.
struct ElementAccount {
  std::size_t calls = 0;     // that were compiled and compared
  std::string missing = {};  // why nothing could be compiled
  std::vector<std::string> findings;
};
/// The samples are of one operator. Error: the compiler refuses its element.
ElementAccount check_elements(std::span<const CallSample> samples);

/// Tensors that a sample is differentiated by, as fresh leaves: its operands, and for second
/// and further derivatives the gradients of its results too.
std::vector<Tensor> fresh_variables(const CallSample& sample, int order);
/// The sample's results (order 0), or their derivatives with respect to the variables, where there
/// are any: those of each order are summed with weights for the next one.
std::vector<Tensor> derivatives(const CallSample& sample, const std::vector<Tensor>& variables,
                                int order);
/// Derivatives against finite differences.
struct DerivativeAccount {
  std::size_t compared = 0;  // elements
  std::size_t skipped = 0;   // elements at kinks and jumps
  std::vector<std::string> findings;
};
/// Compares the derivatives of this order with differences of those of the order before.
/// Operands are f64, or all of them f32, with a wider tolerance.
void check_derivatives(const CallSample& sample, int order, DerivativeAccount& account);

/// Results of a device against those of the CPU.
struct DeviceAccount {
  std::set<std::string> operators;
  std::size_t calls = 0;
  std::size_t gradients = 0;
  std::vector<std::string> findings;
  /// By operator: the largest difference from the CPU, as a share of the device's tolerance. 0: the
  /// same bits.
  std::map<std::string, double> deviations;
};
/// Calls the sample with these operands on the CPU and on the device: the same errors, results,
/// written operands and gradients, bit by bit, or within the tolerance that the device declares.
void compare_on_device(const CallSample& sample, const std::string& how,
                       std::span<const Tensor> operands, int order, Device device,
                       DeviceAccount& account);
/// Likewise against `expected`, which the CPU has made of the call before.
void compare_with(const CallResult& expected, const CallSample& sample, const std::string& how,
                  std::span<const Tensor> operands, int order, Device device,
                  DeviceAccount& account);

}  // namespace tessera::conformance
