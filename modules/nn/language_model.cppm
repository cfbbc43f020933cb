export module tessera.nn:language_model;

import tessera.base;
import tessera.tensor;
import :tree;
import :pieces;
import :attention;
import :attention_cache;
import :layers;

export namespace tessera::nn {

class PiecesScope;

/// What loss_sum() has added to the losses of tokens.
struct LossTerm {
  std::string name;  // "experts", "further tokens"
  Tensor sum;        // distributed as the losses of tokens
};

/// Sees the terms of each loss_sum(), in the order in which they are added, and the result.
using LossTermsWatch = std::function<void(std::span<const LossTerm> terms, const Tensor& sum)>;

/// A model of the next token: tokens [B, T] (i64) -> logits [B, T, vocab]. Its child "loss" is a
/// module beside the model: loss_sum calls it with logits and targets, so that styles can be
/// applied to it.
/// A family says how it computes hidden states, and which child makes logits of them, its head;
/// then losses need not have all logits in memory (set_head_rows). Or it overrides forward, and has
/// no head.
class LanguageModel : public Module {
 public:
  Tensors forward(const Tensors& inputs) override;
  /// "input_ids"; of a model that takes documents also "documents" and "positions", the tensors of
  /// RowDocuments.
  std::vector<std::string> input_names() const override;
  /// Whether forward takes documents: each one then has the logits that it has alone.
  virtual bool takes_documents() const { return false; }

  /// The model as a chain of pieces, of which each turns the hidden states [B, T, dim] of the one
  /// before into its own: the names of each one's modules. The first begins with tokens, the last
  /// ends with logits. What is in no piece ("loss", modules around several pieces) has no
  /// parameters of its own. None: the family does not say, and its models cannot be divided into
  /// stages.
  virtual std::vector<std::vector<std::string>> pieces() const { return {}; }
  /// The pieces that calls compute, and the hidden states that these begin with; outside of a
  /// PiecesScope all of them, and no states.
  PieceRange selected() const { return pieces_; }
  const Tensor& entering() const { return entering_; }
  /// Whether the family says which layer makes logits of the last hidden states.
  bool has_head() const { return static_cast<bool>(head_); }
  /// tokens [B, T] -> the hidden states of which the head makes logits, [B, T, dim]; with a batch
  /// of several texts those of RaggedBatch::scored, [1, scored, dim]. Error (input): the family has
  /// no head.
  Tensor last_states(const Tensor& tokens);
  /// The logits [B, T, vocab] of such states. Error (input): as above.
  Tensor logits_of(const Tensor& last_states);
  /// Within a PiecesScope that does not end the chain: the hidden states after its last piece.
  Tensor states(const Tensor& tokens, const RowDocuments& documents = {});

  /// tokens [B, T], targets [B, T] -> the sum of the tokens' losses.
  Tensor loss_sum(const Tensor& tokens, const Tensor& targets) {
    return loss_sum(tokens, targets, {});
  }
  /// With several documents in each row. Error (input): the model takes no documents.
  virtual Tensor loss_sum(const Tensor& tokens, const Tensor& targets,
                          const RowDocuments& documents);
  /// tokens [B, T], targets [B, T] -> the loss of each token [B, T], f32; 0 where the target is
  /// ignored. Error (input): as above.
  Tensor token_losses(const Tensor& tokens, const Tensor& targets,
                      const RowDocuments& documents = {});
  /// For losses, logits are in memory for at most so many tokens of this rank at a time, and
  /// backward computes them again (see linear_cross_entropy); 0: for all at once. Forward makes
  /// whole logits. Hooks on the head that are not conversions get losses instead of logits then.
  /// Errors (input): a negative number; the family has no head. In the calls that follow: the head
  /// is not a Linear, or its logits are converted to another layout before the loss.
  void set_head_rows(std::int64_t rows);
  /// With a cache, forward takes the tokens that follow those in the cache and appends them; null
  /// for none. The cache must live as long as it is set. With a batch of several texts, the logits
  /// are those of RaggedBatch::scored, [1, scored, vocab]; a family that overrides forward may give
  /// all of them. Errors: a layer's attention was replaced
  /// by a module that is not an AttentionLayer; a recurrent layer with a cache that is split.
  /// Layers that use keys and values of another one have its cache.
  virtual void set_cache(KeyValueCache* cache);
  /// By what losses of tokens after the next one are multiplied (set_further_states()).
  void set_further_weight(double weight) { further_weight_ = weight; }
  /// From now on `watch` is called by loss_sum(), without gradients; null: not any more.
  void watch_loss_terms(LossTermsWatch watch) { watch_ = std::move(watch); }
  /// Each block recomputes its activations in backward instead of saving them.
  virtual void set_activation_checkpointing(bool enabled) = 0;
  /// logits [B, T, vocab], targets [B, T] -> the sum of the tokens' losses.
  CrossEntropyLoss& loss() { return *loss_; }

 protected:
  /// `layers`: how many modules in it are an AttentionLayer or a RecurrentLayer.
  explicit LanguageModel(std::int64_t layers) : layers_(layers) {}
  /// Adds the child "loss" and names everything: the last call of a constructor. `head`: what
  /// makes logits of hidden_states(); none for a family that overrides forward. `softcap`: logits
  /// become softcap tanh(logits / softcap); 0: they stay.
  void complete(Child head = {}, double softcap = 0);
  /// Inputs of forward -> hidden states [B, T, dim], for a family with a head. One that has
  /// pieces() computes selected() of them, and gets hidden states as its first input unless they
  /// begin the chain.
  virtual Tensor hidden_states(const Tensors& inputs);
  /// For hidden_states(), while the model trains: a term of the loss for each row, [B], such as
  /// that of the balance of experts. loss_sum counts it once for each token of the row that is
  /// trained; losses of tokens do not have it. Undefined: none.
  void set_row_terms(Tensor terms) { row_terms_ = std::move(terms); }
  /// For hidden_states(), while the model trains: hidden states [B, T, dim] of which the head makes
  /// logits of the second token after each one, of the third and so on. They are further outputs of
  /// forward, and loss_sum adds the mean of their losses, times a weight, of targets in the same
  /// document; losses of tokens do not have it. Errors (input) of loss_sum then: head_rows; tokens
  /// that are split over ranks.
  void set_further_states(Tensors states) { further_states_ = std::move(states); }

 private:
  friend class PiecesScope;
  /// Inputs of forward. Error (input): the model takes no documents.
  Tensors inputs_of(const Tensor& tokens, const RowDocuments& documents) const;
  /// Error (input): the family has no head.
  void check_head() const;
  Tensor losses_by_parts(const Tensors& inputs, const Tensor& targets);
  /// Errors (input): the loss would get these logits of a part in another form.
  void check_part(const Tensor& part);
  /// The weighted losses of further logits, the outputs of forward from the second on. Undefined:
  /// there are none.
  Tensor further_losses(const Tensors& outputs, const Tensor& targets,
                        const RowDocuments& documents);
  /// What set_row_terms() has got in the call before, of a sum of losses, distributed as it is.
  /// Undefined: nothing.
  Tensor row_terms_of(const Tensor& loss, const Tensor& targets);

  std::int64_t layers_;
  Child head_;
  double softcap_ = 0;
  bool gives_states_ = false;  // forward ends before the head
  std::int64_t head_rows_ = 0;
  std::shared_ptr<CrossEntropyLoss> loss_;
  PieceRange pieces_;
  Tensor entering_;  // in the place of tokens; undefined: tokens
  Tensor row_terms_;
  Tensors further_states_;
  double further_weight_ = 0.3;
  LossTermsWatch watch_;
  const KeyValueCache* cache_ = nullptr;
};

/// The module as a model of the next token; null: it is none. Whoever depends on it asks here.
LanguageModel* as_language_model(Module& module);

/// Within the scope, calls of a model compute these pieces of its chain only. `entering`: the
/// hidden states that they begin with, instead of the tokens that a call is given; none where the
/// pieces begin the chain. Error: the family has no pieces.
class PiecesScope {
 public:
  PiecesScope(LanguageModel& model, PieceRange pieces, Tensor entering);
  ~PiecesScope();
  PiecesScope(const PiecesScope&) = delete;
  PiecesScope& operator=(const PiecesScope&) = delete;

 private:
  LanguageModel& model_;
  PieceRange before_;
  Tensor entering_before_;
};

/// The blocks one after the other; with `recompute`, each recomputes its activations in backward.
/// `others`: inputs of each block besides the hidden states, that need no gradient. `terms` gets
/// the sum of the blocks' second outputs; undefined: no block has one.
Tensor run_blocks(std::span<const Child> blocks, Tensor hidden, bool recompute,
                  const Tensors& others = {}, Tensor* terms = nullptr);

}  // namespace tessera::nn
