#include "blas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "find_function.hpp"
#include "library.hpp"

import tessera.base;

namespace tessera::cuda {
namespace {

/// The library's functions; the first one is null where it is not found.
const BlasApi& blas_api() {
  static const BlasApi api = [] {
    const auto opened = open_functions<BlasApi>({"libcublasLt.so.13", "libcublasLt.so.12"});
    if (!opened.lacks.empty()) {
      fail_input({.thing = "device 'cuda'",
                  .wrong = opened.lacks,
                  .advice = "install cuBLAS of CUDA 12.8 or later"});
    }
    return opened.api.value_or(BlasApi());
  }();
  return api;
}

void check(BlasStatus status, std::string_view call) {
  if (status != BlasStatus::success) [[unlikely]] {
    fail({.thing = "cuda",
          .wrong = fmt::format("{} fails: {}", call, blas_api().status_string(status))});
  }
}

constexpr int most_measured = 8;

/// Whether algorithms are measured: TESSERA_CUDA_PRODUCTS.
bool measures() {
  const char* const variable = std::getenv("TESSERA_CUDA_PRODUCTS");
  const std::string_view text = variable == nullptr ? "advised" : variable;
  if (text != "advised" && text != "measured") {
    fail_input({.thing = "TESSERA_CUDA_PRODUCTS",
                .wrong = "is not a way to choose algorithms of products",
                .expected = "advised or measured",
                .got = std::string(text)});
  }
  return text == "measured";
}

/// How a matrix [rows, columns] is in memory: each row contiguous, or, transposed, each column.
struct MatrixLayout {
  bool transposed = false;
  std::int64_t leading = 0;  // from a row (transposed: a column) to the next
  std::int64_t batch = 0;    // from a matrix to the next
};

std::optional<MatrixLayout> form_of(const Matrix& x, const Axis& batch, const Axis& rows,
                                    const Axis& columns) {
  if (batch.dims > 1 || rows.dims > 1 || columns.dims > 1) {
    return std::nullopt;
  }
  MatrixLayout form = {.batch = batch.dims == 1 ? x.batch[0] : 0};
  const bool contiguous = columns.dims == 0 || x.columns[0] == 1;
  if (!contiguous && rows.dims == 1 && x.rows[0] != 1) {
    return std::nullopt;
  }
  form.transposed = !contiguous;
  const Axis& long_axis = form.transposed ? columns : rows;
  const Axis& short_axis = form.transposed ? rows : columns;
  const std::int64_t* strides = form.transposed ? x.columns : x.rows;
  form.leading = long_axis.dims == 0 ? short_axis.size : strides[0];
  if (form.leading < short_axis.size || form.batch < 0) {
    return std::nullopt;  // rows that overlap, such as repeated ones
  }
  return form;
}

std::optional<BlasType> type_of(DType type) {
  switch (type) {
    case DType::f32:
      return BlasType::f32;
    case DType::f64:
      return BlasType::f64;
    case DType::bf16:
      return BlasType::bf16;
    case DType::f16:
      return BlasType::f16;
    case DType::f8e4m3:
      return BlasType::f8e4m3;
    case DType::f8e5m2:
      return BlasType::f8e5m2;
    default:
      return std::nullopt;
  }
}

/// The largest power of two, up to 256, that divides an address.
std::uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return 1U << std::min(std::countr_zero(address | 256U), 8);
}

bool is_code(DType type) { return type == DType::f8e4m3 || type == DType::f8e5m2; }

/// The three matrices, if each of them has a form that the library knows.
std::optional<std::array<MatrixLayout, 3>> forms_of(const ProductArguments& p) {
  if (p.m.size * p.n.size * p.k.size * p.batch.size == 0) {
    return std::nullopt;
  }
  const auto a = form_of(p.a, p.batch, p.m, p.k);
  const auto b = form_of(p.b, p.batch, p.k, p.n);
  const auto y = form_of(p.y, p.batch, p.m, p.n);
  if (!a || !b || !y || y->transposed || (p.batch.size > 1 && y->batch < p.m.size * y->leading)) {
    return std::nullopt;
  }
  return {{*a, *b, *y}};
}

/// The library's kernels for codes read 16 bytes at once, of a and of b along k.
bool fits_codes(const ProductArguments& p, const std::array<MatrixLayout, 3>& forms) {
  const auto& [a, b, y] = forms;
  const auto fits = [](std::int64_t bytes) { return bytes % 16 == 0; };
  return !a.transposed && b.transposed && p.batch.size == 1 && fits(p.m.size) && fits(p.n.size) &&
         fits(p.k.size) && fits(a.leading) && fits(b.leading) &&
         fits(y.leading * static_cast<std::int64_t>(size_of(p.y.type)));
}

struct Layout {
  BlasLayout handle = nullptr;

  /// The rows of memory are the library's columns.
  void make(BlasType type, const MatrixLayout& form, std::int64_t rows, std::int64_t columns,
            std::int64_t count) {
    const BlasApi& api = blas_api();
    if (form.transposed) {
      std::swap(rows, columns);
    }
    check(api.layout_create(&handle, type, static_cast<std::uint64_t>(columns),
                            static_cast<std::uint64_t>(rows), form.leading),
          "cublasLtMatrixLayoutCreate");
    const auto entries = static_cast<std::int32_t>(count);
    set(BlasLayoutAttribute::batch_count, entries);
    set(BlasLayoutAttribute::batch_offset, form.batch);
  }
  template <class T>
  void set(BlasLayoutAttribute attribute, const T& value) {
    check(blas_api().layout_set(handle, attribute, &value, sizeof(value)),
          "cublasLtMatrixLayoutSetAttribute");
  }
};

}  // namespace

/// What the library needs to know of products of one form. It lives as long as the program.
struct Blas::Prepared {
  BlasProduct product = nullptr;
  Layout a, b, y;
  /// Those that the library advises, the best one by its own account first; once they are measured,
  /// the fastest one only. Multiplications use the first.
  std::vector<BlasChoice> choices = {};
  bool loaded = false;  // the first one's kernel

  template <class T>
  void set(BlasProductAttribute attribute, const T& value) {
    check(blas_api().product_set(product, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute");
  }

  /// What multiplies the products of codes; nothing, where there are no factors.
  void set(const ProductFactors& factors) {
    if (factors.of_a == nullptr) {
      return;
    }
    set(BlasProductAttribute::scale_of_a, factors.of_b);
    set(BlasProductAttribute::scale_of_b, factors.of_a);
    if (factors.each) {
      set(BlasProductAttribute::scale_mode_of_a, BlasScaleMode::each);
      set(BlasProductAttribute::scale_mode_of_b, BlasScaleMode::each);
    }
  }
};

std::size_t Blas::version() { return blas_api().version ? blas_api().version() : 0; }

std::unique_ptr<Blas> Blas::open(const WatchedThread& watched, const CallWatch& watch) {
  const BlasApi& api = blas_api();
  if (!api.create) {
    return nullptr;
  }
  BlasHandle handle = nullptr;
  check(api.create(watched, &handle), "cublasLtCreate");
  return std::unique_ptr<Blas>(new Blas(handle, watch));
}

bool Blas::takes(const ProductArguments& p) {
  const bool has_bias = p.bias.data != nullptr && !p.accumulate;
  const bool is_half = p.a.type == DType::bf16 || p.a.type == DType::f16;
  const bool of_one_type =
      p.a.type == p.b.type && (p.a.type == p.y.type || (is_half && p.y.type == DType::f32));
  return of_one_type && type_of(p.a.type) && !is_code(p.a.type) &&
         !(has_bias && (p.bias.type != p.y.type || (p.n.size > 1 && p.bias.columns[0] != 1))) &&
         forms_of(p);
}

bool Blas::takes_codes(const ProductArguments& p) {
  const DType y = p.y.type;
  if (!is_code(p.a.type) || !is_code(p.b.type) ||
      (p.a.type == DType::f8e5m2 && p.b.type == DType::f8e5m2) ||
      (y != DType::f32 && y != DType::bf16 && y != DType::f16)) {
    return false;
  }
  const auto forms = forms_of(p);
  return forms && fits_codes(p, *forms);
}

std::shared_ptr<Blas::Prepared> Blas::prepared(const ProductArguments& p,
                                               const ProductFactors& factors) {
  const auto [a, b, y] = *forms_of(p);
  const std::array<std::uint32_t, 3> alignments = {alignment_of(p.a.data), alignment_of(p.b.data),
                                                   alignment_of(p.y.data)};
  const bool has_bias = p.bias.data != nullptr && !p.accumulate;
  const Key key = {static_cast<std::int64_t>(p.y.type),
                   static_cast<std::int64_t>(p.a.type),
                   static_cast<std::int64_t>(p.b.type),
                   p.batch.size,
                   p.m.size,
                   p.n.size,
                   p.k.size,
                   a.transposed,
                   a.leading,
                   a.batch,
                   b.transposed,
                   b.leading,
                   b.batch,
                   y.leading,
                   y.batch,
                   alignments[0],
                   alignments[1],
                   alignments[2],
                   has_bias,
                   factors.each};
  if (const auto* kept = prepared_.find(key)) [[likely]] {
    return *kept;
  }
  const BlasApi& api = blas_api();
  auto made = std::make_shared<Prepared>();
  const bool is_double = p.y.type == DType::f64;
  check(api.product_create(&made->product, is_double ? BlasCompute::f64 : BlasCompute::f32,
                           is_double ? BlasType::f64 : BlasType::f32),
        "cublasLtMatmulDescCreate");
  // The library reads memory by columns: what it multiplies is b transposed by a transposed.
  const auto operation = [](const MatrixLayout& form) {
    return form.transposed ? BlasOperation::transpose : BlasOperation::none;
  };
  made->set(BlasProductAttribute::transpose_a, operation(b));
  made->set(BlasProductAttribute::transpose_b, operation(a));
  made->set(BlasProductAttribute::epilogue, has_bias ? BlasEpilogue::bias : BlasEpilogue::none);
  made->a.make(*type_of(p.b.type), b, p.k.size, p.n.size, p.batch.size);
  made->b.make(*type_of(p.a.type), a, p.m.size, p.k.size, p.batch.size);
  made->y.make(*type_of(p.y.type), y, p.m.size, p.n.size, p.batch.size);
  constexpr std::size_t first_with_modes = 120900;
  if (!factors.each || version() >= first_with_modes) {
    made->set(factors);
    made->choices = watch_.call("cublasLtMatmulAlgoGetHeuristic",
                                [handle = handle_, made, alignments](const WatchedThread& watched) {
                                  return advised(watched, handle, *made, alignments);
                                });
  }
  return prepared_.insert(key, std::move(made));
}

std::vector<BlasChoice> Blas::advised(const WatchedThread& watched, BlasHandle handle,
                                      const Prepared& made,
                                      const std::array<std::uint32_t, 3>& alignments) {
  const BlasApi& api = blas_api();
  BlasPreference preference = nullptr;
  check(api.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const auto prefer = [&](BlasPreferenceAttribute attribute, const auto& value) {
    check(api.preference_set(preference, attribute, &value, sizeof(value)),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(BlasPreferenceAttribute::most_workspace, std::uint64_t{workspace_bytes});
  prefer(BlasPreferenceAttribute::reduction_schemes, reduction_in_workspace);
  prefer(BlasPreferenceAttribute::alignment_a, alignments[1]);
  prefer(BlasPreferenceAttribute::alignment_b, alignments[0]);
  prefer(BlasPreferenceAttribute::alignment_c, alignments[2]);
  prefer(BlasPreferenceAttribute::alignment_d, alignments[2]);
  std::array<BlasChoice, most_measured> choices = {};
  int found = 0;
  const BlasStatus status =
      api.choose(watched, handle, made.product, made.a.handle, made.b.handle, made.y.handle,
                 made.y.handle, preference, measures() ? most_measured : 1, choices.data(), &found);
  api.preference_destroy(preference);
  std::vector<BlasChoice> usable;
  if (status != BlasStatus::not_supported) {
    check(status, "cublasLtMatmulAlgoGetHeuristic");
    const auto fits = [](const BlasChoice& one) {
      return one.state == BlasStatus::success && one.workspace <= workspace_bytes;
    };
    std::copy_if(choices.begin(), choices.begin() + found, std::back_inserter(usable), fits);
  }
  return usable;
}

void Blas::queue(const WatchedThread* watched, const Product& product, const BlasChoice& choice) {
  const ProductArguments& p = product.arguments;
  Prepared& made = *product.made;
  made.set(product.factors);
  if (p.bias.data != nullptr && !p.accumulate) {
    made.set(BlasProductAttribute::bias, p.bias.data);
  }
  const bool is_double = p.y.type == DType::f64;
  constexpr double one = 1, zero = 0;
  constexpr float one_f32 = 1, zero_f32 = 0;
  const void* alpha = is_double ? static_cast<const void*>(&one) : &one_f32;
  const void* none = is_double ? static_cast<const void*>(&zero) : &zero_f32;
  const void* beta = p.accumulate ? alpha : none;
  const auto multiply = [&](auto... arguments) {
    return watched == nullptr ? blas_api().multiply(arguments...)
                              : blas_api().first_multiply(*watched, arguments...);
  };
  check(multiply(product.handle, made.product, alpha, p.b.data, made.a.handle, p.a.data,
                 made.b.handle, beta, p.y.data, made.y.handle, p.y.data, made.y.handle,
                 &choice.algorithm, product.workspace, choice.workspace, product.stream),
        "cublasLtMatmul");
}

BlasChoice Blas::fastest(const WatchedThread& watched, const Product& product) {
  using Clock = std::chrono::steady_clock;
  constexpr int repeats = 5;
  auto best = Clock::duration::max();
  const auto finish = [&] {
    check(driver_api().stream_synchronize(watched, product.stream), "cuStreamSynchronize");
  };
  BlasChoice chosen = product.made->choices.front();
  for (const BlasChoice& choice : product.made->choices) {
    Clock::time_point begin;
    for (int i = 0; i <= repeats; ++i) {
      queue(&watched, product, choice);
      if (i == 0) {  // it loads the kernel
        finish();
        begin = Clock::now();
      }
    }
    finish();
    if (const auto took = Clock::now() - begin; took < best) {
      best = took;
      chosen = choice;
    }
  }
  return chosen;
}

bool Blas::finds(const ProductArguments& p, const ProductFactors& factors) {
  const std::lock_guard lock(mutex_);
  return !prepared(p, factors)->choices.empty();
}

bool Blas::multiply(StreamHandle stream, const ProductArguments& p, void* workspace,
                    std::size_t bytes, const ProductFactors& factors) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Prepared> made = prepared(p, factors);
  if (made->choices.empty() || made->choices.front().workspace > bytes) {
    return false;
  }
  const Product product = {handle_, stream, p, factors, made, workspace};
  // A product that is made several times must not add to its result.
  if (made->choices.size() > 1 && !p.accumulate && bytes >= workspace_bytes) {
    made->choices = {watch_.call("cublasLtMatmul", [product](const WatchedThread& watched) {
      return fastest(watched, product);
    })};
    made->loaded = true;
  }
  if (!made->loaded) {
    watch_.call("cublasLtMatmul", [product](const WatchedThread& watched) {
      queue(&watched, product, product.made->choices.front());
      return true;
    });
    made->loaded = true;
    return true;
  }
  queue(nullptr, product, made->choices.front());
  return true;
}

}  // namespace tessera::cuda
