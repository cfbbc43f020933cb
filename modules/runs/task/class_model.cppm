export module tessera.runs:class_model;

import tessera.base;
import tessera.tensor;
import tessera.nn;

// Models that tell the classes of texts.

export namespace tessera::runs {

/// An encoder of a folder, or a program of torch.export. Constant.
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
  /// The longest row; 0: any.
  virtual std::int64_t longest() const = 0;
  /// config.json of what is trained.
  virtual std::string config() const = 0;

  /// On the meta device.
  virtual std::shared_ptr<nn::Module> build() const = 0;
  /// Gives the parameters, which have memory and any layout, their first values.
  virtual void initialize(nn::Module& model) const = 0;
  virtual void set_activation_checkpointing(nn::Module& model, bool enabled) const = 0;
  /// Tokens and their mask, [B, T] (i64) -> logits [B, classes].
  virtual Tensor logits(nn::Module& model, const Tensor& tokens, const Tensor& mask) const = 0;
};

/// That of a folder of transformers or a program's file. Errors (input): see
/// encoders::EncoderFolder and exported::class_program; an encoder of images.
std::shared_ptr<ClassModel> open_class_model(const std::string& from);

}  // namespace tessera::runs
