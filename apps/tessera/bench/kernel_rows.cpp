module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.coded;
import :kernel_rows;

namespace tessera::app {
namespace {

using T = const Tensor&;

/// The rows, made one after the other.
class Rows {
 public:
  explicit Rows(std::int64_t elements)
      : width_(std::min<std::int64_t>(4096, elements)),
        rows_(std::max<std::int64_t>(1, elements / width_)) {
    ops::normal_(x, 0, 1, random_stream("bench"));
    ops::uniform_(weights, 0.1, 1, random_stream("bench"));
  }

  void reductions();
  void norms();
  void sorts();
  void cumulative();
  void sampling();
  void losses();
  void convolutions();
  void attention();
  void elementwise();
  void coded_products();

  std::vector<KernelRow> rows;

 private:
  /// An operator that reads x once and writes `written` elements of 4 bytes.
  template <class F>
  KernelRow& reading(const char* name, double written, const F& call) {
    rows.push_back(
        {.name = name, .read = bytes, .written = 4 * written, .run = [call, x = x] { call(x); }});
    return rows.back();
  }
  template <class F>
  void sorting(const char* name, KernelBound bound, T values, std::int64_t wanted, const F& call) {
    const std::int64_t lines = values.numel() / values.shape().back();
    KernelRow row{.name = name,
                  .bound = bound,
                  .read = bytes,
                  .written = 12.0 * static_cast<double>(lines * wanted),
                  .line = values.shape().back(),
                  .wanted = wanted,
                  .run = [call, values] { call(values); }};
    const auto* from = values.data<float>();
    row.values.assign(from, from + values.numel());
    rows.push_back(std::move(row));
  }

  std::int64_t width_;
  std::int64_t rows_;

 public:
  Tensor x = empty({rows_, width_});
  Tensor weights = empty({rows_, width_});  // positive
  double bytes = 4.0 * static_cast<double>(rows_ * width_);
  double all = static_cast<double>(rows_ * width_);
};

void Rows::reductions() {
  const auto lines = static_cast<double>(rows_);
  const auto columns = static_cast<double>(width_);
  reading("sum", 1, [](T a) { ops::sum(a); });
  reading("sum, dim 0", columns, [](T a) { ops::sum(a, {0}); });
  reading("sum, dim 1", lines, [](T a) { ops::sum(a, {1}); });
  reading("mean, dim 1", lines, [](T a) { ops::mean(a, {1}); });
  reading("prod, dim 1", lines, [](T a) { ops::prod(a, {1}); });
  reading("amax", 1, [](T a) { ops::amax(a); });
  reading("amax, dim 0", columns, [](T a) { ops::amax(a, {0}); });
  reading("amax, dim 1", lines, [](T a) { ops::amax(a, {1}); });
  reading("argmax, dim 0", 2 * columns, [](T a) { ops::argmax(a, 0); });
  reading("argmax, dim 1", 2 * lines, [](T a) { ops::argmax(a, 1); });
  reading("all, dim 1", lines / 4, [](T a) { ops::all(a, {1}); });
  reading("var", 1, [](T a) { ops::var(a); });
  reading("var, dim 0", columns, [](T a) { ops::var(a, {0}); });
  reading("var, dim 1", lines, [](T a) { ops::var(a, {1}); });
  reading("logsumexp, dim 0", columns, [](T a) { ops::logsumexp(a, {0}); }).exponentials = all;
  reading("logsumexp, dim 1", lines, [](T a) { ops::logsumexp(a, {1}); }).exponentials = all;
}

void Rows::norms() {
  const auto lines = static_cast<double>(rows_);
  reading("norm 2", 1, [](T a) { ops::norm(a, 2); });
  reading("norm 2, dim 0", static_cast<double>(width_), [](T a) { ops::norm(a, 2, {0}); });
  reading("norm 1, dim 1", lines, [](T a) { ops::norm(a, 1, {1}); });
  reading("norm 3, dim 1", lines, [](T a) { ops::norm(a, 3, {1}); });
  const Tensor weight = full({width_}, 1.5);
  const Tensor bias = full({width_}, 0.5);
  reading("layer_norm", all, [=](T a) { ops::layer_norm(a, weight, bias); });
  reading("rms_norm", all, [=](T a) { ops::rms_norm(a, weight); });
  reading("softmax, dim 0", all, [](T a) { ops::softmax(a, 0); }).exponentials = all;
  reading("softmax, dim 1", all, [](T a) { ops::softmax(a, 1); }).exponentials = all;
  reading("log_softmax, dim 1", all, [](T a) { ops::log_softmax(a, 1); }).exponentials = all;
}

void Rows::sorts() {
  const Tensor line = ops::reshape(x, {rows_ * width_});
  const Tensor short_lines = ops::reshape(x, {rows_ * width_ / 64, 64});
  const auto order = [](T a) { ops::sort(a); };
  sorting("sort, lines of 64", KernelBound::sort, short_lines, 64, order);
  sorting("sort, dim 1", KernelBound::sort, x, width_, order);
  sorting("sort, one line", KernelBound::sort, line, line.numel(), order);
  // Its values, line by line as the bound sorts them, are those of the columns.
  sorting("sort, dim 0", KernelBound::sort, ops::contiguous(ops::transpose(x, 0, 1)), rows_,
          [columns = x](T) { ops::sort(columns, 0); });
  const std::int64_t wanted = std::min<std::int64_t>(50, width_ / 8);
  const auto first = [wanted](T a) { ops::topk(a, wanted); };
  sorting("topk 50, dim 1", KernelBound::partial, x, wanted, first);
  sorting("topk 50, one line", KernelBound::partial, line, wanted, first);
}

void Rows::cumulative() {
  const Tensor line = ops::reshape(x, {rows_ * width_});
  reading("cumsum, dim 0", all, [](T a) { ops::cumsum(a, 0); });
  reading("cumsum, dim 1", all, [](T a) { ops::cumsum(a, 1); });
  reading("cumsum, one line", all, [line](T) { ops::cumsum(line, 0); });
  reading("cumprod, dim 1", all, [](T a) { ops::cumprod(a, 1); });
  reading("logcumsumexp, dim 1", all, [](T a) { ops::logcumsumexp(a, 1); }).exponentials =
      2 * all;  // and a logarithm
}

void Rows::sampling() {
  const auto drawn = 2.0 * 16 * static_cast<double>(rows_);
  const auto draw = [w = weights](bool replacement) {
    ops::multinomial(w, 16, replacement, random_stream("bench"));
  };
  reading("multinomial, replaced", drawn, [draw](T) { draw(true); });
  KernelRow& without = reading("multinomial", drawn, [draw](T) { draw(false); });
  without.random_words = all;
  without.exponentials = all;  // a logarithm
  const Tensor into = empty({rows_, width_});
  rows.push_back({.name = "normal_", .written = bytes, .random_words = all, .run = [into] {
                    ops::normal_(into, 0, 1, random_stream("bench"));
                  }});
  reading("dropout", all, [](T a) { ops::dropout(a, 0.1, random_stream("bench")); }).random_words =
      all;
}

void Rows::losses() {
  const Tensor targets =
      ops::cast(ops::mul_scalar(weights, static_cast<double>(width_ - 1)), DType::i64);
  const Tensor classes = ops::contiguous(ops::select(targets, 1, 0));
  reading("cross_entropy", 1, [classes](T a) { ops::cross_entropy(a, classes); }).exponentials =
      all;
  const Tensor ids = ops::contiguous(ops::remainder(
      ops::reshape(targets, {rows_ * width_}), full({}, static_cast<double>(rows_), DType::i64)));
  const Tensor rows_taken = ops::contiguous(ops::narrow(ids, 0, 0, rows_));
  reading("embedding", all, [rows_taken](T a) { ops::embedding(a, rows_taken); });
  rows.push_back(
      {.name = "gather, dim 1", .read = 3 * bytes, .written = bytes, .run = [x = x, targets] {
         ops::gather(x, targets, 1);
       }});
}

void Rows::convolutions() {
  const auto add = [&](const char* name, const Dims& image, const Dims& kernel,
                       const ops::Convolution& settings) {
    const Tensor input = full(image, 0.5);
    const Tensor weight = full(kernel, 0.25);
    const Tensor y = ops::conv2d(input, weight, {}, settings);
    const double flops = 2.0 * static_cast<double>(y.numel()) *
                         static_cast<double>(kernel[1] * kernel[2] * kernel[3]);
    rows.push_back({.name = name, .bound = KernelBound::products, .flops = flops, .run = [=] {
                      ops::conv2d(input, weight, {}, settings);
                    }});
  };
  const std::int64_t images = std::clamp<std::int64_t>(rows_ / 128, 1, 8);
  add("conv2d 3x3, 64 channels", {images, 64, 56, 56}, {64, 64, 3, 3}, {.padding = {1}});
  add("conv2d 1x1, 256 channels", {images, 256, 28, 28}, {64, 256, 1, 1}, {});
  add("conv2d 7x7, stride 2", {images, 3, 112, 112}, {64, 3, 7, 7},
      {.stride = {2}, .padding = {3}});
}

void Rows::attention() {
  const auto add = [&](const char* name, std::int64_t batch, std::int64_t longest,
                       std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim) {
    const std::int64_t fitting = rows_ * width_ / (batch * heads * head_dim);
    const std::int64_t length = std::clamp<std::int64_t>(fitting, 1, longest);
    const auto make = [&](std::int64_t of_heads) {
      const Tensor values = empty({batch, length, of_heads, head_dim});
      ops::normal_(values, 0, 1, random_stream("bench"));
      return values;
    };
    const Tensor q = make(heads);
    const Tensor k = make(kv_heads);
    const Tensor v = make(kv_heads);
    const Tensor dy = make(heads);
    // Scores above the diagonal do not count.
    const double product = static_cast<double>(batch * heads * head_dim) *
                           static_cast<double>(length) * static_cast<double>(length + 1);
    rows.push_back({.name = fmt::format("attention, {}", name),
                    .bound = KernelBound::products,
                    .flops = 2 * product,
                    .run = [=] { ops::attention_block(q, k, v, {}); }});
    const ops::AttentionBlock result = ops::attention_block(q, k, v, {});
    const Tensor delta =
        ops::contiguous(ops::transpose(ops::sum(ops::mul(dy, result.y), {3}), 1, 2));
    rows.push_back(
        {.name = fmt::format("attention's gradient, {}", name),
         .bound = KernelBound::products,
         .flops = 5 * product,
         .run = [=] { ops::attention_block_backward(dy, q, k, v, delta, result.lse, {}); }});
  };
  add("8 x 256, 8 and 4 heads of 32", 8, 256, 8, 4, 32);
  add("2048, 8 and 4 heads of 64", 1, 2048, 8, 4, 64);
  add("1024, 4 heads of 128", 1, 1024, 4, 4, 128);
}

void Rows::elementwise() {
  rows.push_back({.name = "add", .read = 2 * bytes, .written = bytes, .run = [x = x, y = weights] {
                    ops::add(x, y);
                  }});
  KernelRow& gated = reading("swiglu", all, [y = weights](T a) { ops::swiglu(a, y); });
  gated.read = 2 * bytes;
  gated.exponentials = all;
  reading("gelu", all, [](T a) { ops::gelu(a); }).exponentials = all;
  reading("cast to bf16", all / 2, [](T a) { ops::cast(a, DType::bf16); });
  reading("transpose", all, [](T a) { ops::contiguous(ops::transpose(a, 0, 1)); });
  const auto copy = [&] { return ops::clone(x); };
  const Tensor state = zeros(x.shape());
  const ops::AdamStep settings{.lr = 1e-3,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .grad_scale = 1,
                               .step = 1};
  const auto one = [](T a) { return std::vector<Tensor>{a}; };
  rows.push_back(
      {.name = "adamw",
       .read = 4 * bytes,
       .written = 3 * bytes,
       .run = [=, p = one(copy()), g = one(copy()), m = one(state), v = one(ops::clone(state))] {
         ops::adamw_(p, g, m, v, std::vector<Tensor>(1), settings);
       }});
  const auto codes = [&] { return one(zeros(x.shape(), DType::u8)); };
  const auto scales = [&] { return one(zeros(ops::quantized_blocks(x.shape()))); };
  rows.push_back(
      {.name = "adamw, 8-bit state",
       .read = 2 * bytes + bytes / 2,
       .written = bytes + bytes / 2,
       .run = [=, p = one(copy()), g = one(copy()), m = codes(), ms = scales(), v = codes(),
               vs = scales()] { ops::adamw_8bit_(p, g, m, ms, v, vs, settings); }});
}

/// One row of x and eight with a weight that is read as codes.
void Rows::coded_products() {
  using coded::CodeType;
  const std::pair<const char*, CodeType> types[] = {
      {"f16", CodeType::f16},   {"bf16", CodeType::bf16}, {"int8", CodeType::int8},
      {"q8_0", CodeType::q8_0}, {"q4_0", CodeType::q4_0}, {"q4_k", CodeType::q4_k},
      {"q6_k", CodeType::q6_k}};
  const NoGrad no_gradients;
  // To code all rows would take longer than to multiply them.
  const std::int64_t distinct = std::min<std::int64_t>(rows_, 16);
  const Tensor values = ops::narrow(x, 0, 0, distinct);
  const Tensor inputs = ops::contiguous(ops::expand(ops::narrow(x, 0, 0, 1), {8, width_}));
  for (const auto& [name, type] : types) {
    const bool scaled = type == CodeType::int8;
    const coded::CodeRows some =
        coded::encoded(type, values, scaled ? coded::scales_of_rows(values) : Tensor());
    const std::vector<Tensor> codes(static_cast<std::size_t>(rows_ / distinct), some.codes);
    coded::CodeRows weight{.type = type, .codes = ops::cat(codes, 0)};
    if (scaled) {
      weight.scales = ops::cat(std::vector<Tensor>(codes.size(), some.scales), 0);
    }
    for (const std::int64_t count : {1, 8}) {
      rows.push_back(
          {.name = fmt::format("product, {}, {} row{}", name, count, count > 1 ? "s" : ""),
           .read = static_cast<double>(weight.codes.numel()),
           .run = [weight, left = ops::narrow(inputs, 0, 0, count)] {
             coded::product(left, weight);
           }});
    }
  }
}

}  // namespace

std::vector<KernelRow> kernel_rows(std::int64_t elements) {
  Rows made(elements);
  made.reductions();
  made.norms();
  made.cumulative();
  made.losses();
  made.convolutions();
  made.attention();
  made.elementwise();
  made.coded_products();
  Rows slow(std::max<std::int64_t>(1 << 14, elements / 4));  // so that the table takes a minute
  slow.sorts();
  slow.sampling();
  for (KernelRow& row : slow.rows) {
    made.rows.push_back(std::move(row));
  }
  return std::move(made.rows);
}

}  // namespace tessera::app
