// Rows that belong to groups, from the ranks that have them to the ranks that own the groups, and
// back. How many rows travel is in tensors, which the kernel reads in its place of the stream.
module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

using collective::CallKind;

struct AllToAllRowsArgs {
  std::int64_t rows;  // of the result
  bool to_groups;
  GroupArgument group;
};

void infer(const Call& call, ResultShapes& out) {
  const auto args = call.args<AllToAllRowsArgs>();
  check_given(args.group);
  check_dims(call, 1, 2);
  check_type(call, 1, DType::i64);
  check_type(call, 2, DType::i64);
  const Dims counts{args.group.size(), call.in[1].shape()[1]};
  check_shape(call, 1, counts);
  check_shape(call, 2, counts);
  if (call.in[0].dims() == 0 || args.rows < 0) {
    refuse(call, {.wrong = "there are no rows",
                  .expected = "x [rows, ...] and rows of at least 0",
                  .got = fmt::format("{} and {}", to_string(call.in[0].shape()), args.rows)});
  }
  out.push_back({with_extent(call.in[0].shape(), 0, args.rows), call.in[0].dtype()});
}

/// The counts of both sides in the host's memory. Of a device, the host waits for them, and that
/// once: it has to say how many elements go to each rank and come from it.
std::array<Tensor, 2> counts_on_host(const Tensor& sends, const Tensor& receives) {
  const Device device = sends.device();
  if (device == cpu || is_on_host(sends) || receives.device() != device) {
    return {contiguous_operand(on_host(sends)), contiguous_operand(on_host(receives))};
  }
  const std::int64_t count = sends.numel();
  const Tensor both = empty({2, count}, DType::i64, device);
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::int64_t);
  auto* to = static_cast<std::byte*>(data_of(both));
  for (const Tensor& one : {contiguous_operand(sends), contiguous_operand(receives)}) {
    current_stream(device).copy(to, data_of(one), bytes, CopyKind::on_device);
    to += bytes;
  }
  const Tensor here = on_host(both);
  return {alias(here, sends.shape(), contiguous_strides(sends.shape()), 0),
          alias(here, sends.shape(), contiguous_strides(sends.shape()), count)};
}

/// The rows of each rank and group that one side of the exchange has.
class Blocks {
 public:
  /// `counts`: of the call's operand, in the host's memory. Errors: there is no room for them in
  /// `rows` rows.
  Blocks(const Call& call, std::size_t operand, const Tensor& counts, std::int64_t rows) {
    ranks_ = static_cast<std::size_t>(counts.shape()[0]);
    groups_ = static_cast<std::size_t>(counts.shape()[1]);
    const auto* const values = pointer<const std::int64_t>(counts);
    counts_.assign(values, values + counts.numel());
    std::int64_t left = rows;
    for (const std::int64_t count : counts_) {
      if (count < 0 || count > left) {
        refuse(call, {.wrong = fmt::format("{} have no room", call.op.operands[operand].name),
                      .expected = fmt::format("counts from 0 that sum to at most {} rows", rows),
                      .got = fmt::format("a count of {} where {} rows are left", count, left)});
      }
      left -= count;
    }
    used_ = rows - left;
  }

  std::int64_t used() const { return used_; }
  /// Whether the order by group and then by rank is that by rank and then by group.
  bool one_order() const { return ranks_ == 1 || groups_ == 1; }
  /// Elements to or from each rank, with rows of `width` elements.
  std::vector<std::int64_t> per_rank(std::int64_t width) const {
    std::vector<std::int64_t> sums(ranks_, 0);
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      sums[i / groups_] += counts_[i] * width;
    }
    return sums;
  }
  /// Calls f(first row by rank and group, first row by group and rank, rows) for each block.
  template <class F>
  void for_each(F f) const {
    std::vector<std::int64_t> by_rank(counts_.size());
    std::int64_t row = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      by_rank[i] = row;
      row += counts_[i];
    }
    row = 0;
    for (std::size_t group = 0; group < groups_; ++group) {
      for (std::size_t i = group; i < counts_.size(); i += groups_) {
        f(by_rank[i], row, counts_[i]);
        row += counts_[i];
      }
    }
  }

 private:
  std::size_t ranks_ = 0;
  std::size_t groups_ = 0;
  std::vector<std::int64_t> counts_;
  std::int64_t used_ = 0;
};

/// The bytes of rows, in the memory of the host or of a device.
struct Rows {
  std::byte* data;
  std::size_t bytes;  // of one
  Device device;

  Rows(const Tensor& x, std::int64_t width)
      : data(static_cast<std::byte*>(data_of(x))),
        bytes(static_cast<std::size_t>(width) * size_of(x.dtype())),
        device(x.device()) {}
  std::byte* at(std::int64_t row) const { return data + static_cast<std::size_t>(row) * bytes; }
  void copy(std::int64_t to, const Rows& from, std::int64_t first, std::int64_t count) const {
    const std::size_t size = static_cast<std::size_t>(count) * bytes;
    if (size > 0 && device == cpu) {
      std::memcpy(at(to), from.at(first), size);
    } else if (size > 0) {
      current_stream(device).copy(at(to), from.at(first), size, CopyKind::on_device);
    }
  }
  void clear(std::int64_t first, std::int64_t count) const {
    const std::size_t size = static_cast<std::size_t>(count) * bytes;
    if (size > 0 && device == cpu) {
      std::memset(at(first), 0, size);
    } else if (size > 0) {
      const std::byte zero{0};
      current_stream(device).fill(at(first), &zero, 1, static_cast<std::int64_t>(size));
    }
  }
};

std::unique_ptr<IssuedCollective> start(const Call& call, const Tensor& out) {
  const auto args = call.args<AllToAllRowsArgs>();
  const Tensor x = contiguous_operand(call.in[0]);
  const auto [sends, receives] = counts_on_host(call.in[1], call.in[2]);
  const Blocks sent(call, 1, sends, x.shape()[0]);
  const Blocks received(call, 2, receives, args.rows);
  const std::int64_t width = with_extent(x.shape(), 0, 1).product();
  // Rows travel by rank: the side that has them by group packs or unpacks.
  Tensor from = x;
  Tensor packed;  // where they arrive; undefined: in the result
  if (!args.to_groups && !sent.one_order()) {
    from = empty({sent.used() * width}, x.dtype(), x.device());
    sent.for_each([&, packed_rows = Rows(from, width), rows = Rows(x, width)](
                      std::int64_t by_rank, std::int64_t by_group, std::int64_t count) {
      packed_rows.copy(by_rank, rows, by_group, count);
    });
  } else if (args.to_groups && !received.one_order()) {
    packed = empty({received.used() * width}, x.dtype(), x.device());
  }
  collective::Work work = args.group.communicator().all_to_all_async(
      data_of(from), sent.per_rank(width), data_of(packed ? packed : out), received.per_rank(width),
      x.dtype());
  return std::make_unique<IssuedCollective>(
      std::move(work), std::vector{from},
      [width, packed, received, rows = args.rows](const Tensor& result) {
        const Rows into(result, width);
        if (packed) {
          received.for_each([&, from = Rows(packed, width)](
                                std::int64_t by_rank, std::int64_t by_group, std::int64_t count) {
            into.copy(by_group, from, by_rank, count);
          });
        }
        into.clear(received.used(), rows - received.used());
      });
}

/// How many rows travel is in tensors. Experts that have equally many get as many as they send: as
/// many as the side has whose rows are all in use.
std::int64_t rows_received(const CollectiveContext& context) {
  const ResultShape& result = context.made[0];
  const std::int64_t elements = std::min(result.shape.product(), context.read[0].shape.product());
  return collective::received_bytes(result.dtype, collective::even_counts(elements, context.size()),
                                    context.rank);
}

void cpu(const Call& call, std::span<Tensor> out) { start(call, out[0])->complete(out[0]); }

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& all_to_all_rows_op = register_op<AllToAllRowsArgs>({
    .schema = "all_to_all_rows(x, sends, receives)",
    .infer = infer,
    .cpu = cpu,
    .any_device = in_stream<AllToAllRowsArgs>,
    .backward = backward,
    .saves_inputs = 0b110,
    .communicates = CallKind::all_to_all,
    .received = rows_received,
    .moves_elements = true,
    .about = "Rows of groups to the ranks that own the groups, or back, by counts; local tensors.",
});

const Op& all_to_all_rows_async_op = register_op<AllToAllRowsArgs>({
    .schema = "all_to_all_rows_async(x, sends, receives)",
    .infer = infer,
    .cpu = issued_on_host<AllToAllRowsArgs, start>,
    .any_device = issued_in_stream<AllToAllRowsArgs>,
    .communicates = CallKind::all_to_all,
    .received = rows_received,
    .issues = true,
    .moves_elements = true,
    .about = "Issues an all_to_all_rows; wait() completes its result; local tensors.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const auto args = context.args<AllToAllRowsArgs>();
  out[0] = call_one(all_to_all_rows_op, {grads[0], context.in[2], context.in[1]},
                    AllToAllRowsArgs{context.in_shapes[0][0], !args.to_groups, args.group});
}

}  // namespace

Tensor all_to_all_rows(const Tensor& x, const Tensor& sends, const Tensor& receives,
                       std::int64_t rows, RowOrder result, Ranks group) {
  return call_one(all_to_all_rows_op, {x, sends, receives},
                  AllToAllRowsArgs{rows, result == RowOrder::by_group, group});
}

PendingTensor all_to_all_rows_async(const Tensor& x, const Tensor& sends, const Tensor& receives,
                                    std::int64_t rows, RowOrder result, Ranks group) {
  return issue(all_to_all_rows_async_op, {x, sends, receives},
               AllToAllRowsArgs{rows, result == RowOrder::by_group, group});
}

}  // namespace tessera::ops
