export module tessera.text:model_ranks;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.nn;
import tessera.hub;
import :sampling;
import :text_memory;
import :adapter_layers;
import :rank_process;

// What is computed with a model, on all ranks that have a part of it.

export namespace tessera::text {

/// What is asked of a token that is computed.
struct TokenRequest {
  std::int64_t next = -1;      // how likely this one is after it; -1: nothing but the logits
  std::int64_t likeliest = 0;  // of `next`: with so many of the likeliest tokens
  bool states = false;         // or its last hidden states, and no logits
  /// Values that read_likelihoods() reads; of logits there are as many as tokens of the model, of
  /// hidden states as many as those have features.
  inline std::int64_t values(std::int64_t vocab, std::int64_t features) const {
    return states ? features : next < 0 ? vocab : 1 + 2 * std::min(likeliest, vocab);
  }
};

/// The likelihoods of a token that such values are.
TokenLikelihoods read_likelihoods(std::span<const double> values, std::int64_t token);

/// A model that this rank has alone, or that the ranks of a mesh have in parts. The first of these
/// ranks leads: it calls the functions, and the others take part in each call by follow(). All that
/// decides about what is computed (texts, what is sampled, stdin, requests) is in one process
/// then, and ranks cannot disagree.
class ModelRanks {
 public:
  /// The model must outlive it. `world`: where ranks were started. `mesh`: of the ranks on which
  /// the model's parameters are; none: this rank has all of them. `context`: the axis of the mesh
  /// over which sequences are split, for which the model has the style ContextParallel; -1: none.
  /// `keys`: the type in which keys and values are kept; none: as they are computed. `adapters`: of
  /// the model, which texts of batches may have; null: they have none.
  explicit ModelRanks(nn::LanguageModel& model, collective::World* world = nullptr,
                      const DeviceMesh& mesh = {}, int context = -1,
                      std::optional<DType> keys = std::nullopt,
                      std::unique_ptr<AdapterLayers> adapters = nullptr);
  /// The ranks of other processes, which answer by answer_calls(); `model` has no values. Each
  /// function that computes waits for ranks that start again, and throws RestartedRanks then. Error
  /// (run): they have ended.
  ModelRanks(nn::LanguageModel& model, std::unique_ptr<RankProcess> there);
  ~ModelRanks();
  ModelRanks(const ModelRanks&) = delete;
  ModelRanks& operator=(const ModelRanks&) = delete;

  bool leads() const;
  /// Why no keys and values are kept; empty: they are.
  const std::string& slow_because() const { return slow_because_; }
  /// Over how many ranks the tokens of a long call are split.
  std::int64_t chunks() const { return chunks_; }
  /// Elements of the parameters that this rank has, at least 1.
  std::int64_t parameters() const { return parameters_; }
  /// Bytes of the keys and values that this rank keeps, with the room for further ones.
  std::int64_t cache_bytes() const { return cache_.bytes(); }

  /// The logits [rows, vocab] of the token after the last one of each row of `tokens` (row-major).
  /// The tokens follow those of the calls before, or with `anew`, or where nothing is kept, begin
  /// a text. Errors: a token that the model does not have; an interrupt.
  std::vector<double> next_logits(std::span<const std::int64_t> tokens, std::int64_t rows,
                                  bool anew);
  /// Whether batch_logits() can be called: keys and values are kept and do not change with a text's
  /// length, and texts are not split.
  bool takes_batches() const { return slow_because_.empty() && context_ < 0 && short_rows_ == 0; }
  /// Whether the ranks are started again when one of them dies.
  bool heals() const { return static_cast<bool>(there_); }
  /// What each rank keeps of a text of a batch. Forgets all that is kept.
  TextBytes text_bytes();
  /// What is asked of each scored token of a batch, whose tokens are in the order of its rows: its
  /// values, one after the other. `adapters`: of the batch's texts; empty: they have none. What is
  /// kept between batches is forgotten by next_logits(). Errors: those of next_logits(); (input)
  /// hidden states of a model whose family has no head.
  std::vector<double> batch_values(const nn::RaggedBatch& batch,
                                   std::span<const std::int64_t> tokens,
                                   std::span<const TokenRequest> asked,
                                   std::span<const std::int64_t> adapters = {});
  /// Features of a token's last hidden states, after text_bytes(); 0: they cannot be asked for.
  std::int64_t state_features() const { return features_; }
  /// Whether texts of batches may have adapters.
  bool takes_adapters() const { return (adapters_ || adapters_there_) && takes_batches(); }
  /// Lets texts of batches have an adapter by this number, which is not 0, after text_bytes().
  /// Errors (input): those of AdapterLayers::numbers_of.
  void add_adapter(std::int64_t number, std::span<const hub::LayerUpdate> updates,
                   const std::string& name);
  void drop_adapter(std::int64_t number);
  /// How often all that was kept has been forgotten.
  std::int64_t clears() const { return clears_; }
  /// The sum of the losses of one row of tokens. Errors: the same.
  double loss_sum(std::span<const std::int64_t> tokens, std::span<const std::int64_t> targets);
  /// Of each token of one row after the first one, how likely it is after those before it, and so
  /// many of the likeliest in its place. What next_logits() keeps stays as it is. Errors: the same.
  std::vector<TokenLikelihoods> likelihoods(std::span<const std::int64_t> tokens,
                                            std::int64_t likeliest);

  /// The model itself, with the parameters of this rank, for what is computed besides texts: it
  /// keeps nothing until next_logits().
  nn::LanguageModel& model();

  /// What the other ranks do: their part of each call, until the first rank calls dismiss().
  void follow();
  void dismiss();
  /// Of the first of several ranks: computes what another process asks for, until it goes.
  void answer_calls(const MessageSocket& asks);
  /// Throws where another rank has failed.
  void check_others() const;
  /// Whether the user has asked to stop the ranks; false for a rank alone, whose signals are the
  /// program's.
  bool interrupted() const;
  /// Throws then, with the kind interrupted.
  void check_interrupt() const;
  /// Ends this process at once, and by that the other ranks, whatever they compute: for a program
  /// that was asked to end and has nothing to keep.
  [[noreturn]] void end_process() const;

 private:
  struct Call;
  std::vector<double> together(Call call);
  // Ranks of other processes.
  std::vector<double> together_there(const Call& call);
  void connect();
  std::vector<std::int64_t> facts();
  bool try_adapter(std::int64_t number, std::span<const hub::LayerUpdate> updates,
                   const std::string& name);
  std::vector<std::int64_t> answer_to(std::span<const std::int64_t> message);
  std::vector<double> computed(const Call& call);
  void send(Call& call);
  /// Rows of tokens [rows, T]; `chunked`: each rank of the context axis has its part of T.
  Tensor placed(std::span<const std::int64_t> values, std::int64_t rows, bool chunked) const;
  /// The logits [rows, vocab] of the last token.
  Tensor last_logits(std::span<const std::int64_t> tokens, std::int64_t rows);
  std::vector<double> scored_values(std::span<const std::int64_t> message, bool learns);
  void take_updates(std::span<const std::int64_t> message);
  Tensor loss(std::span<const std::int64_t> tokens, std::span<const std::int64_t> targets);
  /// For each token after the first one: the logarithm of its probability, and the ids and
  /// logarithms of the likeliest.
  std::vector<double> likelihood_values(std::span<const std::int64_t> tokens,
                                        std::int64_t likeliest);
  void keep(bool keeps);
  /// What the model has to compute so that the cache has these tokens after those of the calls
  /// before: the tokens, or where they make a short row a long one, the whole rows again.
  std::vector<std::int64_t> tokens_to_read(const Call& call);

  nn::LanguageModel& model_;
  collective::World* world_;
  DeviceMesh mesh_;
  int context_;
  std::int64_t chunks_ = 1;
  std::int64_t parameters_ = 1;
  collective::Communicator* calls_ = nullptr;  // of the mesh's ranks; null: there is no mesh
  nn::KeyValueCache cache_;
  bool keeps_ = false;       // the model has the cache
  bool in_batches_ = false;  // the cache has texts of batches
  std::int64_t clears_ = 0;
  std::int64_t short_rows_ = 0;  // the longest row of which the model turns keys as in short rows
  std::vector<std::vector<std::int64_t>> rows_;  // the tokens in the cache, where this counts
  std::unique_ptr<AdapterLayers> adapters_;
  std::span<const hub::LayerUpdate> sent_updates_;  // while the first rank sends them
  std::int64_t features_ = 0;
  // Ranks of other processes; null: there are none.
  std::unique_ptr<RankProcess> there_;
  bool adapters_there_ = false;
  TextBytes bytes_there_;
  struct SentAdapter {
    std::string name;
    std::vector<hub::LayerUpdate> updates;
  };
  std::map<std::int64_t, SentAdapter> sent_;  // what ranks that start again get
  std::string slow_because_;
};

}  // namespace tessera::text
