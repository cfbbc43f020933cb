export module tessera.encoders:encoder;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

export namespace tessera::encoders {

/// Which hidden states stand for a whole row.
enum class Pooling {
  first,  // those of the first token, or of the class token of an image
  mean    // the mean over all tokens that the attention mask shows
};

/// What is made of hidden states.
enum class EncoderHead {
  none,           // nothing
  masked_tokens,  // logits of each token
  classes,        // logits of each row's class
  token_classes   // logits of each token's class
};

/// An encoder: blocks of attention that sees both sides and a feed-forward part, over tokens or
/// the patches of an image. The defaults are a BERT's.
struct EncoderShape {
  std::int64_t dim = 0;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t ffn_dim = 0;

  // What enters.
  std::int64_t vocab = 0;          // of tokens; 0: images enter
  std::int64_t max_positions = 0;  // the longest row of tokens
  bool learned_positions = true;   // are added to tokens
  std::int64_t token_types = 0;    // 0: tokens have none
  std::int64_t padding = -1;       // a token whose embedding gets no gradient; -1: none
  std::int64_t image_size = 0;     // height and width
  std::int64_t patch_size = 0;
  std::int64_t channels = 0;

  // Norms are layer norms.
  double norm_eps = 1e-12;
  bool norm_bias = true;
  bool embedding_norm = true;  // of what enters the first block
  bool norm_after = true;      // what a part has given, added to what entered; otherwise its input
  bool first_norm = true;      // before the attention of the first block
  bool final_norm = false;     // of what leaves the last block

  // Blocks.
  bool bias = true;         // of the projections of queries, keys and values
  bool output_bias = true;  // of attention's last projection
  double rope_theta = 0;    // 0: queries and keys are not rotated
  double local_rope_theta = 0;
  std::int64_t window = 0;  // in local layers a token sees those at most window / 2 places away
  std::vector<std::int64_t> local_layers = {};  // from 0
  bool gated = false;                           // see nn::FeedForwardOptions
  nn::Activation activation = nn::Activation::gelu;
  bool ffn_bias = true;

  // Rates of dropout while training.
  double input_dropout = 0;        // of what enters the first block
  double probability_dropout = 0;  // of attention's probabilities
  double attention_dropout = 0;    // of what attention gives
  double ffn_dropout = 0;          // of what the feed-forward part gives
  double head_dropout = 0;         // of what the classifier gets

  // The head.
  EncoderHead head = EncoderHead::none;
  bool pooler = false;    // tanh of a projection of the first token
  bool transform = true;  // gelu and norm of a projection, before a head's last one
  bool transform_bias = true;
  nn::Activation transform_activation = nn::Activation::gelu;  // or gelu_tanh
  Pooling pooling = Pooling::first;                            // of what enters a classifier
  std::int64_t classes = 0;
  bool tie_embeddings = true;  // tokens are told by the matrix that embeds them
  bool token_bias = true;      // of their logits

  double standard_deviation = 0.02;  // of the initial weights
  DType dtype = DType::f32;

  /// Errors (input): sizes that are not positive, heads that do not divide dim, a patch that does
  /// not divide the image, another activation of the head.
  void check() const;
  bool takes_images() const { return vocab == 0; }
  /// Whether the head tells classes, of rows or of tokens.
  bool tells_classes() const {
    return head == EncoderHead::classes || head == EncoderHead::token_classes;
  }
  /// Whether a layer, from 0, sees a window only.
  bool is_local(std::int64_t layer) const;
  /// The rows of positions of an image: one for each patch, and the class token's.
  std::int64_t image_positions() const;
  // The parts of a layer.
  nn::NormOptions norm() const;
  nn::AttentionOptions attention(std::int64_t layer) const;
  nn::FeedForwardOptions feed_forward() const;
};

/// Tokens [B, T] (i64), and optionally their types (default: 0) -> what enters the first block,
/// [B, T, dim]. Children tokens, types, positions, norm and dropout.
class TokenInputs : public nn::Module {
 public:
  explicit TokenInputs(const EncoderShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  std::int64_t padding_;
  nn::Child tokens_, types_, positions_, norm_, dropout_;
};

/// Images [B, channels, size, size] -> patches row by row after a class token, with positions:
/// [B, 1 + patches, dim]. Child patches; parameters class_token and positions. Error of forward
/// (input): an image of another size.
class ImageInputs : public nn::Module {
 public:
  explicit ImageInputs(const EncoderShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  Dims image_;  // without the batch
  std::int64_t count_;
  nn::Child patches_, dropout_;
};

/// x + attention(norm(x)), then x + mlp(norm(x)); or norm(x + attention(x)), then norm(x + mlp(x)).
/// Inputs: hidden_states [B, T, dim], and masks of all layers' attention (nn::Attention), of which
/// a local layer takes the second. Children self_attn, mlp, attention_norm and mlp_norm.
class EncoderBlock : public nn::Module {
 public:
  EncoderBlock(const EncoderShape& shape, std::int64_t layer);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

 private:
  bool norm_after_;
  bool local_;
  nn::Child attention_, mlp_, attention_norm_, mlp_norm_, attention_dropout_, mlp_dropout_;
};

/// Inputs -> hidden states [B, T, dim]. Of tokens: input_ids [B, T] (i64), attention_mask [B, T]
/// (0: nobody sees the token; default: all are seen) and token_type_ids [B, T] (i64); of images:
/// pixel_values. Children embeddings, layers.N and norm. Error of forward (input): a row of more
/// tokens than max_positions.
class Encoder : public nn::Module {
 public:
  explicit Encoder(const EncoderShape& shape);
  std::string_view kind() const override;
  Tensors forward(const Tensors& inputs) override;
  std::vector<std::string> input_names() const override;

  bool activation_checkpointing = false;
  nn::Module& embeddings() const { return *embeddings_; }

 private:
  /// The masks of blocks, bool: of all, and of local ones. Undefined: a token sees all others.
  Tensors masks(const Tensors& inputs) const;

  bool images_;
  std::int64_t reach_;  // of local layers; -1: there are none
  std::int64_t max_positions_;
  nn::Child embeddings_;
  std::vector<nn::Child> blocks_;
  nn::Child norm_;
};

}  // namespace tessera::encoders

namespace tessera::encoders {

/// The names of the inputs of an encoder, and of a model around it.
std::vector<std::string> encoder_inputs(bool images);
/// An attention mask [B, T] of any type as bool.
Tensor shown_tokens(const Tensor& mask);

}  // namespace tessera::encoders
