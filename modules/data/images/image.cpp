module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <new>
#include <numbers>
#include <span>
#include <string>
#include <tessera/shown.hpp>
#include <vector>

#include "formats.hpp"
module tessera.data;

import tessera.base;

namespace tessera::data {
namespace {

/// Called by C code, through which no exception may pass.
unsigned char* allocate_pixels(void* owner, std::size_t bytes) {
  try {
    auto& pixels = *static_cast<std::vector<std::uint8_t>*>(owner);
    pixels.resize(bytes);
    return pixels.data();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Of coefficients in fixed point: a sum of 8 bits times them is in 32 bits with a sign.
constexpr int fraction_bits = 32 - 8 - 2;

double weight_of(ImageFilter filter, double x) {
  x = std::abs(x);
  switch (filter) {
    case ImageFilter::bilinear:
      return x < 1 ? 1 - x : 0;
    case ImageFilter::bicubic: {
      constexpr double a = -0.5;
      return x < 1   ? ((a + 2) * x - (a + 3)) * x * x + 1
             : x < 2 ? (((x - 5) * x + 8) * x - 4) * a
                     : 0;
    }
    case ImageFilter::lanczos: {
      const auto sinc = [](double y) {
        return y == 0 ? 1 : std::sin(y * std::numbers::pi) / (y * std::numbers::pi);
      };
      return x < 3 ? sinc(x) * sinc(x / 3) : 0;
    }
  }
  fail("image: no such filter");
}

double support_of(ImageFilter filter) {
  return filter == ImageFilter::bilinear ? 1 : filter == ImageFilter::bicubic ? 2 : 3;
}

/// What a place of the result is the sum of.
struct Window {
  std::int64_t first = 0;
  std::vector<std::int32_t> weights = {};
};

std::vector<Window> windows_of(std::int64_t from, std::int64_t to, ImageFilter filter) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double stretch = std::max(scale, 1.0);
  const double support = support_of(filter) * stretch;
  std::vector<Window> all(static_cast<std::size_t>(to));
  for (std::int64_t place = 0; place < to; ++place) {
    const double center = (static_cast<double>(place) + 0.5) * scale;
    const std::int64_t first =
        std::max(static_cast<std::int64_t>(center - support + 0.5), std::int64_t{0});
    const std::int64_t end = std::min(static_cast<std::int64_t>(center + support + 0.5), from);
    std::vector<double> weights;
    double sum = 0;
    for (std::int64_t i = first; i < end; ++i) {
      weights.push_back(
          weight_of(filter, (static_cast<double>(i) - center + 0.5) * (1.0 / stretch)));
      sum += weights.back();
    }
    Window& window = all[static_cast<std::size_t>(place)];
    window.first = first;
    for (double weight : weights) {
      weight = (sum != 0 ? weight / sum : weight) * (1 << fraction_bits);
      window.weights.push_back(static_cast<std::int32_t>(weight < 0 ? weight - 0.5 : weight + 0.5));
    }
  }
  return all;
}

/// The sum of so many values, `step` apart.
std::uint8_t sum_of(const Window& window, const std::uint8_t* values, std::int64_t step) {
  std::int32_t sum = 1 << (fraction_bits - 1);
  values += window.first * step;
  for (const std::int32_t weight : window.weights) {
    sum += *values * weight;
    values += step;
  }
  return static_cast<std::uint8_t>(std::clamp(sum >> fraction_bits, 0, 255));
}

/// The pass over rows.
Image with_width(const Image& image, std::int64_t width, ImageFilter filter) {
  const std::vector<Window> windows = windows_of(image.width, width, filter);
  Image out{.height = image.height, .width = width};
  out.pixels.resize(static_cast<std::size_t>(out.height * width * 3));
  std::uint8_t* to = out.pixels.data();
  for (std::int64_t row = 0; row < image.height; ++row) {
    const std::uint8_t* const from = image.pixels.data() + row * image.width * 3;
    for (const Window& window : windows) {
      for (int channel = 0; channel < 3; ++channel) {
        *to++ = sum_of(window, from + channel, 3);
      }
    }
  }
  return out;
}

Image with_height(const Image& image, std::int64_t height, ImageFilter filter) {
  const std::int64_t row_bytes = image.width * 3;
  Image out{.height = height, .width = image.width};
  out.pixels.resize(static_cast<std::size_t>(height * row_bytes));
  std::uint8_t* to = out.pixels.data();
  for (const Window& window : windows_of(image.height, height, filter)) {
    for (std::int64_t i = 0; i < row_bytes; ++i) {
      *to++ = sum_of(window, image.pixels.data() + i, row_bytes);
    }
  }
  return out;
}

}  // namespace

Image decode_image(std::span<const std::byte> file, const std::string& name) {
  Image image;
  formats::Coded coded{.bytes = reinterpret_cast<const unsigned char*>(file.data()),
                       .size = file.size(),
                       .most_pixels = most_pixels,
                       .allocate = allocate_pixels,
                       .owner = &image.pixels};
  const bool png = formats::is_png(coded.bytes, coded.size);
  if (!png && !formats::is_jpeg(coded.bytes, coded.size)) {
    fail_input({.thing = name, .wrong = "is not a file of an image", .expected = "PNG or JPEG"});
  }
  if (png) {
    formats::decode_png(coded);
  } else {
    formats::decode_jpeg(coded);
  }
  const std::string problem = coded.problem;
  if (!problem.empty() || coded.height < 1 || coded.width < 1) {
    fail_input({.thing = name,
                .wrong = fmt::format("the {} file cannot be read: {}", png ? "PNG" : "JPEG",
                                     problem.empty() ? "it has no pixels" : shown(problem, 200))});
  }
  image.height = coded.height;
  image.width = coded.width;
  return image;
}

Image resized(const Image& image, std::int64_t height, std::int64_t width, ImageFilter filter) {
  require(height > 0 && width > 0 && image.height > 0 && image.width > 0,
          "image: sizes must be positive");
  const Image wide = width == image.width ? Image() : with_width(image, width, filter);
  const Image& first = width == image.width ? image : wide;
  return height == image.height ? first : with_height(first, height, filter);
}

}  // namespace tessera::data
