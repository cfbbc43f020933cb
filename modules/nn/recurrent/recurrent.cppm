export module tessera.nn:recurrent;

import tessera.base;
import tessera.tensor;
import :tree;
import :feed_forward;
import :ragged_batch;

export namespace tessera::nn {

/// What a recurrent layer makes of its tokens. With a token's query q, key k, value v, and a matrix
/// S of each head, which begins with 0 and has decayed since the token before:
enum class RecurrentRule {
  delta,  // S += k (strength (v - S^T k))^T, then S^T q. Source: Yang et al. (2024), 2412.06464
  sum,    // S += k (step v)^T, then S^T q. Source: Dao and Gu, Mamba 2 (2024), 2405.21060
  convolution  // no matrix: q times a short convolution of k v
};

/// By which function of a further projection the result of a recurrent layer is multiplied.
enum class OutputGate { silu, sigmoid };

/// A layer that passes on a state of equal size from token to token instead of attending to all
/// tokens before.
struct RecurrentOptions {
  RecurrentRule rule = RecurrentRule::delta;
  std::int64_t dim = 0;
  std::int64_t key_heads = 0;  // of queries and keys; value head h uses h * key_heads / value_heads
  std::int64_t value_heads = 0;  // of values and matrices
  std::int64_t key_dim = 0;      // features of a head's queries and keys
  std::int64_t value_dim = 0;    // of its values; 0: value_heads share expand * dim
  std::int64_t expand = 0;  // features of all values per feature of the model; 0: see value_dim
  std::int64_t kernel = 4;  // tokens that a convolution of queries, keys and values sees
  Activation activation = Activation::silu;  // of the convolutions
  bool bias = false;                         // of the projections
  bool convolution_bias = false;
  OutputGate gate = OutputGate::silu;
  /// Gates and decays are made by two projections with so many features between them, and each
  /// feature of a key has a decay of its own; 0: by one, and all features of a head have the same.
  std::int64_t gate_rank = 0;
  double step_low = 0;   // a step of RecurrentRule::sum is at least so large
  double step_high = 0;  // and at most so large; 0: any
  double norm_eps = 1e-5;
  double standard_deviation = 0.02;
  DType dtype = DType::f32;

  /// Errors (input): extents that are not positive, heads that key_heads does not divide.
  void check() const;
  std::int64_t value_extent() const;
};

/// What a recurrent layer keeps of the tokens so far, for generation.
struct RecurrentState {
  std::vector<Tensor> inputs = {};     // of each convolution the last ones, [B, kernel - 1, C]
  Tensor sums;                         // [B, H, key_dim, value_dim]; undefined: there are none
  std::int64_t length = 0;             // how many tokens there were
  const RaggedBatch* batch = nullptr;  // of several texts; null: the calls' rows are one text each
  std::vector<RecurrentState> of_texts = {};  // with a batch: of each text, by RaggedRow::state
  /// Bytes of this rank's memory for them.
  std::int64_t bytes() const;
};

/// A layer with a RecurrentState: hidden_states [B, T, dim] -> [B, T, dim]. Optional inputs:
/// positions, without effect, and documents, i64 [B, T] (RowDocuments::first): a document has the
/// result that it has alone. Errors (input) of forward: tokens that are split over ranks; documents
/// with a state.
class RecurrentLayer : public Module {
 public:
  std::vector<std::string> input_names() const override;
  /// With a state, forward takes the tokens that follow those in it; null for none. It must live as
  /// long as it is set.
  void set_state(RecurrentState* state) { state_ = state; }

 protected:
  /// The inputs of forward, checked.
  struct Entering {
    Tensor hidden, documents;
  };
  Entering entering(const Tensors& inputs) const;
  /// x [B, T, C] after the convolution, number `which` of the layer's.
  Tensor convolved(const Child& convolution, std::size_t which, const Tensor& x,
                   const Tensor& documents);
  /// Tokens of a call that follow one another in their texts.
  struct Tokens {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    std::int64_t first = 0;           // the position in its text of the first one, of a batch
    RecurrentState* state = nullptr;  // null: none is kept
  };
  /// Those of each text of a batch of several texts; else all.
  std::vector<Tokens> tokens_of(const Tensor& x) const;
  /// Whether a token's bits may not depend on which tokens are computed with it.
  bool is_exact() const;
  /// Counts tokens of which all convolutions and sums have seen each.
  void count(const Tensor& hidden);

 private:
  RecurrentState* state_ = nullptr;
};

struct RecurrenceInputs;

/// RecurrentRule::delta and ::sum. Children q_proj, k_proj, v_proj, gate_proj, decay_proj,
/// strength_proj (delta), or with gate_rank gate_a_proj, gate_b_proj, decay_a_proj, decay_b_proj;
/// q_conv, k_conv, v_conv; steps; norm; o_proj.
class Recurrence : public RecurrentLayer {
 public:
  explicit Recurrence(const RecurrentOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;

 private:
  void add_gates();
  void check_heads(std::span<const int> axes) const;
  Tensor gated(const Tensor& result, const Tensor& x) const;
  Tensor summed(const RecurrenceInputs& inputs) const;

  RecurrentOptions options_;
  Child q_, k_, v_, gate_a_, gate_, decay_a_, decay_, strength_;
  Child q_conv_, k_conv_, v_conv_, steps_, norm_, o_;
};

/// RecurrentRule::convolution: o_proj(q * conv(k * v)). Children q_proj, k_proj, v_proj, conv and
/// o_proj. Source: Liquid AI, LFM2 (2025), 2511.23404.
class GatedConvolution : public RecurrentLayer {
 public:
  explicit GatedConvolution(const RecurrentOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;

 private:
  Child q_, k_, v_, conv_, o_;
};

/// x [B, T, C] -> [B, T, C]: each feature's sum over this and the kernel - 1 tokens before, with
/// weights of its own, weight [C, 1, kernel], the last one this token's; bias [C]. Optional inputs:
/// documents, as RecurrentLayer's; earlier [B, kernel - 1, C], the tokens before the first
/// (otherwise 0). A second output: the last kernel - 1 tokens, for the next call. Split by columns.
class CausalConvolution : public Module {
 public:
  CausalConvolution(std::int64_t features, std::int64_t kernel, bool bias,
                    double standard_deviation, DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  std::int64_t kernel_;
};

/// How much each head's state decays at a token: x [B, T, H], or [B, T, H key_dim] where each
/// feature of a key has its own -> the logarithm of the factor, -exp(A_log) step, f32, with step =
/// softplus(x + dt_bias). With RecurrentRule::sum two further outputs: the step, and a parameter D
/// [H]. Split by columns.
class DecaySteps : public Module {
 public:
  explicit DecaySteps(const RecurrentOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  double low_, high_;
};

/// RMSNorm over each of so many groups of the features of x [B, T, C], weight [C]. Split by
/// columns.
class GroupedNorm : public Module {
 public:
  GroupedNorm(std::int64_t features, std::int64_t groups, double eps, DType dtype = DType::f32);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  std::int64_t group_;  // features of one
  double eps_;
};

}  // namespace tessera::nn

namespace tessera::nn {

/// What a recurrence computes with: B rows of T tokens.
struct RecurrenceInputs {
  RecurrentRule rule = RecurrentRule::delta;
  Tensor q, k;             // [B, T, key heads, key_dim]
  Tensor v;                // [B, T, H, value_dim]
  Tensor decay;            // f32 [B, T, H] or [B, T, H, key_dim]: logarithms of factors
  Tensor strength;         // [B, T, H]: of each token's value
  Tensor documents;        // i64 [B, T]; undefined: a row is one document
  Tensor sums;             // before the first token; undefined: 0
  bool by_tokens = false;  // computed token by token; not with documents
};
struct RecurrenceResult {
  Tensor y;     // f32 [B, T, H, value_dim]
  Tensor sums;  // f32 [B, H, key_dim, value_dim], after the last token
};

/// By products of matrices of chunks of tokens; or token by token, so that the bits do not depend
/// on how a text is cut into calls. Rows and heads may be split over ranks; where heads are,
/// queries and keys that are whole belong to all of them.
RecurrenceResult recurrence(const RecurrenceInputs& inputs);

}  // namespace tessera::nn
