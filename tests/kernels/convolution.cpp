#include "convolution/kernels/convolution.hpp"

#include <cstring>

#include "check.hpp"
#include "in_workspace.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;

namespace {

Convolutions made(std::int64_t images, std::int64_t groups, std::int64_t outputs, Windows w) {
  for (int d = 0; d < 2; ++d)
    w.out[d] =
        (w.in[d] + 2 * w.padding[d] - w.dilation[d] * (w.kernel[d] - 1) - 1) / w.stride[d] + 1;
  return {w, images, groups, outputs};
}

/// Strides, paddings beyond the image, dilations and groups; results of one row and of several
/// blocks of rows.
Convolutions shapes() {
  return GENERATE(
      made(2, 1, 3, {.channels = 2, .in = {5, 6}, .kernel = {3, 3}, .padding = {1, 1}}),
      made(3, 2, 2,
           {.channels = 3, .in = {7, 9}, .kernel = {3, 2}, .stride = {2, 3}, .padding = {2, 1}}),
      made(1, 1, 2,
           {.channels = 1, .in = {4, 5}, .kernel = {2, 3}, .padding = {4, 6}, .dilation = {3, 2}}),
      made(2, 1, 4, {.channels = 5, .in = {3, 4}}),
      made(2, 3, 1,
           {.channels = 1, .in = {1, 20}, .kernel = {1, 4}, .stride = {1, 2}, .padding = {0, 3}}),
      made(2, 1, 5, {.channels = 32, .in = {40, 40}, .kernel = {3, 3}, .padding = {1, 1}}),
      made(20, 1, 3,
           {.channels = 2, .in = {6, 6}, .kernel = {5, 5}, .stride = {2, 2}, .padding = {2, 2}}));
}

/// Calls f(x index, weight index, y index) for every product of the convolution.
template <class F>
void each_product(const Convolutions& s, F f) {
  const Windows& w = s.windows;
  for (std::int64_t image = 0; image < s.images * s.groups; ++image)
    for (std::int64_t o = 0; o < s.outputs; ++o)
      for (std::int64_t c = 0; c < w.channels; ++c)
        for (std::int64_t r = 0; r < w.out[0]; ++r)
          for (std::int64_t q = 0; q < w.out[1]; ++q)
            for (std::int64_t i = 0; i < w.kernel[0]; ++i)
              for (std::int64_t j = 0; j < w.kernel[1]; ++j) {
                const std::int64_t a = r * w.stride[0] - w.padding[0] + i * w.dilation[0];
                const std::int64_t b = q * w.stride[1] - w.padding[1] + j * w.dilation[1];
                if (a < 0 || a >= w.in[0] || b < 0 || b >= w.in[1]) continue;
                const std::int64_t kernel = (image % s.groups * s.outputs + o) * w.channels + c;
                f(static_cast<std::size_t>(((image * w.channels + c) * w.in[0] + a) * w.in[1] + b),
                  static_cast<std::size_t>((kernel * w.kernel[0] + i) * w.kernel[1] + j),
                  static_cast<std::size_t>(((image * s.outputs + o) * w.out[0] + r) * w.out[1] +
                                           q));
              }
}

/// What run gives for a result that holds `before`; the same bits with one thread and with three.
template <class Run>
std::vector<float> computed(std::int64_t count, float before, Run run) {
  std::vector<float> one(static_cast<std::size_t>(count), before);
  std::vector<float> three(one);
  run(one.data());
  set_threads(3);
  run(three.data());
  set_threads(1);
  CHECK(std::memcmp(one.data(), three.data(), one.size() * sizeof(float)) == 0);
  return one;
}

}  // namespace

TEST_CASE("convolutions and their gradients", "[convolution]") {
  const Convolutions s = shapes();
  const Windows& w = s.windows;
  const std::int64_t images = s.images * s.groups * w.channels * w.in[0] * w.in[1];
  const std::int64_t weights = s.groups * s.outputs * w.rows();
  const std::int64_t results = s.images * s.groups * s.outputs * w.positions();
  CAPTURE(s.images, s.groups, s.outputs, w.channels, w.in[0], w.kernel[0], w.stride[0]);
  const auto x = values<float>(images, 1);
  const auto weight = values<float>(weights, 2);
  const auto dy = values<float>(results, 3);
  std::vector<double> y_expected(dy.size(), 0.5);
  std::vector<double> dx_expected(x.size());
  std::vector<double> dw_expected(weight.size(), 0.25);
  each_product(s, [&](std::size_t xi, std::size_t wi, std::size_t yi) {
    y_expected[yi] += static_cast<double>(x[xi]) * static_cast<double>(weight[wi]);
    dx_expected[xi] += static_cast<double>(dy[yi]) * static_cast<double>(weight[wi]);
    dw_expected[wi] += static_cast<double>(dy[yi]) * static_cast<double>(x[xi]);
  });
  const auto y = computed(results, 0.5F, [&](float* to) {
    in_workspace::convolve(s, x.data(), weight.data(), to, true);
  });
  CHECK(worst(y, y_expected) < 2e-5);
  const auto dx = computed(images, 7.0F, [&](float* to) {
    in_workspace::convolve_grad_input(s, dy.data(), weight.data(), to);
  });
  CHECK(worst(dx, dx_expected) < 2e-5);
  const auto dw = computed(weights, 0.25F, [&](float* to) {
    in_workspace::convolve_grad_weight(s, dy.data(), x.data(), to);
  });
  CHECK(worst(dw, dw_expected) < 1e-4);
}
