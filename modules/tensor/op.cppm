export module tessera.tensor:op;

import tessera.base;
import tessera.mesh;
import tessera.calls;
import tessera.placement;
import :arguments;
import :spec;
import :value;

export namespace tessera {

struct Op;

/// One call of an operator: what travels down the path. Absent optional operands are undefined
/// tensors.
struct Call {
  const Op& op;
  std::span<const Tensor> in;
  const Attributes& attributes;
  /// For a kernel: memory of the size that DeviceKernel::workspace said, aligned to 64, not
  /// initialised.
  std::span<std::byte> workspace = {};

  /// The operator's arguments: call.args<SoftmaxArgs>().dim.
  template <class A>
  [[gnu::always_inline]] inline A args() const {
    return arguments_as<A>(attributes);
  }
};

/// Shape and type of a result.
struct ResultShape {
  Dims shape;
  DType dtype = DType::f32;
};
using ResultShapes = InlineVector<ResultShape, 2>;

/// Facts that a placement rule looks at: global shapes, and for how many ranks each dim of each
/// operand is cut in all.
struct RuleContext {
  const Call& call;  // operands may be plain tensors (then none has a layout): look at shapes
  std::span<const ResultShape> out;  // global
  int axis = 0;                      // the mesh axis that is asked for
  std::int64_t axis_size = 1;
  /// The product of the sizes of all mesh axes that shard `dim` of operand `i`, this axis included:
  /// those before it as the operand will lie on them, those after it as it lies now.
  std::function<std::int64_t(std::size_t i, int dim)> shards_of;
};

/// An all-reduce over the ranks of an axis in the middle of an operator's local call: `times` as
/// many numbers as the local part of result `like` has, that result's dim `without_dim` (if not -1)
/// counted as 1.
struct InnerReduction {
  ReduceOp op = ReduceOp::sum;
  int like = 0;
  int times = 1;
  int without_dim = -1;
};

/// One way in which an operator is right on one mesh axis: if its operands are placed so, its
/// results are placed so.
struct Strategy {
  InlineVector<Placement, 4> in;   // one for each operand, absent ones included (ignored)
  InlineVector<Placement, 2> out;  // one for each result
  /// Reductions among the axis' ranks on the way, in this order; Op::composed does them, and
  /// may do nothing else. Only for operators whose caller has asked for it by an attribute: no
  /// operator communicates by itself.
  InlineVector<InnerReduction, 2> reductions = {};
};
using Strategies = std::vector<Strategy>;

/// Facts that the local call of a distributed operator needs to change its attributes.
struct LocalContext {
  const Call& call;                // as the program wrote it: global
  std::span<const SpecHandle> in;  // null for absent operands
  std::span<const SpecHandle> out;
};

/// The next declared reduction of a local call, over all axes whose strategy has it.
using InnerReduce = std::function<Tensor(const Tensor& x, ReduceOp op)>;

/// Gradients of the results -> gradients of the operands. Runs through the dispatcher: only calls
/// of operators.
struct BackwardContext {
  const Op& op;
  const Attributes& attributes;
  std::span<const Tensor> in;       // saved operands, as Op::saves_inputs says; others undefined
  std::span<const Tensor> out;      // saved results, as Op::saves_outputs says
  std::span<const Dims> in_shapes;  // of all operands, saved or not
  std::span<const DType> in_dtypes;
  std::uint64_t needed = 0;  // bit i: operand i needs a gradient

  inline bool needs(std::size_t i) const { return ((needed >> i) & 1U) != 0; }
  template <class A>
  [[gnu::always_inline]] inline A args() const {
    return arguments_as<A>(attributes);
  }
};

/// The structure in C++ of the function that an operator computes, for code that is generated.
///
/// For operators of elements, of which the one result has at each place a function of its operands
/// there (which broadcast) and of its dynamic arguments:
///     template <class T> static T value(T operand..., T number...);
/// T is float (double for f64); booleans are 0 or 1; the result is rounded to its type.
///
/// For operators of rows, which compute each row of the last dim, of `n` elements, alone:
///     template <class T> static void row(std::int64_t n, const T* operand..., double number...,
///                                        T* result...);
/// T is the operands' type; statistics are float (double for f64); what a row has once is a
/// pointer.
struct Element {
  std::string function = {};  // "tessera::functions::Silu"; empty: none for this call
  std::string_view header =
      {};  // the text that defines it, where it is not one of the library's own
  bool of_rows = false;
  std::uint32_t whole = 0;  // of rows; bit k: operand k is one row, which all share
  std::uint32_t sums = 0;   // bit k: result k is one row, to which each adds, in blocks of 64 rows
                            // that are then added in order, in float (double for f64)
  bool scratch = false;     // the function takes a row of float (double for f64) after the results

  inline explicit operator bool() const { return !function.empty(); }
};
/// Op::element of a structure as docs/adding-an-operator.md has it: F::value, F::holds of a truth,
/// or F::row with F::whole, F::sums and F::scratch. `header`: see Element.
template <class F>
inline Element element_of(std::string_view header = {}) {
  Element element{.function = std::string(reflect::type_name<F>()), .header = header};
  const auto adapted = [&](const char* adapter) {
    element.function.insert(0, adapter).append(">");
  };
  if constexpr (requires { F::whole; }) {
    element.of_rows = true;
    element.whole = F::whole;
    element.sums = F::sums;
    element.scratch = F::scratch;
  } else if constexpr (F::loop == decltype(F::loop)::library) {
    adapted("tessera::functions::LanesOf<");
  } else if constexpr (F::is_truth) {
    adapted("tessera::functions::TruthOf<");
  }
  return element;
}

/// Bits for Op::saves_inputs and saves_outputs.
inline constexpr std::uint64_t saves_none = 0;
inline constexpr std::uint64_t saves_all = ~std::uint64_t{0};

/// Whether results share operand 0's memory.
enum class Aliasing : std::uint8_t { none, sometimes, always };

/// Communication of an operator: calls of one kind or of its variants (collective::CallKind), or
/// none that is known beforehand.
class Communicates {
 public:
  static const Communicates none;
  static const Communicates waits;    // nothing; it waits for other ranks
  static const Communicates planned;  // what the planner finds for its layouts

  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr Communicates(collective::CallKind kind) : kind_(Kind::calls), call_(kind) {}

  /// The kind of its calls, as it was declared; none: it makes none, or any.
  inline constexpr std::optional<collective::CallKind> call() const {
    return kind_ == Kind::calls ? std::optional(call_) : std::optional<collective::CallKind>();
  }
  friend constexpr bool operator==(const Communicates&, const Communicates&) = default;

 private:
  enum class Kind : std::uint8_t { none, waits, planned, calls };
  constexpr explicit Communicates(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::none;
  collective::CallKind call_ = {};
};
inline constexpr Communicates Communicates::none{Kind::none};
inline constexpr Communicates Communicates::waits{Kind::waits};
inline constexpr Communicates Communicates::planned{Kind::planned};
/// "none", "waits", "planned", or the kind of which its calls are variants: "all_reduce".
std::string_view name_of(Communicates communicates);

/// A collective operator's call as one rank of its group has it, before anything is sent.
struct CollectiveContext {
  const Op& op;
  const Attributes& attributes;
  std::span<const ResultShape> read;  // operands that it does not write
  std::span<const ResultShape> made;  // results, and operands that it writes
  std::span<const int> ranks;         // of the group, by their numbers among all ranks
  int rank = 0;                       // position within the group

  inline int size() const { return static_cast<int>(ranks.size()); }
  template <class A>
  [[gnu::always_inline]] inline A args() const {
    return arguments_as<A>(attributes);
  }
};

/// Computes a call into `out`: on the device of its operands, for that device's current stream. The
/// results are fresh and contiguous; in-place operators find operand 0 there.
using Kernel = void (*)(const Call& call, std::span<Tensor> out);
/// The bytes that a kernel needs for intermediate values, from the shapes of operands and results
/// (of any device); 0: none in this call.
using WorkspaceBytes = std::size_t (*)(const Call& call, std::span<const Tensor> out);

/// How a kind of device computes an operator.
struct DeviceKernel {
  Kernel run = nullptr;  // null: it has no kernel
  /// Null: it needs none in any call.
  WorkspaceBytes workspace = nullptr;

  inline explicit operator bool() const { return run != nullptr; }
  inline std::size_t workspace_bytes(const Call& call, std::span<const Tensor> out) const {
    return workspace == nullptr ? 0 : workspace(call, out);
  }
};

/// A call of an operator on plain tensors that is right.
struct OpExample {
  std::vector<Tensor> operands;  // a list's one by one; absent ones undefined
  Attributes attributes = {};
};

/// One operator: all that the path needs to know of it. A slice in modules/ops declares one and
/// registers it.
struct Op {
  /// "softmax(x)": the operands. register_op<SoftmaxArgs> appends the arguments: "softmax(x; dim:
  /// int)". After an operand's name:
  ///   `?`    it may be absent;
  ///   `...`  a list of tensors: the last operands only, and several lists have one length;
  ///   `!`    an in-place operator writes it besides operand 0, as in "adamw_(parameter, gradient,
  ///          exp_avg!)": it is never converted (a copy would be written), and its version moves.
  /// An in-place operator of lists writes tensor i of the first list from tensors i of the others.
  /// Tensors i and j of a list may have different shard orders.
  std::string schema = {};

  /// Global or local shapes and types of the results, from the operands' shapes. Checks them: the
  /// errors begin with the operator's name.
  void (*infer)(const Call& call, ResultShapes& out) = nullptr;

  /// The CPU's kernel. Those of other devices are in `kernels`.
  Kernel cpu = nullptr;
  /// The kernel of devices whose plugin has none: it queues its work in their streams, and uses
  /// their memory by copies only.
  Kernel any_device = nullptr;
  /// The workspace of `cpu`, which the number of threads decides too. The CPU's kernels have no
  /// other memory that grows with their operands. Ask kernel_of() for the one of a kind of device.
  WorkspaceBytes workspace = nullptr;
  /// Code of each element, or of each row of the last dim: so neighbouring
  /// operators become one loop (see docs/graph-kernels.md). It has the bits of the
  /// kernel. Null: nothing in any call.
  Element (*element)(const Call& call) = nullptr;
  /// For operators whose results share an operand's memory: makes them (alias()). Then there is no
  /// `cpu`.
  void (*view)(const Call& call, Tensors& out) = nullptr;

  /// All ways in which the operator is right on ONE mesh axis, Replicate -> Replicate excepted
  /// (always there, unless `never_replicated`).
  void (*rule)(const RuleContext& context, Strategies& strategies) = nullptr;
  /// Attributes of the local call, when they differ from the global ones (shapes, offsets).
  Attributes (*localize)(const LocalContext& context) = nullptr;
  /// The local call of strategies with reductions, made of calls of operators on local tensors.
  void (*composed)(const Call& call, const InnerReduce& reduce, Tensors& out) = nullptr;

  /// Floating-point operations of the products in a call, from the shapes of operands and results
  /// (of any device; global or local): a multiplication with its addition is 2. What a kernel
  /// computes again to save memory does not count. Null: no products.
  double (*flops)(const Call& call, std::span<const Tensor> out) = nullptr;
  /// Kind many elements of operand `operand` a call reads, or reads and writes, where these are not
  /// all: the rows at indices, or none of a tensor that gives its shape only. Null: all of each.
  std::int64_t (*used_elements)(const Call& call, std::size_t operand) = nullptr;

  /// `grads` has one tensor for each result (undefined: zero); fill one for each operand that needs
  /// one.
  void (*backward)(const BackwardContext& context, std::span<const Tensor> grads,
                   std::span<Tensor> out) = nullptr;
  std::uint64_t saves_inputs = saves_none;
  std::uint64_t saves_outputs = saves_none;
  /// Bit i: result i is floating, and `backward` does not know its gradient. A backward in which
  /// one arrives is an error.
  std::uint64_t constant_outputs = saves_none;
  /// `backward` computes the gradient of each operand by calls of its own, which do not read that
  /// operand: so a backward in two halves (backward_to_inputs) computes those of leaves later.
  bool gradients_apart = false;

  bool in_place = false;  // writes operand 0 and returns it
  /// In-place operator: versions of what it writes stay, so that saved tensors remain valid.
  /// It gives memory that was released the values that it held before, or completes what another
  /// operator has begun to write.
  bool keeps_versions = false;
  /// Aliasing of the results. A `view` aliases always unless it says `sometimes`; so does an
  /// in-place operator.
  Aliasing aliasing = Aliasing::none;
  Communicates communicates = Communicates::none;
  /// Bytes that the rank receives in a call with a group. Null: those of `communicates`, by its
  /// form and the arguments `dim` and what the form calls its number; see received_bytes.
  std::int64_t (*received)(const CollectiveContext& context) = nullptr;
  /// It begins a collective that `wait` of a result (of an in-place operator: of its first operand)
  /// completes. Until then nothing may use what it writes, or write what it reads.
  bool issues = false;
  /// It completes the collective that was issued for its first operand, whose bytes it leaves
  /// alone.
  bool completes = false;
  /// The operator that this one is a form of (mul for mul_): its functions refer to it.
  const Op* form_of = nullptr;
  bool never_replicated = false;
  /// It moves or converts elements and computes nothing else, so it takes types that are only
  /// stored (is_stored_only) too. The dispatcher refuses these in calls of other operators; those
  /// that make views need not say it.
  bool moves_elements = false;
  /// Its results have the same bits however many ranks share the features of its operands: it sums
  /// them in blocks, adds exact zeros, or each rank computes whole heads.
  bool same_bits_by_features = false;
  /// Distributed form for operators that ARE communication (redistribute, functional collectives).
  void (*distributed)(const Call& call, Tensors& out) = nullptr;

  /// Calls for the conformance suite (`tessera plugin check`), of few elements. It also makes calls
  /// of its own from the schema; an operator that refuses those (indices in a range, several shapes
  /// that must fit) needs examples. Null: none.
  void (*examples)(std::vector<OpExample>& out) = nullptr;

  /// One sentence for docs/operators.md.
  std::string about = {};

  /// The arguments that are not tensors; null: there are none. Set by with_arguments.
  const ArgumentsInfo* arguments = nullptr;

  // Filled by register_op from the schema.
  std::string name = {};
  struct Parameter {
    std::string name;
    std::string type;  // "tensor", "tensor?", "tensor...", or the argument's type
    bool dynamic = false;
  };
  std::vector<Parameter> operands = {};
  std::vector<Parameter> parameters = {};
  int id = 0;
  ArgumentsType arguments_type = 0;
  /// For each kind of device but the CPU; null: none. Filled by register_op and register_kernels;
  /// read by kernel_of.
  std::array<const DeviceKernel*, device_type_count> kernels = {};
  /// Kind many of what each call must have, so that checking a call is a few comparisons.
  struct Counts {
    std::size_t single = 0;      // operands that are not lists
    std::size_t lists = 0;       // operands that are lists
    std::uint64_t required = 0;  // bit i: the call's operand i may be absent in no call (i < 64)
  };
  Counts counts = {};

  /// The operand of the schema that operand `i` of a call with `count` operands belongs to, and its
  /// place in the list if that is one (else -1).
  struct OperandPlace {
    std::size_t operand = 0;
    std::ptrdiff_t in_list = -1;
  };
  OperandPlace place_of(std::size_t i, std::size_t count) const;
  /// Whether an in-place operator writes this operand of its schema.
  bool writes(std::size_t operand) const;
  /// Operand `i` of a call with `count` operands in words: "weight", "tensors[2]".
  std::string operand_name(std::size_t i, std::size_t count) const;
};

/// Effects of an operator besides its results, from what it declares. Code that plans,
/// records or checks reads this; no code recognises an operator by its name.
struct Effects {
  Aliasing aliasing = Aliasing::none;
  std::vector<std::size_t> writes = {};  // operands of the schema, by index
  bool keeps_versions = false;           // of what it writes
  Communicates communicates = Communicates::none;
  bool issues = false;     // and something else waits for the collective
  bool draws = false;      // random numbers, from the stream and offset in its arguments
  bool workspace = false;  // a kernel may need memory for intermediate values
};
Effects effects_of(const Op& op);

/// Bytes that the rank receives in the call: by Op::received, or by the form of the calls that the
/// operator declares (collective::form_of). A gather joins the tensors that it makes from parts of
/// `dim` (0 without such an argument); a reduction or scatter divides those that it reads.
std::int64_t received_bytes(const CollectiveContext& context);

/// Adds an operator for the life of the process. Errors: a name that exists, a schema that cannot
/// be read, an attribute of a type that is not known.
const Op& register_op(Op op);
/// The operator with the arguments of this aggregate; void: it has none.
template <class A>
inline Op with_arguments(Op op) {
  if constexpr (!std::is_same_v<A, void>) {
    op.arguments = &ArgumentsOf<A>::info;
  }
  return op;
}
template <class A>
inline const Op& register_op(Op op) {
  return register_op(with_arguments<A>(std::move(op)));
}
/// The operator's arguments from text: parse_arguments(find_op("softmax"), "dim=1"). Errors
/// (input): see attributes_from_text; the text begins with the operator's name.
Attributes parse_arguments(const Op& op, std::string_view text);
/// "dim=1"; empty where the operator has none.
std::string print_arguments(const Op& op, const Attributes& attributes);
/// The operator of this name. Errors: unknown; the nearest name is offered.
const Op& find_op(std::string_view name);
/// The operator's kernel on that kind of device, if it has one.
inline DeviceKernel kernel_of(const Op& op, DeviceType type) {
  if (type == DeviceType::cpu) [[likely]] {
    return {op.cpu, op.workspace};
  }
  const DeviceKernel* const kernel =
      __atomic_load_n(&op.kernels[static_cast<std::size_t>(type)], __ATOMIC_ACQUIRE);
  return kernel == nullptr ? DeviceKernel() : *kernel;
}
/// Gives all operators, also those that are registered later, their kernels on a kind of device:
/// what `choose` returns for each, which must not call the registry; where it has none,
/// Op::any_device. Operators that make views need none.
void register_kernels(DeviceType type, DeviceKernel (*choose)(const Op& op));
/// All operators by name.
std::vector<const Op*> all_ops();

}  // namespace tessera
