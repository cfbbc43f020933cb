// Attention with masks, positions and a cache against loops over numbers; position embeddings
// against their formula.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;

using namespace tessera;
using tessera::testing::error_of;

namespace {

using Values = std::vector<double>;

Tensor pattern(const Dims& shape, double phase) {
  const Tensor x = empty(shape, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = std::sin(1.3 * static_cast<double>(i) + phase);
  }
  return x;
}

void fill(nn::Module& module) {
  nn::materialize(module);
  const NoGrad no_grad;
  double phase = 0.2;
  for (const nn::ParameterPointer& p : nn::all_parameters(module)) {
    ops::copy_(p->value, ops::mul_scalar(pattern(p->value.shape(), phase += 0.7), 0.5));
  }
}

/// For ranks, which are threads: these make no checks of their own. Infinite where sizes differ.
double distance(const Values& a, const Values& b) {
  double difference = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return difference;
}

double largest(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  return distance(a, b);
}

constexpr std::int64_t batches = 2, tokens = 5, width = 8, heads = 4, kv_heads = 2, extent = 2;

nn::AttentionOptions options() {
  return {.dim = width,
          .heads = heads,
          .kv_heads = kv_heads,
          .bias = true,
          .output_bias = true,
          .dtype = DType::f64};
}

/// y[o] = sum_i w[o, i] x[i] + b[o].
Values project(nn::Module& module, const std::string& name, const Values& x) {
  for (const auto& [key, child] : module.children()) {
    if (key == name) {
      const Values w = to_doubles(child->parameter("weight")->value);
      Values y = to_doubles(child->parameter("bias")->value);
      for (std::size_t o = 0; o < y.size(); ++o) {
        for (std::size_t i = 0; i < x.size(); ++i) {
          y[o] += w[o * x.size() + i] * x[i];
        }
      }
      return y;
    }
  }
  return {};
}

/// What is added to the score of query t and key s of a head; -infinity: it is not seen.
using Score = std::function<double(std::int64_t head, std::int64_t t, std::int64_t s)>;
constexpr double unseen = -std::numeric_limits<double>::infinity();

/// Rotates pairs (i, i + extent / 2) by position * theta^(-2i / extent).
void rotate(Values& x, double position, double theta) {
  constexpr std::size_t half = extent / 2;
  for (std::size_t begin = 0; begin < x.size(); begin += extent) {
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(theta, -2.0 * static_cast<double>(i) / extent);
      const double a = x[begin + i];
      const double b = x[begin + half + i];
      x[begin + i] = a * std::cos(angle) - b * std::sin(angle);
      x[begin + half + i] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
}

/// What an attention may have besides scores and rotation.
struct Further {
  Values sinks = {};                                       // of the heads
  std::function<double(std::int64_t t)> growth = nullptr;  // of queries
};

Values expected(nn::Module& module, const Tensor& input, const Score& score, double theta = 0,
                const std::vector<std::int64_t>& positions = {}, const Further& further = {}) {
  Values result;
  const Values all = to_doubles(input);
  for (std::int64_t b = 0; b < batches; ++b) {
    std::vector<Values> q, k, v;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto begin = all.begin() + (b * tokens + t) * width;
      const Values x(begin, begin + width);
      q.push_back(project(module, "q_proj", x));
      k.push_back(project(module, "k_proj", x));
      v.push_back(project(module, "v_proj", x));
      if (theta > 0) {
        const auto position =
            static_cast<double>(positions.empty() ? t : positions[static_cast<std::size_t>(t)]);
        rotate(q.back(), position, theta);
        rotate(k.back(), position, theta);
      }
      for (double& feature : q.back()) {
        feature *= further.growth ? further.growth(t) : 1;
      }
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      Values attended(static_cast<std::size_t>(heads * extent));
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t g = h * kv_heads / heads;
        Values weights;
        for (std::int64_t s = 0; s < tokens; ++s) {
          double dot = 0;
          for (std::int64_t i = 0; i < extent; ++i) {
            dot += q[static_cast<std::size_t>(t)][static_cast<std::size_t>(h * extent + i)] *
                   k[static_cast<std::size_t>(s)][static_cast<std::size_t>(g * extent + i)];
          }
          weights.push_back(
              std::exp(dot / std::sqrt(static_cast<double>(extent)) + score(h, t, s)));
        }
        const double sink =
            further.sinks.empty() ? 0 : std::exp(further.sinks[static_cast<std::size_t>(h)]);
        const double sum = std::accumulate(weights.begin(), weights.end(), sink);
        for (std::int64_t s = 0; s < tokens; ++s) {
          for (std::int64_t i = 0; i < extent; ++i) {
            attended[static_cast<std::size_t>(h * extent + i)] +=
                weights[static_cast<std::size_t>(s)] / sum *
                v[static_cast<std::size_t>(s)][static_cast<std::size_t>(g * extent + i)];
          }
        }
      }
      const Values y = project(module, "o_proj", attended);
      result.insert(result.end(), y.begin(), y.end());
    }
  }
  return result;
}

double causal(std::int64_t, std::int64_t t, std::int64_t s) { return s <= t ? 0 : unseen; }

Tensor input() { return pattern({batches, tokens, width}, 0.4); }

}  // namespace

TEST_CASE("attention, causal or not, with and without masks") {
  for (const bool is_causal : {true, false}) {
    nn::AttentionOptions chosen = options();
    chosen.causal = is_causal;
    nn::Attention attention(chosen);
    fill(attention);
    const Tensor x = input();
    const auto base = [&](std::int64_t h, std::int64_t t, std::int64_t s) {
      return is_causal ? causal(h, t, s) : 0.0;
    };
    CHECK(largest(to_doubles(attention(x)), expected(attention, x, base)) < 1e-12);
    // Every second key is hidden, but the query's own.
    const Tensor sees = empty({tokens, tokens}, DType::boolean);
    const Tensor added = empty({heads, tokens, tokens}, DType::f64);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t s = 0; s < tokens; ++s) {
        sees.data<bool>()[t * tokens + s] = s == t || s % 2 == 0;
        for (std::int64_t h = 0; h < heads; ++h) {
          added.data<double>()[(h * tokens + t) * tokens + s] =
              0.3 * static_cast<double>(h * s - t);
        }
      }
    }
    CHECK(largest(to_doubles(attention.by_name({{"hidden_states", x}, {"mask", sees}})[0]),
                  expected(attention, x, [&](std::int64_t h, std::int64_t t, std::int64_t s) {
                    return s == t || s % 2 == 0 ? base(h, t, s) : unseen;
                  })) < 1e-12);
    CHECK(largest(to_doubles(attention({x, added})[0]),
                  expected(attention, x, [&](std::int64_t h, std::int64_t t, std::int64_t s) {
                    return base(h, t, s) + 0.3 * static_cast<double>(h * s - t);
                  })) < 1e-12);
  }
}

TEST_CASE("attention rotates by positions that are counted or given") {
  nn::AttentionOptions chosen = options();
  chosen.rotary.theta = 50;
  nn::Attention attention(chosen);
  fill(attention);
  const Tensor x = input();
  CHECK(largest(to_doubles(attention(x)), expected(attention, x, causal, 50)) < 1e-12);
  const std::vector<std::int64_t> positions = {0, 1, 0, 1, 2};
  const Tensor given = from_values(std::span<const std::int64_t>(positions), {tokens});
  CHECK(largest(to_doubles(attention.by_name({{"hidden_states", x}, {"positions", given}})[0]),
                expected(attention, x, causal, 50, positions)) < 1e-12);
}

namespace {

/// Where rows of 5 tokens have documents of 2 and 3: their first tokens, and the positions.
const std::vector<std::int64_t> two_documents = {0, 0, 2, 2, 2};
const std::vector<std::int64_t> their_positions = {0, 1, 0, 1, 2};

Tensor of_rows(const std::vector<std::int64_t>& row) {
  std::vector<std::int64_t> all;
  for (std::int64_t b = 0; b < batches; ++b) {
    all.insert(all.end(), row.begin(), row.end());
  }
  return from_values(std::span<const std::int64_t>(all), {batches, tokens});
}

}  // namespace

TEST_CASE("a head's sink takes a share of its probabilities, and learns from it") {
  for (const std::int64_t window : {0, 2}) {
    nn::AttentionOptions chosen = options();
    chosen.sinks = true;
    chosen.window = window;
    nn::Attention attention(chosen);
    fill(attention);
    const Tensor x = input();
    const auto sinks = attention.parameter("sinks");
    const Further further{.sinks = to_doubles(sinks->value)};
    const auto seen = [&](std::int64_t, std::int64_t t, std::int64_t s) {
      return s <= t && (window == 0 || s > t - window) ? 0.0 : unseen;
    };
    CHECK(largest(to_doubles(attention(x)), expected(attention, x, seen, 0, {}, further)) < 1e-12);
    const Tensor documents = of_rows(two_documents);
    const Tensor y = attention.by_name({{"hidden_states", x}, {"documents", documents}})[0];
    CHECK(largest(to_doubles(y), expected(
                                     attention, x,
                                     [&](std::int64_t h, std::int64_t t, std::int64_t s) {
                                       return two_documents[static_cast<std::size_t>(t)] <= s
                                                  ? seen(h, t, s)
                                                  : unseen;
                                     },
                                     0, {}, further)) < 1e-12);
    // Gradients against differences of the loss.
    const Tensor factors = pattern({batches, tokens, width}, 1.1);
    const auto loss = [&] { return ops::sum(ops::mul(attention(x), factors)); };
    backward(loss());
    for (const nn::ParameterPointer& parameter : nn::all_parameters(attention)) {
      const Values gradient = to_doubles(parameter->value.grad());
      const NoGrad no_grad;
      for (const std::int64_t i : {std::int64_t{0}, parameter->value.numel() - 1}) {
        double& value = parameter->value.data<double>()[i];
        const double before = value;
        constexpr double step = 1e-5;
        value = before + step;
        const double above = to_doubles(loss())[0];
        value = before - step;
        const double below = to_doubles(loss())[0];
        value = before;
        INFO(parameter->name << "[" << i << "]");
        CHECK(std::abs(gradient[static_cast<std::size_t>(i)] - (above - below) / (2 * step)) <
              1e-8);
      }
    }
    CHECK_THAT(error_of([&] { attention({x, full({tokens, tokens}, 1, DType::boolean)}); }),
               Catch::Contains("chunks or sinks takes no mask"));
  }
}

TEST_CASE("queries grow with their positions, counted, given or after those of a cache") {
  nn::AttentionOptions chosen = options();
  chosen.rotary.theta = 50;
  chosen.growth = {.scale = 0.7, .period = 2, .first = 1};
  nn::Attention attention(chosen);
  fill(attention);
  const Tensor x = input();
  const auto growth_at = [](std::int64_t position) {
    return 1 + 0.7 * std::log(1 + std::floor(static_cast<double>(position + 1) / 2));
  };
  const Values whole = expected(attention, x, causal, 50, {}, {.growth = growth_at});
  CHECK(largest(to_doubles(attention(x)), whole) < 1e-12);
  const auto of_documents = [&](std::int64_t t) {
    return growth_at(their_positions[static_cast<std::size_t>(t)]);
  };
  const Tensor given = of_rows(their_positions);
  CHECK(largest(to_doubles(attention.by_name({{"hidden_states", x}, {"positions", given}})[0]),
                expected(attention, x, causal, 50, their_positions, {.growth = of_documents})) <
        1e-12);
  const NoGrad no_grad;
  nn::AttentionCache cache;
  attention.set_cache(&cache);
  const Tensor first = attention(ops::contiguous(ops::narrow(x, 1, 0, 2)));
  const Tensor rest = attention(ops::contiguous(ops::narrow(x, 1, 2, tokens - 2)));
  CHECK(largest(to_doubles(ops::cat(Tensors{first, rest}, 1)), whole) < 1e-12);
  chosen.growth.period = 0;
  CHECK_THAT(error_of([&] { const nn::Attention refused(chosen); }),
             Catch::Contains("after a period of at least one position"));
}

TEST_CASE("a query sees keys of its own chunk only") {
  for (const bool sinks : {false, true}) {
    nn::AttentionOptions chosen = options();
    chosen.chunk = 2;
    chosen.sinks = sinks;
    nn::Attention attention(chosen);
    fill(attention);
    const Tensor x = input();
    const Further further{.sinks =
                              sinks ? to_doubles(attention.parameter("sinks")->value) : Values()};
    const auto same_chunk = [](std::int64_t h, std::int64_t t, std::int64_t s) {
      return t / 2 == s / 2 ? causal(h, t, s) : unseen;
    };
    const Values whole = expected(attention, x, same_chunk, 0, {}, further);
    CHECK(largest(to_doubles(attention(x)), whole) < 1e-12);
    // Chunks of a document begin with it.
    const Tensor documents = of_rows(two_documents);
    const Tensor positions = of_rows(their_positions);
    const std::vector<std::int64_t> begins = {0, 0, 2, 2, 4};
    CHECK(largest(to_doubles(attention({x, Tensor(), positions, documents})[0]),
                  expected(
                      attention, x,
                      [&](std::int64_t h, std::int64_t t, std::int64_t s) {
                        return s >= begins[static_cast<std::size_t>(t)] ? causal(h, t, s) : unseen;
                      },
                      0, {}, further)) < 1e-12);
    for (const Tensors& refused :
         {Tensors{x, Tensor(), positions}, Tensors{x, full({tokens, tokens}, 1, DType::boolean)}}) {
      CHECK_THAT(error_of([&] { attention(refused); }),
                 Catch::Contains("an attention in chunks takes no mask, and no positions but"));
    }
    // With a cache, whatever comes at once.
    const NoGrad no_grad;
    nn::AttentionCache cache;
    attention.set_cache(&cache);
    for (const std::int64_t at_once : {1, 2, 3, 4}) {
      cache.clear();
      std::vector<Tensor> parts;
      for (std::int64_t begin = 0; begin < tokens; begin += at_once) {
        parts.push_back(attention(
            ops::contiguous(ops::narrow(x, 1, begin, std::min(at_once, tokens - begin)))));
      }
      CHECK(largest(to_doubles(ops::cat(parts, 1)), whole) < 1e-12);
    }
  }
}

TEST_CASE("no query sees another document, in each form of attention") {
  for (const bool is_causal : {true, false}) {
    nn::AttentionOptions chosen = options();
    chosen.causal = is_causal;
    chosen.dropout = 1e-9;  // the form with dropout, of which nothing falls
    for (const bool training : {false, true}) {
      nn::Attention attention(chosen);
      fill(attention);
      attention.train(training);
      const Tensor x = input();
      std::vector<std::int64_t> first;
      for (std::int64_t row = 0; row < x.size(0); ++row) {
        for (std::int64_t t = 0; t < tokens; ++t) {
          first.push_back(t < 2 ? 0 : 2);
        }
      }
      const Tensor documents =
          from_values(std::span<const std::int64_t>(first), {x.size(0), tokens});
      const Tensor y = attention.by_name({{"hidden_states", x}, {"documents", documents}})[0];
      for (const auto& [begin, count] :
           {std::pair<std::int64_t, std::int64_t>{0, 2}, {2, tokens - 2}}) {
        const auto part = [&, from = begin, length = count](const Tensor& of) {
          return ops::contiguous(ops::narrow(of, 1, from, length));
        };
        CHECK(largest(to_doubles(part(y)), to_doubles(attention(part(x)))) < 1e-12);
      }
      const Tensor mask = full({tokens, tokens}, 1, DType::boolean);
      CHECK_THAT(error_of([&] { attention({x, mask, Tensor(), documents}); }),
                 Catch::Contains("takes no mask"));
    }
  }
}

TEST_CASE("attention with a cache continues a sequence, causal or with a mask") {
  nn::AttentionOptions chosen = options();
  chosen.rotary.theta = 50;
  nn::Attention attention(chosen);
  fill(attention);
  const NoGrad no_grad;
  const Tensor x = input();
  const Tensor whole = attention(x);
  nn::AttentionCache cache;
  attention.set_cache(&cache);
  for (const bool masked : {false, true}) {
    for (const std::int64_t first : {3, 1}) {
      cache.clear();
      for (const auto& [begin, count] :
           {std::pair<std::int64_t, std::int64_t>{0, first}, {first, tokens - first}}) {
        const Tensor part = ops::contiguous(ops::narrow(x, 1, begin, count));
        const Tensor mask = masked ? full({count, begin + count}, 1, DType::boolean) : Tensor();
        const Tensor y = attention({part, mask})[0];
        CHECK(cache.length() == begin + count);
        CHECK(largest(to_doubles(y),
                      to_doubles(ops::contiguous(ops::narrow(whole, 1, begin, count)))) < 1e-12);
      }
    }
  }
  CHECK(error_of([&] { attention(pattern({batches + 1, 1, width}, 0.1)); })
            .find("attention cache: keys do not fit those before (expected [2, T, 2, 2], got [3, "
                  "1, 2, 2]); clear the cache for another batch") != std::string::npos);
  cache.clear();
  CHECK(cache.length() == 0);
  attention(pattern({batches + 1, 1, width}, 0.1));
  attention.set_cache(nullptr);
  CHECK(largest(to_doubles(attention(x)), to_doubles(whole)) == 0);
}

TEST_CASE("a cache that is split over ranks gives the attention of one rank") {
  struct Kind {
    std::int64_t window = 0;
    double softcap = 0;
    std::int64_t kv_heads = 2;
    bool causal = true;
    std::int64_t chunk = 0;
    bool sinks = false;
  };
  // Windows shorter and longer than what comes at once, than a block, and than a round of blocks.
  const Kind kinds[] = {{},
                        {.kv_heads = 1},
                        {.window = 3},
                        {.window = 70, .softcap = 1.5},
                        {.window = 250},
                        {.softcap = 0.7, .kv_heads = 4},
                        {.causal = false},
                        {.chunk = 5, .sinks = true},
                        {.chunk = 100},
                        {.window = 70, .sinks = true}};
  // Tokens at once, and whether each rank has its chunk of them.
  const std::pair<std::int64_t, bool> calls[] = {{12, true}, {1, false},  {144, true}, {5, false},
                                                 {1, false}, {132, true}, {24, true},  {1, false}};
  constexpr std::int64_t all = 320;
  for (const Kind& kind : kinds) {
    const Tensor q = pattern({2, all, 4, 3}, 0.1);
    const Tensor k = pattern({2, all, kind.kv_heads, 3}, 0.5);
    const Tensor v = pattern({2, all, kind.kv_heads, 5}, 0.9);
    const auto part = [](const Tensor& x, std::int64_t begin, std::int64_t count) {
      return ops::contiguous(ops::narrow(x, 1, begin, count));
    };
    const Tensor sinks = kind.sinks ? pattern({4}, 0.3) : Tensor();
    /// The whole attention of the first tokens.
    const auto whole = [&](std::int64_t end) {
      nn::InnerAttention attention({.dim = 12,
                                    .heads = 4,
                                    .kv_heads = kind.kv_heads,
                                    .window = kind.window,
                                    .softcap = kind.softcap,
                                    .sinks = kind.sinks});
      Tensor begins;
      if (kind.chunk > 0) {
        begins = empty({2, end}, DType::i64);
        for (std::int64_t i = 0; i < 2 * end; ++i) {
          begins.data<std::int64_t>()[i] = i % end / kind.chunk * kind.chunk;
        }
      }
      return attention(
          {part(q, 0, end), part(k, 0, end), part(v, 0, end), Tensor(), begins, sinks})[0];
    };
    for (const int ranks : {1, 2, 3, 4}) {
      INFO("window " << kind.window << ", softcap " << kind.softcap << ", " << kind.kv_heads
                     << " heads of keys, causal " << kind.causal << ", chunk " << kind.chunk << ", "
                     << ranks << " ranks");
      std::vector<double> differences(static_cast<std::size_t>(ranks), 1);
      std::vector<std::int64_t> kept(static_cast<std::size_t>(ranks), 0);
      collective::run_threads(ranks, [&](collective::World& world) {
        const DeviceMesh mesh = DeviceMesh::make({"context"}, {ranks});
        nn::AttentionCache cache(0);
        double& difference = differences[static_cast<std::size_t>(world.rank())];
        for (const bool again : {false, true}) {
          cache.clear();
          difference = again ? difference : 0;
          std::int64_t begin = 0;
          for (const auto& [count, chunks] : calls) {
            const Layout layout =
                Layout::make(mesh, {chunks ? Placement(Shard(1)) : Placement(Replicate())});
            const auto placed = [&, first = begin, length = count](const Tensor& x) {
              return distribute(part(x, first, length), layout);
            };
            const Tensor y = cache.attend(
                placed(q), placed(k), placed(v),
                {.window = kind.window, .softcap = kind.softcap, .causal = kind.causal}, kind.chunk,
                sinks);
            difference = y.layout() == layout ? difference : 1;
            const std::int64_t end = begin + count;
            const Tensor expected =
                kind.causal ? part(whole(end), begin, count)
                            : ops::transpose(ops::scaled_dot_product_attention(
                                                 ops::transpose(part(q, begin, count), 1, 2),
                                                 ops::transpose(part(k, 0, end), 1, 2),
                                                 ops::transpose(part(v, 0, end), 1, 2)),
                                             1, 2);
            difference = std::max(difference, distance(to_doubles(full_tensor(y)),
                                                       to_doubles(ops::contiguous(expected))));
            begin = end;
          }
          difference = cache.length() == all ? difference : 1;
        }
        kept[static_cast<std::size_t>(world.rank())] = cache.bytes();
      });
      for (const double difference : differences) {
        CHECK(difference < 1e-12);
      }
      CHECK(*std::ranges::max_element(kept) ==
            2 * 256 * kind.kv_heads * (3 + 5) * 8 * (ranks == 1 ? 2 : 1));
    }
  }
}

TEST_CASE("what a split cache cannot take is refused") {
  std::vector<std::vector<std::string>> errors(2);
  collective::run_threads(2, [&](collective::World& world) {
    const DeviceMesh mesh = DeviceMesh::make({"context"}, {2});
    const Layout chunks = Layout::make(mesh, {Shard(1)});
    const Tensor x = pattern({1, 4, 2, 2}, 0.3);
    const Tensor split = distribute(x, chunks);
    const Tensor whole = distribute(x, Layout::replicated(mesh));
    const Tensor odd = distribute(pattern({1, 3, 2, 2}, 0.3), chunks);
    nn::AttentionCache cache(0);
    nn::AttentionCache unsplit;
    nn::Attention attention(options());
    fill(attention);
    attention.set_cache(&cache);
    const auto append = [](nn::AttentionCache& to, Tensor keys) {
      Tensor values = keys;
      to.append(keys, values);
    };
    errors[static_cast<std::size_t>(world.rank())] = {
        error_of([&] { cache.attend(split, whole, split, {}); }),
        error_of([&] { cache.attend(odd, odd, odd, {}); }), error_of([&] { append(cache, whole); }),
        error_of([&] { append(unsplit, split); }),
        error_of([&] { attention({input(), full({tokens, tokens}, 1, DType::boolean)}); })};
  });
  for (const std::vector<std::string>& of_rank : errors) {
    REQUIRE(of_rank.size() == 5);
    CHECK_THAT(of_rank[0],
               Catch::Contains("do not have equal chunks of the tokens along axis 'context'"));
    CHECK_THAT(of_rank[1], Catch::Contains("do not have equal chunks"));
    CHECK_THAT(of_rank[2], Catch::Contains("call attend()"));
    CHECK_THAT(of_rank[3], Catch::Contains("tokens are split along axis 'context'"));
    CHECK_THAT(of_rank[4], Catch::Contains("attention takes no mask and no documents"));
  }
}

TEST_CASE("attention drops probabilities while training only") {
  nn::AttentionOptions chosen = options();
  chosen.dropout = 0.5;
  nn::Attention attention(chosen);
  fill(attention);
  const Tensor x = input();
  const Values all = expected(attention, x, causal);
  CHECK(largest(to_doubles(attention(x)), all) > 1e-3);
  attention.train(false);
  CHECK(largest(to_doubles(attention(x)), all) < 1e-12);
}

TEST_CASE("sizes of attention that do not fit are refused") {
  const auto refused = [](const std::function<void(nn::AttentionOptions&)>& change) {
    nn::AttentionOptions chosen = options();
    change(chosen);
    return error_of([&] { const nn::Attention attention(chosen); });
  };
  CHECK(refused([](auto& o) { o.heads = 0; }) == "attention: heads must be at least 1 (got 0)");
  CHECK(refused([](auto& o) { o.kv_heads = 3; }) ==
        "attention: kv_heads must divide heads (4 heads, 3 kv_heads)");
  CHECK(refused([](auto& o) { o.dim = 10; }).find("heads must divide dim") != std::string::npos);
  CHECK(refused([](auto& o) {
          o.head_dim = 3;
          o.rotary.theta = 50;
        }) ==
        "attention: the rotary embedding needs an even number of a head's features (expected at "
        "most 3, got 3)");
}

TEST_CASE("position embeddings are added by counted and by given positions") {
  const Tensor x = pattern({2, 3, 4}, 0.3);
  const std::vector<std::int64_t> given = {5, 0, 5};
  for (const auto kind :
       {nn::PositionEmbedding::Kind::learned, nn::PositionEmbedding::Kind::sinusoidal}) {
    nn::PositionEmbedding layer(6, 4, kind, 0.5, DType::f64);
    fill(layer);
    Values table;
    if (kind == nn::PositionEmbedding::Kind::learned) {
      table = to_doubles(layer.parameter("weight")->value);
    } else {
      CHECK(layer.parameters().empty());
      for (int p = 0; p < 6; ++p) {
        for (const double rate : {1.0, 0.01}) {  // 10000^0 and 10000^(-2/4)
          table.push_back(std::sin(p * rate));
          table.push_back(std::cos(p * rate));
        }
      }
      CHECK(largest(to_doubles(layer.buffer("table")->value), table) < 1e-14);
      CHECK(!layer.buffer("table")->saved);
    }
    Values counted = to_doubles(x);
    Values at_given = counted;
    for (std::size_t i = 0; i < counted.size(); ++i) {
      const std::size_t t = i / 4 % 3;
      counted[i] += table[t * 4 + i % 4];
      at_given[i] += table[static_cast<std::size_t>(given[t]) * 4 + i % 4];
    }
    CHECK(largest(to_doubles(layer(x)), counted) < 1e-14);
    const Tensor positions = from_values(std::span<const std::int64_t>(given), {3});
    CHECK(largest(to_doubles(layer({x, positions})[0]), at_given) < 1e-14);
    CHECK(error_of([&] {
            layer(pattern({1, 7, 4}, 0));
          }).find("expected at most 6 positions, got 7") != std::string::npos);
  }
  CHECK(error_of([] {
          const nn::PositionEmbedding odd(6, 3, nn::PositionEmbedding::Kind::sinusoidal);
        }).find("needs an even dim") != std::string::npos);
}
