export module tessera.text:text_model;

import tessera.base;
import tessera.stores;
import tessera.tokenize;
import tessera.data;
import tessera.collective;
import tessera.nn;
import tessera.parallel;
import tessera.coded;
import tessera.hub;
import :copies;
import :rank_process;
import :model_ranks;

// A trained model, ready to read and write text.

export namespace tessera::text {

/// The files of a trained model.
struct ModelFiles {
  // Most models are no more than a path. NOLINTNEXTLINE(google-explicit-constructor)
  inline ModelFiles(std::string path, std::string tokenizer = {}, std::string base = {},
                    std::string adapter = {})
      : path(std::move(path)),
        tokenizer(std::move(tokenizer)),
        base(std::move(base)),
        adapter(std::move(adapter)) {}

  std::string path;       // a checkpoint, a folder in Hugging Face's format or a GGUF file
  std::string tokenizer;  // a folder or file with it; empty: the one that the model has
  std::string base;       // see WholeCheckpoint; empty: where the checkpoint says that it is
  std::string adapter;    // a folder of PEFT that is merged with a folder's weights; empty: none
  /// In which form weights are kept, and computed with.
  coded::WeightForm precision = coded::WeightForm::stored;
  /// Of products with weights that are kept in codes.
  coded::Activations activations = coded::Activations::f32;
  /// The type in which keys and values are kept; none: as they are computed.
  std::optional<DType> keys = std::nullopt;
  bool adapters = false;  // texts of batches may have adapters (TextModel::read_adapter)
  /// What local_files() has fetched.
  std::vector<stores::LocalInput> copies = {};
};

/// The same files with a copy on this machine in place of each address of a store. Call it before
/// ranks start. Errors: those of stores::fetch.
ModelFiles local_files(ModelFiles files);

/// The model of a checkpoint of 'tessera train', of a folder in Hugging Face's format or of a GGUF
/// file, with its tokenizer: in this process alone, or a copy on several ranks. Sums are computed
/// in float32, of the values that ModelFiles::precision leaves of the weights.
class TextModel {
 public:
  /// Errors (input): there is no such model; its weights do not fit its sizes, or are not those of
  /// the checkpoint's base; its tokenizer is not there, has changed, or has more tokens than the
  /// model.
  explicit TextModel(const ModelFiles& files);
  /// As a rank of the world, which has as many as the grid, after check_split. Errors (input):
  /// those, and those of check_split.
  TextModel(const ModelFiles& files, const RankGrid& grid, collective::World& world);
  /// What another process computes. Errors: those; (run) its ranks have ended.
  TextModel(const ModelFiles& files, std::unique_ptr<RankProcess> ranks);

  const std::string& path() const { return path_; }
  const hub::ModelShape& shape() const { return shape_; }
  ModelRanks& ranks() const { return *ranks_; }
  const Copies& copies() const { return copies_; }
  /// Error (input): the model was trained on token ids, and no tokenizer was named.
  const tokenize::OpenedTokenizer& tokenizer() const;
  /// The same, with what the run that trained the model says of texts and records. Error (input):
  /// there is none.
  const hub::ModelTokenizer& texts() const;
  /// How texts without a conversation become tokens. Error (input): there is no tokenizer.
  const data::TextEncoder& encoder() const;
  /// Whether a text ends at this token, by the model (config.json's and generation_config.json's
  /// eos_token_id) or by its tokenizer's files.
  bool ends_at(std::int64_t token) const;
  /// The longest sequence that can be computed; 0: any.
  std::int64_t longest() const;
  /// The longest sequence that the model is meant for: what config.json says, and longest().
  std::int64_t usual_length() const;
  /// The updates of a folder of PEFT for the model's layers (ModelRanks::add_adapter). May be
  /// called by any thread. Errors (input): the model is no folder's, or was opened without
  /// `adapters`; those of hub::read_layer_updates.
  std::vector<hub::LayerUpdate> read_adapter(const std::string& folder) const;
  /// Bytes of all parameters that this rank has, which each token reads once; of experts only its
  /// own.
  std::int64_t parameter_bytes() const;

 private:
  void open(const ModelFiles& files, const RankGrid& grid, collective::World* world);
  void take_texts(hub::ModelShape shape, hub::ModelTokenizer tokenizer);

  std::string path_;
  hub::ModelShape shape_;
  hub::ModelTokenizer tokenizer_;  // without one: null
  std::optional<data::TextEncoder> encoder_;
  std::shared_ptr<nn::LanguageModel> model_;
  std::unique_ptr<parallel::ParallelPlan> plan_;  // null: one rank has the copy
  std::unique_ptr<ModelRanks> ranks_;
  Copies copies_;
};

/// Gives the layers of a model without values the form in which they keep their weights
/// (coded::use_codes); one that is split over ranks keeps whole blocks on each. `stored`: the form
/// that a weight has in its file. Errors (input): the blocks of a form that was asked for would be
/// cut by the ranks; activations of 8 bits, where no weight is kept in integers.
void set_weight_form(nn::LanguageModel& model, coded::WeightForm form, std::int64_t split,
                     const std::function<std::optional<coded::CodeType>(const std::string& weight)>&
                         stored = nullptr,
                     coded::Activations activations = coded::Activations::f32);

/// Bytes of all parameters of a model that this rank has.
std::int64_t parameter_bytes(nn::LanguageModel& model);

/// Checks, before ranks are started, all that opening a model on them would refuse but for the
/// values of its weights. Returns the bytes of parameters of each rank. Errors (input): those of
/// TextModel; the family does not say how its layers are split; heads or another part that do not
/// divide by the ranks; texts are split, and the family's layers take no cache, or its longest text
/// does not divide.
std::int64_t check_split(const ModelFiles& files, const RankGrid& grid);

/// Calls `lead` with the model: on one rank in this process, or else in the first rank of each
/// copy, in processes that are started for it and end with it. Returns its exit code, or that of
/// the first error of a rank, which is printed once. Ctrl-C stops all ranks. Errors (input), before
/// a rank is started: those of check_split; more ranks than the machine can have. `heals`: one copy
/// of the model is on ranks beside this process, which calls `lead`, and they are started again
/// when one of them dies (ModelRanks::heals).
int with_text_model(const ModelFiles& files, const RankGrid& grid,
                    const std::function<int(const TextModel&)>& lead, bool heals = false);

}  // namespace tessera::text
