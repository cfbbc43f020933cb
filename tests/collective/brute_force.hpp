// Collectives against brute force, on the ranks that call. Include it after the imports.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "errors.hpp"

namespace collective_test {

using namespace tessera;
using namespace tessera::collective;
using tessera::testing::check;

inline constexpr DType all_types[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                                      DType::i64, DType::i32, DType::u8,   DType::boolean};

/// Small whole numbers, so that sums and products are exact in every type.
inline int value_of(int rank, std::int64_t i) { return static_cast<int>((rank * 7 + i * 3) % 4); }

using Bytes = std::vector<std::byte>;

template <class T>
void put(Bytes& bytes, std::int64_t i, T value) {
  std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
}

/// Writes a small whole number in any type; the half types by their bit patterns.
inline void put(Bytes& bytes, DType dtype, std::int64_t i, double value) {
  switch (dtype) {
    case DType::f32:
      return put(bytes, i, static_cast<float>(value));
    case DType::f64:
      return put(bytes, i, value);
    case DType::bf16: {
      const auto single = static_cast<float>(value);
      std::uint32_t bits;
      std::memcpy(&bits, &single, 4);
      return put(bytes, i, static_cast<std::uint16_t>(bits >> 16));
    }
    case DType::f16: {
      // A positive number m * 2^e with 1 <= m < 2: exponent e + 15, then ten bits of m - 1.
      if (value == 0) {
        return put(bytes, i, std::uint16_t{0});
      }
      int e = 0;
      const double m = std::frexp(value, &e) * 2;
      const auto bits =
          static_cast<std::uint16_t>((e - 1 + 15) << 10 | static_cast<int>((m - 1) * 1024));
      return put(bytes, i, bits);
    }
    case DType::i64:
      return put(bytes, i, static_cast<std::int64_t>(value));
    case DType::i32:
      return put(bytes, i, static_cast<std::int32_t>(value));
    case DType::u8:
      return put(bytes, i, static_cast<std::uint8_t>(value));
    case DType::boolean:
      return put(bytes, i, static_cast<std::uint8_t>(value != 0 ? 1 : 0));
    default:
      fail("put: a type that is only stored");
  }
}

inline Bytes make_bytes(std::int64_t count, DType dtype) {
  return Bytes(static_cast<std::size_t>(count) * size_of(dtype) + 1);  // never a null pointer
}

inline Bytes values(int rank, std::int64_t begin, std::int64_t count, DType dtype) {
  Bytes bytes = make_bytes(count, dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    put(bytes, dtype, i, value_of(rank, begin + i));
  }
  return bytes;
}

inline double reduced(int ranks, std::int64_t i, ReduceOp op, DType dtype) {
  double result = 0;
  for (int r = 0; r < ranks; ++r) {
    double x = value_of(r, i);
    if (dtype == DType::boolean) {
      x = x != 0 ? 1 : 0;
    }
    result = r == 0                    ? x
             : op == ReduceOp::max     ? std::max(result, x)
             : op == ReduceOp::min     ? std::min(result, x)
             : op == ReduceOp::product ? result * x
                                       : result + x;
  }
  return op == ReduceOp::avg ? result / ranks : result;
}

/// The reduction over ranks of elements [begin, begin + count).
inline Bytes reductions(int ranks, std::int64_t begin, std::int64_t count, ReduceOp op,
                        DType dtype) {
  Bytes bytes = make_bytes(count, dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    put(bytes, dtype, i, reduced(ranks, begin + i, op, dtype));
  }
  return bytes;
}

inline void check_reductions(Communicator& c, std::int64_t count, DType dtype, ReduceOp op) {
  const int n = c.size();
  if (op == ReduceOp::avg && (!is_floating(dtype) || (n & (n - 1)) != 0)) {
    return;  // thirds are not exact in the half types
  }
  const std::string what = std::string(name_of(op)) + " of " + std::string(name_of(dtype)) + " " +
                           std::to_string(count) + " on " + std::to_string(n);
  const Bytes own = values(c.rank(), 0, count, dtype);
  const Bytes wanted = reductions(n, 0, count, op, dtype);
  Bytes out = make_bytes(count, dtype);
  c.all_reduce(own.data(), out.data(), count, dtype, op);
  check(out == wanted, "all_reduce " + what);
  out = own;
  c.all_reduce(out.data(), out.data(), count, dtype, op);
  check(out == wanted, "all_reduce in place " + what);
  const int root = n - 1;
  out = make_bytes(count, dtype);
  c.reduce(own.data(), out.data(), count, dtype, op, root);
  check(c.rank() != root || out == wanted, "reduce " + what);

  const Bytes rows = values(c.rank(), 0, count * n, dtype);
  out = make_bytes(count, dtype);
  c.reduce_scatter(rows.data(), out.data(), count, dtype, op);
  check(out == reductions(n, count * c.rank(), count, op, dtype), "reduce_scatter " + what);
}

inline void check_moves(Communicator& c, std::int64_t count, DType dtype) {
  const int n = c.size();
  const std::string what =
      std::string(name_of(dtype)) + " " + std::to_string(count) + " on " + std::to_string(n);
  const std::size_t row = static_cast<std::size_t>(count) * size_of(dtype);
  const auto same_row = [&](const Bytes& a, int row_a, const Bytes& b, int row_b) {
    return std::equal(a.begin() + static_cast<std::ptrdiff_t>(row) * row_a,
                      a.begin() + static_cast<std::ptrdiff_t>(row) * (row_a + 1),
                      b.begin() + static_cast<std::ptrdiff_t>(row) * row_b);
  };
  const Bytes own = values(c.rank(), 0, count, dtype);
  const Bytes rows = values(c.rank(), 0, count * n, dtype);
  const auto rows_of = [&](int r) { return values(r, 0, count * n, dtype); };
  const int root = n / 2;

  Bytes gathered = make_bytes(count * n, dtype);
  c.all_gather(own.data(), gathered.data(), count, dtype);
  Bytes at_root = make_bytes(count * n, dtype);
  c.gather(own.data(), at_root.data(), count, dtype, root);
  Bytes exchanged = make_bytes(count * n, dtype);
  c.all_to_all(rows.data(), exchanged.data(), count, dtype);
  Bytes in_place = rows;
  c.all_to_all(in_place.data(), in_place.data(), count, dtype);
  for (int r = 0; r < n; ++r) {
    check(same_row(gathered, r, rows_of(r), 0), "all_gather " + what);
    check(c.rank() != root || same_row(at_root, r, rows_of(r), 0), "gather " + what);
    check(same_row(exchanged, r, rows_of(r), c.rank()), "all_to_all " + what);
    check(same_row(in_place, r, rows_of(r), c.rank()), "all_to_all in place " + what);
  }
  Bytes received = make_bytes(count, dtype);
  c.scatter(rows.data(), received.data(), count, dtype, root);
  check(same_row(received, 0, rows_of(root), c.rank()), "scatter " + what);
  Bytes sent = own;
  c.broadcast(sent.data(), count, dtype, root);
  check(same_row(sent, 0, rows_of(root), 0), "broadcast " + what);

  for (const int by : {1, -1, n - 1, 2 * n, n + 2}) {
    const int from = ((c.rank() - by) % n + n) % n;
    Bytes shifted = make_bytes(count, dtype);
    c.shift(own.data(), shifted.data(), count, dtype, by);
    check(same_row(shifted, 0, rows_of(from), 0), "shift by " + std::to_string(by) + ", " + what);
    shifted = own;
    c.shift(shifted.data(), shifted.data(), count, dtype, by);
    check(same_row(shifted, 0, rows_of(from), 0),
          "shift in place by " + std::to_string(by) + ", " + what);
  }

  // Rank s sends (s + 2 r) mod 3 times `count` elements to rank r.
  const auto share = [&](int s, int r) { return (s + 2 * r) % 3 * count; };
  std::vector<std::int64_t> send_counts;
  std::vector<std::int64_t> receive_counts;
  Bytes wanted;
  for (int r = 0; r < n; ++r) {
    send_counts.push_back(share(c.rank(), r));
    receive_counts.push_back(share(r, c.rank()));
    std::int64_t begin = 0;
    for (int before = 0; before < c.rank(); ++before) {
      begin += share(r, before);
    }
    const Bytes part = values(r, begin, share(r, c.rank()), dtype);
    wanted.insert(wanted.end(), part.begin(), part.end() - 1);
  }
  const Bytes all_sent = values(
      c.rank(), 0, std::accumulate(send_counts.begin(), send_counts.end(), std::int64_t{0}), dtype);
  Bytes all_received(wanted.size() + 1);
  c.all_to_all(all_sent.data(), send_counts, all_received.data(), receive_counts, dtype);
  all_received.pop_back();
  check(all_received == wanted, "all_to_all with counts " + what);

  // Every rank in turn sends (itself + 2 r) mod 3 times `count` elements to rank r.
  for (int from = 0; from < n; ++from) {
    std::vector<std::int64_t> counts;
    std::int64_t begin = 0;
    for (int r = 0; r < n; ++r) {
      begin += r < c.rank() ? share(from, r) : 0;
      counts.push_back(share(from, r));
    }
    const std::int64_t mine = share(from, c.rank());
    Bytes scattered = values(from, begin, mine, dtype);
    const bool sends = c.rank() == from;
    const Bytes packed =
        values(from, 0, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), dtype);
    Bytes got(scattered.size());
    c.scatter(sends ? packed.data() : nullptr, sends ? counts : std::vector<std::int64_t>(),
              got.data(), mine, dtype, from);
    got.pop_back();
    scattered.pop_back();
    check(got == scattered, "scatter with counts from " + std::to_string(from) + ", " + what);
  }
}

/// Sums in place: tensors of many sizes, in shared memory, in private memory, or in turn.
inline void check_in_place(Communicator& c, DType dtype, int memory) {
  const int n = c.size();
  const std::vector<std::int64_t> totals = {6, 1, 0, 1000, 17, 70'001};
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  std::vector<SharedBuffer> shared;
  std::vector<Bytes> own;
  std::vector<Segment> segments;
  for (std::size_t s = 0; s < totals.size(); ++s) {
    Bytes values(static_cast<std::size_t>(totals[s] * width));
    for (std::int64_t i = 0; i < totals[s]; ++i) {
      put(values, dtype, i, value_of(c.rank(), i));
    }
    shared.push_back(c.allocate(values.size() + 1));
    std::ranges::copy(values, shared.back().data());
    own.push_back(std::move(values));
    const bool peers_read = memory == 2 ? s % 2 == 0 : memory == 1;
    void* const data = peers_read ? shared.back().data() : own.back().data();
    segments.push_back({data, data, 0, totals[s]});
  }
  Work work = c.all_reduce_async(segments, dtype);
  work.wait();
  for (std::size_t s = 0; s < totals.size(); ++s) {
    Bytes wanted(static_cast<std::size_t>(totals[s] * width));
    for (std::int64_t i = 0; i < totals[s]; ++i) {
      put(wanted, dtype, i, reduced(n, i, ReduceOp::sum, dtype));
    }
    const auto* const got = static_cast<const std::byte*>(segments[s].destination);
    check(std::equal(wanted.begin(), wanted.end(), got),
          "segment " + std::to_string(s) + " in memory " + std::to_string(memory));
  }
}

/// Pieces as FSDP has them: ceil(n / ranks) elements, trailing ones short or empty.
inline void check_segments(Communicator& c, bool shared) {
  const int n = c.size();
  const std::vector<std::int64_t> totals = {6, 1, 0, 1000, 7 * n, 4099};
  SharedBuffer buffer = c.allocate(1 << 20);
  auto* pool = reinterpret_cast<float*>(buffer.data());
  std::vector<float> ordinary(std::size_t{1} << 18);
  float* at = shared ? pool : ordinary.data();
  std::vector<Segment> gather;
  std::vector<Segment> reduce;
  std::vector<std::vector<float>> gathered;
  std::vector<std::vector<float>> results;
  for (const std::int64_t total : totals) {
    const std::int64_t chunk = (total + n - 1) / n;
    const std::int64_t begin = std::min(total, chunk * c.rank());
    const std::int64_t count = std::min(total, begin + chunk) - begin;
    gathered.emplace_back(static_cast<std::size_t>(total), -1.0F);
    results.emplace_back(static_cast<std::size_t>(count), 100.0F);
    for (std::int64_t i = 0; i < count; ++i) {
      at[i] = static_cast<float>(begin + i);
    }
    gather.push_back({at, gathered.back().data(), chunk, total});
    at += count + 3;
    for (std::int64_t i = 0; i < total; ++i) {
      at[i] = static_cast<float>(value_of(c.rank(), i));
    }
    reduce.push_back({at, results.back().data(), chunk, total});
    at += total + 5;
  }
  Work gathering = c.all_gather_async(gather, DType::f32);
  Work reducing = c.reduce_scatter_async(reduce, DType::f32, {.accumulate = true});
  reducing.wait();
  check(gathering.done(), "an earlier call is complete when a later one is");
  c.wait_sources_free();
  check(c.sources_free(), "sources are free after the wait");
  for (std::size_t s = 0; s < totals.size(); ++s) {
    std::vector<float> wanted(gathered[s].size());
    std::iota(wanted.begin(), wanted.end(), 0.0F);
    check(gathered[s] == wanted, "gathered segment " + std::to_string(s));
    for (std::size_t i = 0; i < results[s].size(); ++i) {
      const auto index = reduce[s].chunk * c.rank() + static_cast<std::int64_t>(i);
      check(results[s][i] == 100 + reduced(n, index, ReduceOp::sum, DType::f32),
            "reduced segment " + std::to_string(s));
    }
  }
}

/// Reductions of which only some members' sources are terms; those of the others are no numbers.
inline void check_terms(Communicator& c, bool shared) {
  const int n = c.size();
  const std::vector<std::int64_t> totals = {6, 1, 0, 1000, 70'001};
  std::vector<SharedBuffer> buffers;
  for (MemberRange terms; terms.first < n; ++terms.first) {
    for (terms.count = 1; terms.first + terms.count <= n; ++terms.count) {
      const bool is_term = c.rank() >= terms.first && c.rank() < terms.first + terms.count;
      std::vector<std::vector<float>> sources;
      std::vector<std::vector<float>> shards;
      std::vector<Segment> scatter;
      std::vector<Segment> whole;
      for (const std::int64_t total : totals) {
        std::vector<float>& source = sources.emplace_back();
        for (std::int64_t i = 0; i < total; ++i) {
          source.push_back(is_term ? static_cast<float>(value_of(c.rank(), i)) : NAN);
        }
        std::vector<float>& in_place = sources.emplace_back(source);
        float* data = in_place.data();
        if (shared) {
          buffers.push_back(c.allocate(in_place.size() * sizeof(float) + 1));
          data = reinterpret_cast<float*>(buffers.back().data());
          std::ranges::copy(in_place, data);
        }
        const std::int64_t chunk = (total + n - 1) / n;
        const std::int64_t begin = std::min(total, chunk * c.rank());
        shards.emplace_back(static_cast<std::size_t>(std::min(total, begin + chunk) - begin));
        scatter.push_back({sources[sources.size() - 2].data(), shards.back().data(), chunk, total});
        whole.push_back({data, data, 0, total});
      }
      Work scattering = c.reduce_scatter_async(scatter, DType::f32, {.terms = terms});
      c.all_reduce_async(whole, DType::f32, {.terms = terms}).wait();
      scattering.wait();
      const auto wanted = [&](std::int64_t i) {
        int sum = 0;
        for (int member = terms.first; member < terms.first + terms.count; ++member) {
          sum += value_of(member, i);
        }
        return static_cast<float>(sum);
      };
      for (std::size_t s = 0; s < totals.size(); ++s) {
        const std::string what = "segment " + std::to_string(s) + " of " +
                                 std::to_string(terms.count) + " from " +
                                 std::to_string(terms.first);
        for (std::size_t i = 0; i < shards[s].size(); ++i) {
          const std::int64_t at = scatter[s].chunk * c.rank() + static_cast<std::int64_t>(i);
          check(shards[s][i] == wanted(at), "a shard of " + what);
        }
        for (std::int64_t i = 0; i < totals[s]; ++i) {
          check(static_cast<const float*>(whole[s].destination)[i] == wanted(i), what);
        }
      }
      c.wait_sources_free();
      buffers.clear();
    }
  }
}

/// Every collective of one tensor, in all types.
inline void check_all(Communicator& c) {
  for (const DType dtype : all_types) {
    for (const std::int64_t count : {0, 1, 7, 1000}) {
      check_moves(c, count, dtype);
      for (const ReduceOp op :
           {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
        if (dtype != DType::u8 || op != ReduceOp::product) {
          check_reductions(c, count, dtype, op);
        }
      }
    }
  }
  // Beyond the size up to which every rank sums all.
  check_reductions(c, 200'001, DType::f32, ReduceOp::sum);
  check_reductions(c, 300'003, DType::bf16, ReduceOp::max);
  check_moves(c, 200'001, DType::f32);
}

}  // namespace collective_test
