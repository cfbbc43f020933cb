export module tessera.nn:mixture;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :parameter;
import :tree;
import :feed_forward;

export namespace tessera::nn {

/// The scores that a router makes of its logits, of which a token has one for each expert.
enum class RouterScore { softmax, sigmoid };

/// What a group of experts is chosen by: the sum of its two best scores, or its best one; `none`:
/// groups do not matter.
enum class GroupScore { none, two_best, best };

/// A mixture of experts: many feed-forward parts, of which each token has a few.
struct MixtureOptions {
  FeedForwardOptions expert;  // one of them; without a gate also that of all tokens
  /// Experts compute so many features, which a projection makes of a token's, and another one
  /// makes the token's of their sum; 0: those of the model.
  std::int64_t latent_dim = 0;
  bool latent_bias = false;  // of these two projections
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  RouterScore score = RouterScore::softmax;
  bool normalize = true;  // the weights of a token's experts sum to 1, before they are scaled
  double scale = 1;       // of the weights
  /// An expert's tokens are multiplied by their weights, not its results.
  bool weigh_inputs = false;
  bool logit_bias = false;  // of the router's logits
  /// Experts are in so many equal groups, in their order, and a token has experts of at most so
  /// many of them: those with the largest `group_score`.
  std::int64_t groups = 1;
  std::int64_t groups_per_token = 1;
  GroupScore group_score = GroupScore::two_best;
  /// One more feed-forward part, so wide, computes every token; 0: none.
  std::int64_t shared_width = 0;
  bool shared_bias = false;  // of its projections
  bool shared_gate = false;  // the sigmoid of a product with the token weights its result
  /// A bias of the scores where experts are chosen; see BalanceOptions::bias_rate.
  bool bias = false;

  /// Errors (input): no experts, more per token than there are, or than the groups of a token have;
  /// groups that do not divide them.
  void check() const;
};

/// What a training does so that experts have equally many tokens.
struct BalanceOptions {
  /// Of the loss of balance: for a sequence, experts * sum over experts of (the share of its tokens
  /// that have the expert) * (the mean of its scores, which sum to 1). It is experts_per_token
  /// where the loads are equal. Source: Fedus et al. (2021), section 2.2.
  double loss = 0;
  /// Of the mean over a sequence's tokens of logsumexp(logits)^2 (Zoph et al. 2022, section 4).
  double z_loss = 0;
  /// By so much a bias of each expert's score grows or shrinks in a step, where it had fewer or
  /// more tokens than the average. The bias counts where experts are chosen, not where they are
  /// weighted, and no gradient trains it (Wang et al. 2024, arXiv:2408.15664).
  double bias_rate = 0;
  /// While training, an expert takes at most capacity times its equal share of each sequence,
  /// rounded up; tokens that come later in the sequence do without it. 0: no limit.
  double capacity = 0;

  /// Errors (input): a number below 0, or that is none.
  void check() const;
};

/// The experts of one layer: hidden_states [..., dim], and for each token the weights and the
/// numbers (i64) of its experts, both [..., experts_per_token] -> [..., dim], or latent_dim in the
/// place of dim. Parameters gate_proj, of experts with a gate, and up_proj [experts, width, dim],
/// down_proj [experts, dim, width]; with biases also gate_proj_bias, up_proj_bias and
/// down_proj_bias [experts, out]. Optional input: kept (bool),
/// [..., experts_per_token]; where it is false, the expert does not compute the token.
///
/// Two splits, also together on several axes. "experts": each rank has some experts; the tokens
/// must be split along that axis too, and each travels to the ranks that have its experts, and
/// back. Several axes may split the experts. "rows": each rank has some features of every expert,
/// and computes one term of the result.
class Experts : public Module {
 public:
  explicit Experts(const MixtureOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  /// Something that the tokens' ranks compute while rows travel: it calls `work`, which computes
  /// the experts, somewhere in its middle.
  using Beside = std::function<void(const std::function<void()>& work)>;
  /// The next forward calls it once, if it exchanges rows: what `beside` computes before `work` is
  /// beside the way to the experts, and the rest beside the way back. Their gradients are too.
  void compute_beside(Beside beside);

 private:
  bool gated_;
  Activation activation_;
  GateLimits limits_;
  bool weigh_inputs_;
  Beside beside_;
};

/// hidden_states [..., dim] -> [..., dim]: the sum of each token's experts, weighted by the
/// router's scores, and of the expert of all tokens. Source: Jiang et al., Mixtral of Experts
/// (2024), section 2.1; DeepSeek-V3 (2024), section 2.1.2.
///
/// While training with a loss of balance or a z-loss, hidden_states are [sequences, tokens, dim],
/// and there is a second output [sequences], f32: the layer's share of them for each sequence.
class SparseMixture : public Module {
 public:
  explicit SparseMixture(const MixtureOptions& options);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  /// Counts tokens from now on, and balances with these weights of losses. Once, before a plan.
  void balance(const BalanceOptions& options);
  /// The bias of the experts' scores, f32 [experts]; null without one.
  const BufferPointer& bias() const { return bias_; }
  /// Adds the bias, 0, where there is none. Before a plan.
  void add_bias();
  /// Which tokens of this rank chose which expert since the training began, i64 [experts]; how many
  /// choices were dropped, i64 [1]. On each rank its own terms of what the ranks have together
  /// along axes that split tokens. Null before balance().
  const BufferPointer& tokens() const { return tokens_; }
  const BufferPointer& dropped() const { return dropped_; }

 private:
  struct Routed;
  Routed route(const Tensor& hidden);
  void count(const Tensor& by_row, const Tensor& kept);
  Tensor balance_term(const Routed& routed, const Tensor& by_row) const;
  Tensor shared_result(const Tensor& hidden, std::function<void()> between);
  void update_bias();

  MixtureOptions options_;
  BalanceOptions balance_;
  Child gate_, latent_in_, experts_, latent_out_, shared_, shared_gate_;
  BufferPointer bias_, tokens_, dropped_;
  BufferPointer balanced_;  // tokens_ at the end of the step before
  Layout counted_;          // of sums over the ranks' tokens; undefined: plain tensors
};

/// SparseMixture::balance() of all mixtures below `root`, which share the weights of losses
/// equally. Returns how many there are. Errors: BalanceOptions::check.
int balance_experts(Module& root, const BalanceOptions& options);
/// The mixtures below `root`, in the order of the tree.
std::vector<SparseMixture*> all_mixtures(Module& root);

}  // namespace tessera::nn

namespace tessera::nn {

/// A token's experts, and what they were chosen by.
struct Choice {
  Tensor scores;   // [..., experts]
  Tensor weights;  // [..., experts_per_token]
  Tensor experts;  // i64
};

/// `logits`: f32 or f64, [..., experts]; `bias`: of the scores where experts are chosen, undefined
/// for none.
Choice choose_experts(const Tensor& logits, const MixtureOptions& options, const Tensor& bias);

/// How many tokens of each row chose each expert: i64 [rows, experts], of local numbers of experts
/// [rows, tokens, experts_per_token].
Tensor chosen_by_row(const Tensor& chosen, std::int64_t experts);
/// Whether a choice is among the first `most` ones of its row and expert: bool, local, of the shape
/// of `chosen`.
Tensor within_capacity(const Tensor& chosen, const Tensor& by_row, std::int64_t most);

}  // namespace tessera::nn
