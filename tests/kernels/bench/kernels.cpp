// Prints, for the shapes of a small Llama, how near each kernel comes to a ceiling measured in the
// same run: the largest rate of float products (gemm) for what computes, a copy of as many bytes
// for what streams.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "attention/kernels/attention.hpp"
#include "attention/kernels/rotary.hpp"
#include "attention/kernels/swiglu.hpp"
#include "loss/kernels/cross_entropy.hpp"
#include "matmul/kernels/gemm.hpp"
#include "norm/kernels/norm.hpp"
#include "optimizer/functions/adam.hpp"
#include "optimizer/kernels/update.hpp"
#include "pointwise/functions/arithmetic.hpp"
#include "pointwise/functions/unary.hpp"
#include "pointwise/kernels/apply.hpp"
#include "reduce/kernels/reduce.hpp"
#include "shared/kernels/parallel.hpp"
#include "shared/kernels/philox.hpp"
#include "shared/kernels/workspace.hpp"

using namespace tessera::kernels;
using tessera::DType;

namespace {

/// Calls kernel(workspace) with memory that is kept from call to call, as the allocator keeps it.
template <class Kernel>
auto kept(const Kernel& kernel) {
  static std::vector<std::byte> memory;
  Workspace counting;
  kernel(counting);
  const std::size_t bytes = counting.bytes() + Workspace::kAlignment;
  if (memory.size() < bytes) memory.resize(bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  Workspace workspace(memory.data() + (-address % Workspace::kAlignment), counting.bytes());
  return kernel(workspace);
}

/// With one thread its processor time, which other processes on the machine disturb less; else the
/// wall's.
double now() {
  if (threads() == 1) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The best of several runs, in seconds; each run repeats the body for about 20 ms.
template <class Body>
double seconds(Body body) {
  const auto time = [&](int repeats) {
    const double start = now();
    for (int i = 0; i < repeats; ++i) body();
    return (now() - start) / repeats;
  };
  body();
  const int repeats = std::clamp(static_cast<int>(0.02 / (time(1) + 1e-9)), 1, 100000);
  double best = time(repeats);
  for (int run = 0; run < 4; ++run) best = std::min(best, time(repeats));
  return best;
}

std::vector<float> random_values(std::int64_t count, std::uint64_t seed) {
  std::vector<float> result(static_cast<std::size_t>(count));
  fill_uniform(RandomRange{seed, 0, 0, 0}, count, -1.0F, 1.0F, result.data());
  return result;
}

double ceiling_flops = 0.0;

void compute_line(const char* name, double flops, double time) {
  std::printf("%-46s %9.1f us %8.1f GFLOP/s  %5.1f%% of the product ceiling\n", name, time * 1e6,
              flops / time * 1e-9, 100.0 * flops / time / ceiling_flops);
}

/// `bytes` read and written by the kernel, against a copy that reads half of them and writes half.
void stream_line(const char* name, double bytes, double time) {
  const auto half = static_cast<std::size_t>(bytes / 2);
  std::vector<char> from(half, 1);
  std::vector<char> to(half);
  const double copy = seconds([&] { std::memcpy(to.data(), from.data(), half); });
  std::printf("%-46s %9.1f us %8.1f GB/s     %5.1f%% of a copy's rate\n", name, time * 1e6,
              bytes / time * 1e-9, 100.0 * copy / time);
}

template <class T, class Out>
double time_gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool trans_a = false,
                 bool trans_b = true) {
  std::vector<T> a(static_cast<std::size_t>(m * k), T(0.5F));
  std::vector<T> b(static_cast<std::size_t>(n * k), T(0.5F));
  std::vector<Out> c(static_cast<std::size_t>(m * n));
  const Gemm shape{trans_a, trans_b,         m, n, k, 1,    trans_a ? m : k,
                   0,       trans_b ? k : n, 0, n, 0, false};
  return seconds(
      [&] { kept([&](Workspace& w) { gemm(w, shape, a.data(), b.data(), c.data()); }); });
}

void bench_gemm() {
  ceiling_flops = 2e9 * 1.024 * 1.024 * 1.024 / time_gemm<float, float>(1024, 1024, 1024);
  const auto flops = [](double m, double n, double k) { return 2.0 * m * n * k; };
  compute_line("gemm f32 1024^3 (the ceiling)", flops(1024, 1024, 1024),
               time_gemm<float, float>(1024, 1024, 1024));
  compute_line("gemm f32 2048x256x256", flops(2048, 256, 256),
               time_gemm<float, float>(2048, 256, 256));
  compute_line("gemm f32 2048x704x256", flops(2048, 704, 256),
               time_gemm<float, float>(2048, 704, 256));
  compute_line("gemm f32 704x256x2048, A transposed", flops(704, 256, 2048),
               time_gemm<float, float>(704, 256, 2048, true, false));
  compute_line("gemm bf16 2048x704x256", flops(2048, 704, 256),
               time_gemm<BFloat16, BFloat16>(2048, 704, 256));
  compute_line("gemm bf16 1024^3", flops(1024, 1024, 1024),
               time_gemm<BFloat16, BFloat16>(1024, 1024, 1024));
  compute_line("gemm f64 512^3", flops(512, 512, 512), time_gemm<double, double>(512, 512, 512));
  stream_line("gemm f32 1x2048x2048 (a row)", 4.0 * 2048 * 2048,
              time_gemm<float, float>(1, 2048, 2048));
  stream_line("gemm f32 1x256x256 (a row)", 4.0 * 256 * 256, time_gemm<float, float>(1, 256, 256));
}

template <class T>
void bench_attention(const char* forward_name, const char* backward_name, const AttentionShape& s) {
  const std::int64_t heads = s.kv_heads * s.group;
  const std::int64_t q_size = s.batch * s.queries * heads * s.head_dim;
  const std::int64_t k_size = s.batch * s.keys * s.kv_heads * s.head_dim;
  const auto make = [](std::int64_t count, std::uint64_t seed) {
    std::vector<T> result(static_cast<std::size_t>(count));
    fill_uniform(RandomRange{seed, 0, 0, 0}, count, -1.0F, 1.0F, result.data());
    return result;
  };
  const auto q = make(q_size, 1);
  const auto k = make(k_size, 2);
  const auto v = make(k_size, 3);
  const auto dout = make(q_size, 4);
  std::vector<T> out(q.size()), dq(q.size()), dk(k.size()), dv(k.size());
  std::vector<float> lse(static_cast<std::size_t>(s.batch * heads * s.queries));
  const auto qs = AttentionStrides::contiguous(s.queries, heads, s.head_dim);
  const auto ks = AttentionStrides::contiguous(s.keys, s.kv_heads, s.head_dim);
  const double forward = seconds([&] {
    kept([&](Workspace& w) {
      attention_forward<T, float>(w, s, q.data(), qs, k.data(), ks, v.data(), ks, out.data(), qs,
                                  lse.data());
    });
  });
  // Only scores below the diagonal count, two products of them forward, five backward.
  const double pairs = s.queries == s.keys ? 0.5 * static_cast<double>(s.queries) *
                                                 static_cast<double>(s.queries + 1)
                                           : static_cast<double>(s.queries * s.keys);
  const double product = 2.0 * static_cast<double>(s.batch * heads * s.head_dim) * pairs;
  compute_line(forward_name, 2 * product, forward);
  const double backward = seconds([&] {
    kept([&](Workspace& w) {
      attention_backward<T, float>(
          w, s,
          {q.data(), qs, k.data(), ks, v.data(), ks, out.data(), qs, lse.data(), dout.data(), qs,
           dq.data(), qs, dk.data(), ks, dv.data(), ks});
    });
  });
  compute_line(backward_name, 5 * product, backward);
}

void bench_streams() {
  constexpr std::int64_t kRows = 2048;
  constexpr std::int64_t kDim = 256;
  constexpr std::int64_t kFfn = 704;
  const auto x = random_values(kRows * kFfn, 1);
  const auto dy = random_values(kRows * kFfn, 2);
  const auto gate = random_values(kRows * kFfn, 3);
  std::vector<float> y(x.size()), z(x.size()), rstd(kRows), mean(kRows), weight(kFfn, 1.0F),
      dweight(kFfn);
  const double narrow = 4.0 * kRows * kDim;
  const double wide = 4.0 * kRows * kFfn;
  stream_line("rms_norm forward 2048x256", 2 * narrow, seconds([&] {
                rms_norm_forward(kRows, kDim, x.data(), weight.data(), 1e-5, y.data(), rstd.data());
              }));
  stream_line("rms_norm backward 2048x256", 3 * narrow, seconds([&] {
                kept([&](Workspace& w) {
                  rms_norm_backward(w, kRows, kDim, dy.data(), x.data(), weight.data(), rstd.data(),
                                    y.data(), dweight.data());
                });
              }));
  stream_line("layer_norm forward 2048x256", 2 * narrow, seconds([&] {
                layer_norm_forward(kRows, kDim, x.data(), weight.data(), weight.data(), 1e-5,
                                   y.data(), mean.data(), rstd.data());
              }));
  stream_line("softmax forward 2048x256", 2 * narrow, seconds([&] {
                kept([&](Workspace& w) { softmax_forward(w, kRows, kDim, x.data(), y.data()); });
              }));
  const RotaryShape rotary_shape{8, 256, 8, 32, 256 * 256, 256, 32};
  stream_line("rotary 8x256x8x32", 2 * narrow,
              seconds([&] { rotary(rotary_shape, x.data(), y.data()); }));
  stream_line("swiglu forward 2048x704", 3 * wide, seconds([&] {
                swiglu_forward(kRows, kFfn, gate.data(), kFfn, x.data(), kFfn, y.data());
              }));
  stream_line("swiglu backward 2048x704", 5 * wide, seconds([&] {
                swiglu_backward(kRows, kFfn, dy.data(), gate.data(), kFfn, x.data(), kFfn, y.data(),
                                z.data());
              }));
  std::vector<std::int64_t> targets(kRows, 7);
  const CrossEntropyShape vocab{kRows, 256, 0, -100};
  stream_line("cross_entropy forward 2048x256", narrow, seconds([&] {
                cross_entropy_forward(vocab, x.data(), targets.data(), rstd.data(), mean.data());
              }));
  stream_line("cross_entropy backward 2048x256", 2 * narrow, seconds([&] {
                cross_entropy_backward(vocab, x.data(), targets.data(), mean.data(), rstd.data(),
                                       y.data());
              }));
  const std::int64_t count = kRows * kFfn;
  stream_line("add 1.4 M", 3 * wide, seconds([&] {
                binary<tessera::functions::Add>(DType::f32, count, x.data(), dy.data(), y.data());
              }));
  stream_line("gelu 1.4 M", 2 * wide, seconds([&] {
                unary<tessera::functions::Gelu>(DType::f32, count, x.data(), y.data());
              }));
  stream_line("cast f32 to bf16 1.4 M", 1.5 * wide,
              seconds([&] { cast(DType::f32, DType::bf16, count, x.data(), y.data()); }));
  const std::vector<std::int64_t> extents{kFfn, kRows}, down{1, kFfn}, across{kRows, 1};
  stream_line("transpose 2048x704", 2 * wide, seconds([&] {
                copy_strided(DType::f32, extents, x.data(), down, y.data(), across);
              }));
  stream_line("sum of all 1.4 M", wide, seconds([&] {
                kept([&](Workspace& w) {
                  reduce(w, ReduceOp::sum, DType::f32, {1, count, 1}, x.data(), y.data());
                });
              }));
  stream_line("sum over rows 2048x704", wide, seconds([&] {
                kept([&](Workspace& w) {
                  reduce(w, ReduceOp::sum, DType::f32, {1, kRows, kFfn}, x.data(), y.data());
                });
              }));
  stream_line("sum of squares 1.4 M", wide, seconds([&] {
                z[0] = static_cast<float>(kept(
                    [&](Workspace& w) { return sum_of_squares(w, DType::f32, count, x.data()); }));
              }));
  stream_line("uniform 1.4 M", wide,
              seconds([&] { fill_uniform(RandomRange{}, count, 0.0F, 1.0F, y.data()); }));
  stream_line("normal 1.4 M", wide,
              seconds([&] { fill_normal(RandomRange{}, count, 0.0F, 1.0F, y.data()); }));
  constexpr std::int64_t kParameters = 6 << 20;
  auto p = random_values(kParameters, 1);
  auto m = random_values(kParameters, 2);
  std::vector<float> v(p.size(), 1.0F);
  const auto g = random_values(kParameters, 3);
  stream_line("adamw 6.3 M", 7 * 4.0 * kParameters, seconds([&] {
                void* const states[] = {m.data(), v.data(), nullptr};
                update(tessera::functions::Adam{}, DType::f32, DType::f32, kParameters, p.data(),
                       g.data(), states);
              }));
}

}  // namespace

int main(int count, char** arguments) {
  set_threads(count > 1 ? std::atoi(arguments[1]) : 1);
  bench_gemm();
  bench_attention<float>("attention forward  8x256, 8/4 heads of 32",
                         "attention backward 8x256, 8/4 heads of 32",
                         {8, 256, 256, 4, 2, 32, 0.18, true});
  bench_attention<float>("attention forward  1x2048, 8/4 heads of 64",
                         "attention backward 1x2048, 8/4 heads of 64",
                         {1, 2048, 2048, 4, 2, 64, 0.125, true});
  bench_attention<float>("attention forward  1x1024, 4/4 heads of 128",
                         "attention backward 1x1024, 4/4 heads of 128",
                         {1, 1024, 1024, 4, 1, 128, 0.088, true});
  bench_attention<BFloat16>("attention forward  bf16 8x256, 8/4 heads of 32",
                            "attention backward bf16 8x256, 8/4 heads of 32",
                            {8, 256, 256, 4, 2, 32, 0.18, true});
  bench_streams();
}
