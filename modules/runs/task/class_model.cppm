export module tessera.runs:class_model;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.encoders;

// Models that tell the classes of texts and images.

export namespace tessera::runs {

/// An encoder or a decoder of a folder, or a program of torch.export. Constant while it trains.
class ClassModel {
 public:
  virtual ~ClassModel() = default;

  /// The names of the classes that it tells; empty: it has no head for classes.
  virtual std::vector<std::string> labels() const = 0;
  /// It is to tell these. Error (input): it cannot.
  virtual void set_labels(const std::vector<std::string>& labels) = 0;
  virtual std::string family() const = 0;
  /// "2 layers, ...", for people.
  virtual std::string text() const = 0;
  /// Of its tokens; 0: not known.
  virtual std::int64_t vocab() const = 0;
  /// Of a model that finds a row's end by the token behind it: that token, where it has one, and
  /// it is to be this one.
  virtual std::optional<std::int64_t> padding() const { return std::nullopt; }
  virtual void set_padding(std::int64_t /*token*/) {}
  /// The longest row; 0: any.
  virtual std::int64_t longest() const = 0;
  /// How images become inputs; null: the model takes texts.
  virtual const encoders::ImageProcessor* images() const { return nullptr; }
  /// So many tokens the model makes of an image; 0: it takes texts.
  virtual std::int64_t image_tokens() const { return 0; }
  /// config.json of what is trained.
  virtual std::string config_text() const = 0;

  /// On the meta device.
  virtual std::shared_ptr<nn::Module> build() const = 0;
  /// Gives the parameters, which have memory and any layout, their first values.
  virtual void initialize(nn::Module& model) const = 0;
  virtual void set_activation_checkpointing(nn::Module& model, bool enabled) const = 0;
  /// Tokens and their mask, [B, T] (i64), or pixel_values [B, 3, height, width] -> logits [B,
  /// classes]; of tokens [B, T, classes].
  virtual Tensor logits(nn::Module& model, const Tensors& inputs) const = 0;
};

/// What a class is told of.
enum class ClassOf : std::uint8_t { row, token };

/// That of a folder of transformers or a program's file. Errors (input): see
/// encoders::EncoderFolder, encoders::ImageProcessor, hub::ClassifierFolder and
/// exported::class_program; of tokens, another model than an encoder of texts.
std::shared_ptr<ClassModel> open_class_model(const std::string& from, ClassOf of);

}  // namespace tessera::runs
