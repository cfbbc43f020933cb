module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.encoders;

import tessera.base;
import tessera.data;
import tessera.tensor;
import :encoder;
import :image_processor;

namespace tessera::encoders {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr JsonLimits limits = {.bytes = 1'000'000, .values = 10'000, .depth = 16};
constexpr const char* file_name = "preprocessor_config.json";
constexpr std::int64_t channels = 3;

constexpr std::pair<int, data::ImageFilter> filters[] = {{1, data::ImageFilter::lanczos},
                                                         {2, data::ImageFilter::bilinear},
                                                         {3, data::ImageFilter::bicubic}};

/// The keys of a preprocessor_config.json, which are read one by one; all that is wrong with them
/// is collected. A key that is null is treated as absent.
class Keys {
 public:
  explicit Keys(Json json) : json_(std::move(json)) {}

  const Json* find(const char* key) {
    read_.insert(key);
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  bool flag(const char* key, bool otherwise) {
    const Json* const value = find(key);
    if (value != nullptr && !value->is_boolean()) {
      wrong(key, "true or false", *value);
      return otherwise;
    }
    return value == nullptr ? otherwise : value->get<bool>();
  }
  double number(const char* key, double otherwise) {
    const Json* const value = find(key);
    if (value == nullptr) {
      return otherwise;
    }
    if (!value->is_number() || !(value->get<double>() > 0) || !(value->get<double>() <= 1e6)) {
      wrong(key, "a number more than 0", *value);
      return otherwise;
    }
    return value->get<double>();
  }
  /// One for each channel, or one for all. `low`: they must be more than it.
  void numbers(const char* key, double low, std::vector<double>& into) {
    const Json* const value = find(key);
    if (value == nullptr) {
      return;
    }
    const Json list = value->is_array() ? *value : Json(std::vector<Json>(channels, *value));
    const bool fits =
        list.size() == channels && std::ranges::all_of(list, [&](const Json& one) {
          return one.is_number() && one.get<double>() > low && one.get<double>() < 1e6;
        });
    if (!fits) {
      wrong(key, low < 0 ? "3 numbers" : "3 numbers more than 0", *value);
      return;
    }
    into = list.get<std::vector<double>>();
  }
  /// The key must be absent, or have one of these values.
  void only(const char* key, std::initializer_list<Json> values, const char* reason) {
    const Json* const value = find(key);
    if (value != nullptr && std::ranges::find(values, *value) == values.end()) {
      problems_.push_back(
          fmt::format("{}: {} is not supported: {}", key, shown(json_text(*value), 60), reason));
    }
  }
  void ignore(std::initializer_list<const char*> keys) { read_.insert(keys.begin(), keys.end()); }
  void problem(std::string text) { problems_.push_back(std::move(text)); }
  void wrong(const char* key, const char* expected, const Json& value) {
    problem(fmt::format("{}: expected {}, got {}", key, expected, shown(json_text(value), 60)));
  }

  void finish(const std::string& name) {
    for (const auto& [key, value] : json_.items()) {
      if (!read_.contains(key) && !value.is_null()) {
        problem(fmt::format("{}: is not understood", shown(key, 60)));
      }
    }
    constexpr std::size_t most = 20;
    const std::size_t more = problems_.size() - std::min(problems_.size(), most);
    problems_.resize(problems_.size() - more);
    if (!problems_.empty()) {
      std::string all;
      for (const std::string& one : problems_) {
        all += (all.empty() ? "" : "; ") + one;
      }
      fail_input(
          {.thing = name, .wrong = more == 0 ? all : fmt::format("{}; and {} more", all, more)});
    }
  }

 private:
  Json json_;
  std::set<std::string> read_;
  std::vector<std::string> problems_;
};

/// The size of images, which must be the model's.
void read_size(Keys& keys, std::int64_t model) {
  const Json* const size = keys.find("size");
  if (size == nullptr || *size == model) {
    return;
  }
  if (*size != Json{{"height", model}, {"width", model}}) {
    keys.wrong(
        "size",
        fmt::format("the model's image_size, {{\"height\": {}, \"width\": {}}}", model, model)
            .c_str(),
        *size);
  }
}

void read_filter(Keys& keys, data::ImageForm& form) {
  const Json* const number = keys.find("resample");
  if (number == nullptr) {
    return;
  }
  for (const auto& [known, filter] : filters) {
    if (*number == known) {
      form.filter = filter;
      return;
    }
  }
  keys.wrong("resample", "1 (Lanczos), 2 (bilinear) or 3 (bicubic)", *number);
}

}  // namespace

ImageProcessor::ImageProcessor(std::string_view json, const std::string& name,
                               const EncoderShape& shape)
    : form_{.height = shape.image_size, .width = shape.image_size} {
  ParsedJson parsed = parse_json_object(json, limits);
  if (!parsed.problem.empty()) {
    fail_input({.thing = name, .wrong = parsed.problem});
  }
  Keys keys(std::move(parsed.value));
  keys.only("image_processor_type",
            {"ViTImageProcessor", "ViTImageProcessorFast", "ViTImageProcessorPil"},
            "only that of ViT is");
  keys.only("feature_extractor_type", {"ViTFeatureExtractor"}, "only that of ViT is");
  if (shape.channels != channels) {
    keys.problem(fmt::format("the model takes images of {} channels, and files of images have {}",
                             shape.channels, channels));
  }
  form_.resizes = keys.flag("do_resize", true);
  read_size(keys, shape.image_size);
  read_filter(keys, form_);
  factor_ = keys.number("rescale_factor", factor_);
  if (!keys.flag("do_rescale", true)) {
    factor_ = 0;
  }
  keys.numbers("image_mean", -1e6, mean_);
  keys.numbers("image_std", 0, std_);
  normalizes_ = keys.flag("do_normalize", true);
  keys.only("do_center_crop", {false}, "images are not cropped");
  keys.only("do_pad", {false}, "images are not padded");
  keys.only("do_reduce_labels", {false}, "labels are those of rows");
  keys.only("data_format", {"channels_first"}, "channels come first");
  // Whether grey becomes colours: images always do. The others say how a program calls it.
  keys.ignore({"do_convert_rgb", "crop_size", "pad_size", "processor_class", "return_tensors",
               "default_to_square", "input_data_format", "device", "disable_grouping",
               "_processor_class", "transformers_version"});
  keys.finish(name);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    for (int byte = 0; byte < 256; ++byte) {
      auto value = static_cast<float>(factor_ == 0 ? byte : byte * factor_);
      if (normalizes_) {
        value = (value - static_cast<float>(mean_[channel])) / static_cast<float>(std_[channel]);
      }
      values_.push_back(value);
    }
  }
}

Tensor ImageProcessor::pixel_values(std::span<const std::uint8_t> pixels, std::int64_t rows) const {
  const std::size_t places = form_.bytes() / channels;
  require(pixels.size() == static_cast<std::size_t>(rows) * form_.bytes(),
          "images: pixels of another size");
  std::vector<float> values(pixels.size());
  float* to = values.data();
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    const std::uint8_t* const image = pixels.data() + row * form_.bytes();
    for (std::size_t channel = 0; channel < channels; ++channel) {
      const float* const of_channel = values_.data() + channel * 256;
      for (std::size_t place = 0; place < places; ++place) {
        *to++ = of_channel[image[place * channels + channel]];
      }
    }
  }
  return from_values(std::span<const float>(values), {rows, channels, form_.height, form_.width});
}

std::string ImageProcessor::text() const {
  int resample = 0;
  for (const auto& [number, filter] : filters) {
    resample = filter == form_.filter ? number : resample;
  }
  const Json json = {{"image_processor_type", "ViTImageProcessor"},
                     {"do_resize", form_.resizes},
                     {"size", {{"height", form_.height}, {"width", form_.width}}},
                     {"resample", resample},
                     {"do_rescale", factor_ != 0},
                     {"rescale_factor", factor_ == 0 ? 1.0 / 255 : factor_},
                     {"do_normalize", normalizes_},
                     {"image_mean", mean_},
                     {"image_std", std_}};
  return json_text(json, 2);
}

ImageProcessor image_processor_of(const std::string& folder, const EncoderShape& shape) {
  const std::string file = (fs::path(folder) / file_name).string();
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    return {"{}", folder, shape};
  }
  const ParsedJson json = read_json_object(file, limits);
  if (!json.problem.empty()) {
    fail_input({.thing = file, .wrong = json.problem});
  }
  return {json_text(json.value), file, shape};
}

std::string stored_image_processor(std::string_view meta) {
  const ParsedJson parsed = parse_json_object(meta);
  const auto found = parsed.value.find(image_processor_meta);
  return !parsed.problem.empty() || found == parsed.value.end() || !found->is_object()
             ? std::string()
             : json_text(*found, 2);
}

}  // namespace tessera::encoders
