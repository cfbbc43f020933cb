#include "attention/kernels/attention.hpp"

#include "check.hpp"
#include "in_workspace.hpp"
#include "shared/kernels/parallel.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;

namespace {

struct Case {
  AttentionShape shape;
  std::vector<double> q, k, v, dout;
  std::vector<double> out, lse, dq, dk, dv;
};

/// Everything with loops over [batch, time, head, head_dim] arrays, in double.
void solve(Case& c) {
  const AttentionShape& s = c.shape;
  const std::int64_t heads = s.kv_heads * s.group;
  const auto row = [&](std::int64_t times, std::int64_t n, std::int64_t b, std::int64_t t,
                       std::int64_t h) {
    return static_cast<std::size_t>((b * times + t) * n + h);
  };
  const auto width = static_cast<std::size_t>(s.head_dim);
  const auto value_width = static_cast<std::size_t>(s.values());
  c.out.assign(c.dout.size(), 0.0);
  c.lse.assign(static_cast<std::size_t>(s.batch * heads * s.queries), 0.0);
  c.dq.assign(c.q.size(), 0.0);
  c.dk.assign(c.k.size(), 0.0);
  c.dv.assign(c.v.size(), 0.0);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < s.queries; ++i) {
        const std::size_t qi = row(s.queries, heads, b, i, h) * width;
        const std::size_t oi = row(s.queries, heads, b, i, h) * value_width;
        const std::int64_t last = s.upper_left ? i : i + s.keys - s.queries;
        const std::int64_t seen = s.causal ? std::clamp<std::int64_t>(last + 1, 0, s.keys) : s.keys;
        std::vector<double> p(static_cast<std::size_t>(seen));
        double sum = 0.0;
        for (std::int64_t j = 0; j < seen; ++j) {
          const std::size_t kj = row(s.keys, s.kv_heads, b, j, h / s.group) * width;
          double dot = 0.0;
          for (std::size_t d = 0; d < width; ++d) dot += c.q[qi + d] * c.k[kj + d];
          sum += p[static_cast<std::size_t>(j)] = std::exp(dot * s.scale);
        }
        c.lse[static_cast<std::size_t>((b * heads + h) * s.queries + i)] = std::log(sum);
        double delta = 0.0;
        for (std::size_t d = 0; d < value_width; ++d) {
          for (std::int64_t j = 0; j < seen; ++j) {
            c.out[oi + d] += p[static_cast<std::size_t>(j)] / sum *
                             c.v[row(s.keys, s.kv_heads, b, j, h / s.group) * value_width + d];
          }
          delta += c.out[oi + d] * c.dout[oi + d];
        }
        for (std::int64_t j = 0; j < seen; ++j) {
          const std::size_t kj = row(s.keys, s.kv_heads, b, j, h / s.group) * width;
          const std::size_t vj = row(s.keys, s.kv_heads, b, j, h / s.group) * value_width;
          const double probability = p[static_cast<std::size_t>(j)] / sum;
          double dp = 0.0;
          for (std::size_t d = 0; d < value_width; ++d) {
            dp += c.dout[oi + d] * c.v[vj + d];
            c.dv[vj + d] += probability * c.dout[oi + d];
          }
          const double ds = probability * (dp - delta) * s.scale;
          for (std::size_t d = 0; d < width; ++d) {
            c.dq[qi + d] += ds * c.k[kj + d];
            c.dk[kj + d] += ds * c.q[qi + d];
          }
        }
      }
    }
  }
}

template <class T>
void check(const AttentionShape& s) {
  using C = Compute<T>;
  const std::int64_t heads = s.kv_heads * s.group;
  const auto q = values<T>(s.batch * s.queries * heads * s.head_dim, 1, -2, 2);
  const auto k = values<T>(s.batch * s.keys * s.kv_heads * s.head_dim, 2, -2, 2);
  const auto v = values<T>(s.batch * s.keys * s.kv_heads * s.values(), 3);
  const auto dout = values<T>(s.batch * s.queries * heads * s.values(), 4);
  Case expected{s, as_double(q), as_double(k), as_double(v), as_double(dout), {}, {}, {}, {}, {}};
  solve(expected);
  const auto q_strides = AttentionStrides::contiguous(s.queries, heads, s.head_dim);
  const auto k_strides = AttentionStrides::contiguous(s.keys, s.kv_heads, s.head_dim);
  const auto out_strides = AttentionStrides::contiguous(s.queries, heads, s.values());
  const auto v_strides = AttentionStrides::contiguous(s.keys, s.kv_heads, s.values());
  std::vector<T> out(dout.size());
  std::vector<C> lse(expected.lse.size());
  in_workspace::attention_forward<T, C>(s, q.data(), q_strides, k.data(), k_strides, v.data(),
                                        v_strides, out.data(), out_strides, lse.data());
  CHECK(worst(out, expected.out) < tolerance<T>());
  CHECK(worst(lse, expected.lse) < tolerance<T>());
  std::vector<T> dq(q.size());
  std::vector<T> dk(k.size());
  std::vector<T> dv(v.size());
  in_workspace::attention_backward<T, C>(
      s, {q.data(), q_strides, k.data(), k_strides, v.data(), v_strides, out.data(), out_strides,
          lse.data(), dout.data(), out_strides, dq.data(), q_strides, dk.data(), k_strides,
          dv.data(), v_strides});
  const double loose = 4 * tolerance<T>();
  CHECK(worst(dq, expected.dq) < loose);
  CHECK(worst(dk, expected.dk) < loose);
  CHECK(worst(dv, expected.dv) < loose);
}

}  // namespace

TEMPLATE_TEST_CASE("attention agrees with loops in double", "[attention]", float, double, BFloat16,
                   Half) {
  const AttentionShape shape = GENERATE(
      AttentionShape{1, 1, 1, 1, 1, 1, 1.0, true}, AttentionShape{2, 5, 5, 1, 2, 3, 0.5, true},
      AttentionShape{1, 64, 64, 2, 1, 32, 0.2, true},
      AttentionShape{1, 67, 131, 1, 3, 20, 0.2, true},
      AttentionShape{1, 200, 200, 1, 2, 16, 0.25, true},
      AttentionShape{1, 130, 130, 1, 1, 40, 0.2, false},
      AttentionShape{2, 1, 77, 2, 2, 64, 0.125, true}, AttentionShape{2, 1, 13, 3, 1, 8, 0.3, true},
      AttentionShape{1, 1, 1000, 1, 2, 31, 0.2, true},
      AttentionShape{1, 1, 300, 2, 3, 20, 0.2, false}, AttentionShape{1, 1, 64, 1, 1, 1, 1.0, true},
      AttentionShape{1, 1, 0, 2, 1, 8, 0.3, true}, AttentionShape{1, 150, 90, 1, 1, 16, 0.25, true},
      AttentionShape{1, 33, 33, 1, 1, 128, 0.1, true},
      AttentionShape{1, 70, 20, 1, 1, 8, 0.3, false}, AttentionShape{1, 0, 20, 1, 1, 8, 0.3, true},
      AttentionShape{1, 70, 0, 1, 1, 8, 0.3, true},
      AttentionShape{1, 67, 131, 1, 3, 20, 0.2, true, true},
      AttentionShape{1, 150, 90, 2, 1, 16, 0.25, true, true},
      AttentionShape{2, 1, 77, 1, 2, 8, 0.3, true, true},
      AttentionShape{1, 67, 131, 1, 3, 20, 0.2, true, false, 33},
      AttentionShape{1, 70, 70, 2, 1, 40, 0.2, false, false, 3},
      AttentionShape{2, 1, 77, 2, 2, 12, 0.3, true, false, 31},
      AttentionShape{1, 130, 70, 1, 2, 7, 0.3, true, true, 64});
  CAPTURE(shape.queries, shape.keys, shape.head_dim, shape.group, shape.values(), shape.upper_left);
  check<TestType>(shape);
}

TEST_CASE("attention keeps its bits with more threads, and reads strided operands", "[attention]") {
  const AttentionShape s{2, 100, 100, 2, 2, 32, 0.2, true};
  // One array [batch, time, 4 q heads + 2 k heads + 2 v heads, 32], as one product gives it.
  const auto qkv = values<float>(2 * 100 * 8 * 32, 7);
  const AttentionStrides strides{100 * 8 * 32, 8 * 32, 32};
  const auto run = [&] {
    std::vector<float> results(2 * 100 * 4 * 32 + 2 * 4 * 100 + qkv.size());
    float* lse = results.data() + 2 * 100 * 4 * 32;
    float* gradient = lse + 2 * 4 * 100;
    const auto out_strides = AttentionStrides::contiguous(100, 4, 32);
    in_workspace::attention_forward<float, float>(s, qkv.data(), strides, qkv.data() + 128, strides,
                                                  qkv.data() + 192, strides, results.data(),
                                                  out_strides, lse);
    in_workspace::attention_backward<float, float>(
        s, {qkv.data(), strides, qkv.data() + 128, strides, qkv.data() + 192, strides,
            results.data(), out_strides, lse, qkv.data(), strides, gradient, strides,
            gradient + 128, strides, gradient + 192, strides});
    return results;
  };
  const auto one = run();
  set_threads(3);
  const auto three = run();
  set_threads(1);
  CHECK(one == three);
  CHECK(std::none_of(one.begin(), one.end(), [](float x) { return std::isnan(x); }));
}
