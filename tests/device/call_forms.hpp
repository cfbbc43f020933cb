// Collectives on memory of ranks, for comparing those of devices with the host's. Include it after
// the imports of tessera.base, tessera.tensor, tessera.collective and tessera.ops.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tessera::testing {

/// A call on `source` and `destination`, which have elements of the type.
struct Form {
  const char* name;
  std::function<void(collective::Communicator&, std::byte* source, std::byte* destination,
                     std::int64_t count, DType dtype)>
      call;
  bool in_place = false;
  bool reduces = false;
};

inline std::vector<std::int64_t> sent(const collective::Communicator& c, std::int64_t count) {
  std::vector<std::int64_t> counts;
  for (int to = 0; to < c.size(); ++to) {
    counts.push_back((c.rank() + 2 * to) % 3 == 0 ? 0 : count / (1 + (c.rank() + to) % 3));
  }
  return counts;
}
inline std::vector<std::int64_t> received(const collective::Communicator& c, std::int64_t count) {
  std::vector<std::int64_t> counts;
  for (int from = 0; from < c.size(); ++from) {
    counts.push_back((from + 2 * c.rank()) % 3 == 0 ? 0 : count / (1 + (from + c.rank()) % 3));
  }
  return counts;
}

inline std::byte* row(std::byte* base, std::int64_t row, std::int64_t count, DType dtype) {
  return base + row * count * static_cast<std::int64_t>(size_of(dtype));
}

inline std::vector<Form> forms() {
  std::vector<Form> all;
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::product}) {
    all.push_back({"all_reduce",
                   [op](collective::Communicator& c, auto* from, auto* to, auto n, auto type) {
                     c.all_reduce(from, to, n, type, op);
                   },
                   false, true});
  }
  const std::vector<Form> others = {
      {"all_reduce in place",
       [](collective::Communicator& c, auto*, auto* x, auto n, auto type) {
         c.all_reduce(x, x, n, type);
       },
       true, true},
      {"all_gather", [](collective::Communicator& c, auto* from, auto* to, auto n,
                        auto type) { c.all_gather(from, to, n, type); }},
      {"all_gather in place",
       [](collective::Communicator& c, auto*, auto* x, auto n, auto type) {
         c.all_gather(row(x, c.rank(), n, type), x, n, type);
       },
       true},
      {"reduce_scatter",
       [](collective::Communicator& c, auto* from, auto* to, auto n, auto type) {
         c.reduce_scatter(from, to, n, type);
       },
       false, true},
      {"reduce_scatter in place",
       [](collective::Communicator& c, auto*, auto* x, auto n, auto type) {
         c.reduce_scatter(x, row(x, c.rank(), n, type), n, type);
       },
       true, true},
      {"all_to_all", [](collective::Communicator& c, auto* from, auto* to, auto n,
                        auto type) { c.all_to_all(from, to, n, type); }},
      {"all_to_all with counts",
       [](collective::Communicator& c, auto* from, auto* to, auto n, auto type) {
         c.all_to_all(from, sent(c, n), to, received(c, n), type);
       }},
      {"broadcast",
       [](collective::Communicator& c, auto*, auto* x, auto n, auto type) {
         c.broadcast(x, n, type, c.size() - 1);
       },
       true},
      {"scatter", [](collective::Communicator& c, auto* from, auto* to, auto n,
                     auto type) { c.scatter(from, to, n, type, 0); }},
      {"gather", [](collective::Communicator& c, auto* from, auto* to, auto n,
                    auto type) { c.gather(from, to, n, type, 0); }},
      {"reduce",
       [](collective::Communicator& c, auto* from, auto* to, auto n, auto type) {
         c.reduce(from, to, n, type, ReduceOp::sum, 0);
       },
       false, true},
      {"shift", [](collective::Communicator& c, auto* from, auto* to, auto n,
                   auto type) { c.shift(from, to, n, type, 1); }},
      {"shift in place",
       [](collective::Communicator& c, auto*, auto* x, auto n, auto type) {
         c.shift(x, x, n, type, -1);
       },
       true},
      {"segments",
       [](collective::Communicator& c, auto* from, auto* to, auto n, auto type) {
         const std::int64_t chunk = (n + c.size() - 1) / c.size();
         const std::vector<collective::Segment> segments = {
             {from, to, chunk, n}, {row(from, 1, n, type), row(to, 1, n, type), n, n}};
         c.all_gather(segments, type);
       }},
      {"reduced segments",
       [](collective::Communicator& c, auto* from, auto* to, auto n, auto type) {
         const std::int64_t chunk = (n + c.size() - 1) / c.size();
         const std::vector<collective::Segment> segments = {
             {from, to, chunk, n}, {row(from, 1, n, type), row(to, 1, n, type), n, n}};
         c.reduce_scatter(segments, type);
       },
       false, true},
      {"all_reduce of segments",
       [](collective::Communicator& c, auto*, auto* x, auto n, auto type) {
         const std::vector<collective::Segment> segments = {
             {x, x, 0, n}, {row(x, 1, n, type), row(x, 1, n, type), 0, n}};
         c.all_reduce_async(segments, type).wait();
       },
       true, true},
      {"reduced segments of some terms",
       [](collective::Communicator& c, auto* from, auto* to, auto n, auto type) {
         const std::int64_t chunk = (n + c.size() - 1) / c.size();
         const std::vector<collective::Segment> segments = {
             {from, to, chunk, n}, {row(from, 1, n, type), row(to, 1, n, type), n, n}};
         c.reduce_scatter(segments, type, {.terms = {.first = c.size() - 1, .count = 1}});
       },
       false, true},
      {"all_reduce of segments of some terms",
       [](collective::Communicator& c, auto*, auto* x, auto n, auto type) {
         const std::vector<collective::Segment> segments = {
             {x, x, 0, n}, {row(x, 1, n, type), row(x, 1, n, type), 0, n}};
         const int most = std::max(c.size() - 1, 1);
         c.all_reduce_async(segments, type, {.terms = {.first = 0, .count = most}}).wait();
       },
       true, true},
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

/// Bytes of the rank's memory before a call: values of the type that no two places share, small.
inline Tensor filled(const collective::World& world, std::int64_t elements, DType dtype) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    values.push_back(static_cast<float>((i * 7 + world.rank() * 31) % 97) * 0.37F - 11.0F);
  }
  return ops::cast(from_values(std::span<const float>(values), {elements}), dtype);
}

inline std::vector<double> after(collective::Communicator& c, const Form& form,
                                 const Tensor& source, const Tensor& destination,
                                 std::int64_t count) {
  form.call(c, static_cast<std::byte*>(ops::data_of(source)),
            static_cast<std::byte*>(ops::data_of(destination)), count, source.dtype());
  return to_doubles(destination);
}

}  // namespace tessera::testing
