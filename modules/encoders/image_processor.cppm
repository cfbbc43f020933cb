export module tessera.encoders:image_processor;

import tessera.base;
import tessera.data;
import tessera.tensor;
import :encoder;

export namespace tessera::encoders {

/// How an encoder's images become its inputs, as the preprocessor_config.json of transformers says:
/// their size, then (value * factor - mean) / std of each channel. Constant.
class ImageProcessor {
 public:
  /// Of the file's text; `name` begins the errors. Keys that are absent have the values of
  /// ViTImageProcessor, and the size is the model's. Error (input) that lists everything wrong with
  /// it: another size than the model's, another processor, images that are cropped or padded, a
  /// filter that Image.resize of Pillow has and ImageFilter has not, keys that nobody understands;
  /// the model takes images of other than three channels.
  ImageProcessor(std::string_view json, const std::string& name, const EncoderShape& shape);

  const data::ImageForm& form() const { return form_; }
  /// Pixels [rows, height, width, 3] of such images -> pixel_values [rows, 3, height, width], f32
  /// on the CPU, with the bits of transformers' processor that uses Pillow.
  Tensor pixel_values(std::span<const std::uint8_t> pixels, std::int64_t rows) const;
  /// preprocessor_config.json.
  std::string text() const;

 private:
  data::ImageForm form_;
  double factor_ = 1.0 / 255;  // 0: values stay from 0 to 255
  bool normalizes_ = true;
  std::vector<double> mean_ = {0.5, 0.5, 0.5};
  std::vector<double> std_ = {0.5, 0.5, 0.5};
  std::vector<float> values_;  // of each channel, by its bytes: [3, 256]
};

/// That of a folder of transformers; without preprocessor_config.json, the values that are absent.
/// Errors (input): as above.
ImageProcessor image_processor_of(const std::string& folder, const EncoderShape& shape);

/// The name of its text among the meta data of checkpoints.
inline constexpr std::string_view image_processor_meta = "image_processor";
/// preprocessor_config.json of a checkpoint, by its meta data; empty: it has none.
std::string stored_image_processor(std::string_view meta);

}  // namespace tessera::encoders
