// Shapes: B rows, T tokens, H heads, D features of a head, R of them rotated.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;

namespace tessera::nn {
namespace {

/// The base for rows of so many positions.
double theta_of(const RotaryOptions& options, std::int64_t dims, std::int64_t length) {
  if (options.stretch == 0 || length <= options.limit) {
    return options.theta;
  }
  const double ratio = static_cast<double>(length) / static_cast<double>(options.limit);
  const auto rotated = static_cast<double>(dims);
  return options.theta *
         std::pow(options.stretch * ratio - (options.stretch - 1), rotated / (rotated - 2));
}

/// Neighbours 2i and 2i + 1 become i and R / 2 + i.
Tensor halves_of_neighbours(const Tensor& x) {
  const std::int64_t pairs = x.size(3) / 2;
  // (B, T, H, R / 2, 2) -> (B, T, H, 2, R / 2)
  const Tensor halves = ops::transpose(ops::unflatten(x, 3, {pairs, 2}), 3, 4);
  return ops::flatten(ops::contiguous(halves), 3, 4);
}

/// The first half of the features after the second one.
Tensor swapped_halves(const Tensor& x) {
  const std::int64_t half = x.size(3) / 2;
  return ops::cat(Tensors{ops::narrow(x, 3, half, half), ops::narrow(x, 3, 0, half)}, 3);
}

/// Heads (B, T, H, R), of which each pair i and R / 2 + i is turned by its angle (R / 2) times the
/// token's number, (T) or (B, T).
Tensor turned_by(const Tensor& x, const Tensor& numbers, const Tensor& angles, double amplitude) {
  const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const std::int64_t half = x.size(3) / 2;
  const Dims shape{numbers.dims() == 2 ? numbers.size(0) : 1, numbers.size(-1), 1, 1};
  const Tensor angle =
      ops::mul(ops::view(ops::cast(numbers, wide), shape), ops::cast(angles, wide));
  const Tensor cosine = ops::mul_scalar(ops::cos(angle), amplitude);  // (B or 1, T, 1, R / 2)
  const Tensor sine = ops::mul_scalar(ops::sin(angle), amplitude);
  const Tensor a = ops::cast(ops::narrow(x, 3, 0, half), wide);
  const Tensor b = ops::cast(ops::narrow(x, 3, half, half), wide);
  const Tensor all = ops::cat(Tensors{ops::sub(ops::mul(a, cosine), ops::mul(b, sine)),
                                      ops::add(ops::mul(b, cosine), ops::mul(a, sine))},
                              3);
  return ops::cast(all, x.dtype());
}

/// One row of the angles.
Tensor row_of(const Tensor& angles, bool is_long) {
  return ops::select(angles, 0, is_long ? 1 : 0);
}

}  // namespace

Tensor heads_of(const Tensor& features, std::int64_t width) {
  return ops::view(features, {features.size(0), features.size(1), features.size(2) / width, width});
}

void WavelengthFactors::check(std::int64_t dims) const {
  // A pair with an infinite one is not rotated.
  const auto wrong = [](double factor) { return !(factor > 0); };
  if (exist() && (2 * std::ssize(short_rows) != dims || short_rows.size() != long_rows.size())) {
    fail_input({.thing = "attention",
                .wrong = "each pair of features that are rotated needs a factor of its wavelength",
                .expected = fmt::format("{} of short rows and of long ones", dims / 2),
                .got = fmt::format("{} and {}", short_rows.size(), long_rows.size())});
  }
  if (std::ranges::any_of(short_rows, wrong) || std::ranges::any_of(long_rows, wrong) ||
      (exist() && (limit < 1 || wrong(amplitude) || !std::isfinite(amplitude)))) {
    fail_input({.thing = "attention",
                .wrong = "factors of wavelengths and their amplitude are positive numbers, and "
                         "short rows have at least one position"});
  }
}

BufferPointer angles_of(const RotaryOptions& options, std::int64_t head_dim) {
  const std::int64_t dims = options.dims > 0 ? options.dims : head_dim;
  std::vector<double> angles;
  for (const std::vector<double>* const factors :
       {&options.factors.short_rows, &options.factors.long_rows}) {
    for (std::size_t i = 0; i < factors->size(); ++i) {
      const double share = 2 * static_cast<double>(i) / static_cast<double>(dims);
      angles.push_back(1 / ((*factors)[i] * std::pow(options.theta, share)));
    }
  }
  const Tensor table =
      ops::cast(from_values(std::span<const double>(angles), {2, dims / 2}), DType::f32);
  return std::make_shared<Buffer>(table, false);
}

void RotaryOptions::check(std::int64_t head_dim) const {
  const std::int64_t rotated = dims > 0 ? dims : head_dim;
  if (theta > 0 && (rotated % 2 != 0 || rotated > head_dim)) {
    fail_input({.thing = "attention",
                .wrong = "the rotary embedding needs an even number of a head's features",
                .expected = fmt::format("at most {}", head_dim),
                .got = fmt::format("{}", rotated)});
  }
  if (theta > 0) {
    factors.check(rotated);
  }
}

Tensor rotate(const Tensor& x, const RotaryOptions& options, const TokenPositions& positions,
              const Tensor& angles) {
  if (options.theta == 0) {
    return x;
  }
  if (options.stretch != 0 && positions.batch != nullptr) {
    // The base depends on each text's length.
    Tensors texts;
    std::int64_t begin = 0;
    for (const RaggedRow& row : positions.batch->rows) {
      texts.push_back(
          rotate(ops::narrow(x, 1, begin, row.count), options, {.given = {}, .before = row.first}));
      begin += row.count;
    }
    return texts.size() == 1 ? texts[0] : ops::cat(texts, 1);
  }
  const std::int64_t width = x.size(3);
  const std::int64_t dims = options.dims > 0 ? options.dims : width;
  const double theta = theta_of(options, dims, positions.before + x.size(1));
  Tensor turned = dims < width ? ops::narrow(x, 3, 0, dims) : x;  // (B, T, H, R)
  turned = options.neighbours ? halves_of_neighbours(turned) : turned;
  // To rotate (a, b) backwards is to rotate (b, a) forwards.
  turned = options.reversed ? swapped_halves(turned) : turned;
  if (options.factors.exist()) {
    const bool is_long = positions.before + x.size(1) > options.factors.limit;
    turned = turned_by(turned, numbers_of(x, positions), row_of(angles, is_long),
                       options.factors.amplitude);
  } else {
    turned = positions.given ? ops::rotary(turned, positions.given, theta, options.scaling)
                             : ops::rotary(turned, theta, positions.before, options.scaling);
  }
  return dims < width ? ops::cat(Tensors{turned, ops::narrow(x, 3, dims, width - dims)}, 3)
                      : turned;
}

void QueryGrowth::check() const {
  if (!(scale >= 0) || !std::isfinite(scale) || period < 1 || first < 0) {
    fail_input({.thing = "attention",
                .wrong = "queries grow by a number from 0, after a period of at least one position",
                .got = fmt::format("scale {}, period {}, first {}", scale, period, first)});
  }
}

Tensor numbers_of(const Tensor& x, const TokenPositions& positions) {
  if (positions.given) {
    return positions.given;
  }
  const Tensor& local = local_of(x);
  const std::int64_t begin =
      positions.before + (x.is_distributed() ? local_offset(*x.spec())[1] : 0);
  const Tensor ones = full({local.size(1)}, 1, DType::i64, local.device());
  const Tensor numbers =
      ops::add_scalar(ops::cumsum(ones, 0), static_cast<double>(begin - 1));  // (T)
  if (!x.is_distributed()) {
    return numbers;
  }
  Layout layout = Layout::replicated(x.layout().mesh());
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (x.layout().placement(axis).is_shard(1)) {
      layout = layout.with_placement(axis, Shard(0));
    }
  }
  return from_local(numbers, layout, Dims{x.size(1)});
}

Tensor grown(const Tensor& x, const QueryGrowth& growth, const TokenPositions& positions) {
  if (growth.scale == 0) {
    return x;
  }
  const DType wide = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor numbers = numbers_of(x, positions);  // (T) or (B, T)
  const Tensor periods = ops::floor_divide(
      ops::add_scalar(numbers, static_cast<double>(growth.first)),
      full({}, static_cast<double>(growth.period), DType::i64, local_of(numbers).device()));
  const Tensor factor =
      ops::add_scalar(ops::mul_scalar(ops::log1p(ops::cast(periods, wide)), growth.scale), 1);
  const bool by_row = numbers.dims() == 2;
  const Dims shape{by_row ? numbers.size(0) : 1, numbers.size(-1), 1, 1};
  return ops::cast(ops::mul(ops::cast(x, wide), ops::view(factor, shape)), x.dtype());
}

}  // namespace tessera::nn
