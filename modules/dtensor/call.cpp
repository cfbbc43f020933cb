// The distributed path of every operator: look the propagation up, convert what needs it, call
// locally, wrap.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import :redistribution;

namespace tessera {
namespace {

bool matches(const Propagation& p, const Op& op, std::span<const Tensor> in,
             std::span<const std::int64_t> fixed) {
  if (p.op != &op || p.in.size() != in.size() || p.arguments.fixed().size() != fixed.size()) {
    return false;
  }
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (p.in[i].get() != (in[i] ? in[i].spec().get() : nullptr)) {
      return false;
    }
  }
  return std::equal(fixed.begin(), fixed.end(), p.arguments.fixed().begin());
}

/// Propagations by their keys' hashes, in open addressing.
class Table {
 public:
  using Entry = std::shared_ptr<const Propagation>;

  const Entry* find(const Op& op, std::span<const Tensor> in, std::span<const std::int64_t> fixed,
                    std::uint64_t hash) const {
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.entry == nullptr) {
        return nullptr;
      }
      if (slot.hash == hash && matches(*slot.entry, op, in, fixed)) {
        return &slot.entry;
      }
    }
  }

  void insert(Entry entry, std::uint64_t hash) {
    if (2 * (count_ + 1) > slots_.size()) {
      grow();
    }
    ++count_;
    place({hash, std::move(entry)});
  }

  std::size_t count() const { return count_; }

 private:
  struct Slot {
    std::uint64_t hash = 0;
    Entry entry;
  };

  void place(Slot slot) {
    std::size_t at = slot.hash & mask_;
    while (slots_[at].entry != nullptr) {
      at = (at + 1) & mask_;
    }
    slots_[at] = std::move(slot);
  }

  void grow() {
    std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    mask_ = slots_.size() - 1;
    for (Slot& slot : old) {
      if (slot.entry != nullptr) {
        place(std::move(slot));
      }
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  std::size_t mask_ = 1023;
  std::size_t count_ = 0;
};

/// One cache a rank's thread, so nothing is locked. It is bounded, as a program whose shapes change
/// with every batch would fill it for ever: what was used since the last `kMost` insertions stays,
/// and what a call has found outlives that call.
class Cache {
 public:
  static constexpr std::size_t kMost = 1 << 15;

  const Propagation* find(const Op& op, std::span<const Tensor> in,
                          std::span<const std::int64_t> fixed, std::uint64_t hash) {
    if (const Table::Entry* entry = recent_.find(op, in, fixed, hash)) [[likely]] {
      return entry->get();
    }
    if (const Table::Entry* entry = older_.find(op, in, fixed, hash)) {
      return insert(*entry, hash);
    }
    return nullptr;
  }

  const Propagation* insert(Table::Entry entry, std::uint64_t hash) {
    const Propagation* const kept = entry.get();
    if (recent_.count() == kMost) {
      older_ = std::exchange(recent_, Table());
    }
    recent_.insert(std::move(entry), hash);
    return kept;
  }

  std::size_t count() const { return recent_.count() + older_.count(); }

  PropagationStatistics statistics;

 private:
  Table recent_;
  Table older_;
};

Cache& cache() {
  thread_local Cache instance;
  return instance;
}

std::uint64_t mixed(std::uint64_t seed, std::uint64_t value) {
  return (seed ^ value) * 0x9e3779b97f4a7c15ULL;
}

std::uint64_t key_of(const Op& op, std::span<const Tensor> in,
                     std::span<const std::int64_t> fixed) {
  auto hash = static_cast<std::uint64_t>(op.id) + 1;
  for (const Tensor& x : in) {
    hash = mixed(hash, x ? reinterpret_cast<std::uint64_t>(x.spec().get()) : 0);
  }
  for (const std::int64_t value : fixed) {
    hash = mixed(hash, static_cast<std::uint64_t>(value));
  }
  return hash ^ (hash >> 29);
}

/// How many numbers a declared reduction may have on this rank.
std::int64_t declared_count(const InnerReduction& reduction, const Propagation& p) {
  Dims shape = local_shape(*p.out[static_cast<std::size_t>(reduction.like)]);
  if (reduction.without_dim >= 0) {
    shape[reduction.without_dim] = 1;
  }
  return shape.product() * reduction.times;
}

/// The local call of a strategy that declares reductions: exactly those are carried out.
Tensors run_composed(const Op& op, std::span<const Tensor> locals, const Attributes& attributes,
                     const Propagation& p) {
  const DeviceMesh& mesh = p.out[0]->layout.mesh();
  std::size_t next = 0;
  const InnerReduce reduce = [&](const Tensor& x, ReduceOp how) {
    if (next == p.reductions.size() || p.reductions[next].op != how ||
        declared_count(p.reductions[next], p) != x.numel()) {
      fail({.thing = op.name,
            .wrong = fmt::format("its placement rule is wrong: reduction {} ({} of {} numbers) is "
                                 "not the one that its strategy declares",
                                 next, name_of(how), x.numel())});
    }
    ++next;
    Tensor whole = x;
    for (const int axis : p.reduced_axes) {
      const std::int64_t ranks = mesh.axis_size(axis);
      if (ranks == 1) {
        continue;
      }
      const CommunicationTimer timer;
      whole = ops::all_reduce(whole, how, ops::GroupArgument::of(mesh.group(axis, current_rank())));
      if (communication_reported()) {
        const auto bytes = x.numel() * static_cast<std::int64_t>(size_of(x.dtype()));
        record_communication({"all_reduce", mesh.axis_name(axis), 2 * (ranks - 1) * bytes / ranks,
                              op.name, false, timer.seconds()});
      }
    }
    return whole;
  };
  const NoGrad no_grad;
  Tensors out;
  op.composed({op, locals, attributes}, reduce, out);
  return out;
}

Tensors distributed_call(const Op& op, std::span<const Tensor> in, const Attributes& attributes);

bool is_plain(const Tensor& x) { return x && !x.is_distributed(); }

/// Errors: a plain operand whose meaning beside distributed ones is not certain.
void check_plain(const Op& op, std::span<const Tensor> in, std::size_t i) {
  const auto refuse = [&](const char* what) {
    fail({.thing = op.name,
          .wrong = fmt::format("operand '{}' is plain, others are distributed, and {}",
                               op.operand_name(i, in.size()), what)});
  };
  if (op.writes(op.place_of(i, in.size()).operand)) {
    refuse("it is written; distribute() it, or call to_local() on the others");
  }
  if (in[i].requires_grad() && grad_enabled()) {
    refuse("it requires a gradient, which has no layout; distribute() it, or detach() it");
  }
  if (in[i].dims() > 0 && !plain_is_replicate()) {
    refuse(
        "it is not a single number, so nothing says that it is equal on all ranks; distribute() "
        "it, call to_local() on the others, or open a PlainIsReplicate scope");
  }
}

/// A call with plain operands: they are Replicate on the mesh of the others.
[[gnu::noinline]] Tensors mixed_call(const Op& op, std::span<const Tensor> in,
                                     const Attributes& attributes) {
  const Tensor& distributed =
      *std::ranges::find_if(in, [](const Tensor& x) { return x && x.is_distributed(); });
  const Layout layout = Layout::replicated(distributed.layout().mesh());
  std::vector<Tensor> operands(in.begin(), in.end());
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (is_plain(in[i])) {
      check_plain(op, in, i);
      operands[i] =
          make_distributed(detached(in[i]), Spec::make(layout, in[i].shape(), in[i].dtype()));
    }
  }
  return distributed_call(op, operands, attributes);
}

Tensors run(const Op& op, std::span<const Tensor> in, const Attributes& attributes,
            const Propagation& p) {
  InlineVector<Tensor, 4> locals;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (p.in[i] == nullptr) {
      if (in[i]) [[unlikely]] {
        return mixed_call(op, in, attributes);  // found as a call without this operand
      }
      locals.emplace_back();
    } else if (p.converts && p.wanted[i] != p.in[i]) {
      locals.push_back(
          carry_out_redistribution(in[i], p.wanted[i], p.communicates, op.name.c_str()).local());
    } else {
      locals.push_back(in[i].impl()->local);
    }
  }
  Tensors out;
  const auto call_local = [&](const Attributes& local) {
    if (p.peers_read) {
      // A Partial is what ranks reduce: it lies where they read it.
      const PeersReadScope scope;
      return p.reductions.empty() ? call_kernel(op, locals, local)
                                  : run_composed(op, locals, local, p);
    }
    return p.reductions.empty() ? call_kernel(op, locals, local)
                                : run_composed(op, locals, local, p);
  };
  if (p.local) {
    Attributes local = *p.local;
    local.take_dynamic(attributes);
    out = call_local(local);
  } else {
    out = call_local(attributes);
  }
  if (op.in_place) {
    out[0] = in[0];
    return out;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (op.view != nullptr && p.converts) [[unlikely]] {
      set_copied_view(out[i]);
    }
    out[i] = make_distributed(std::move(out[i]), p.out[i]);
  }
  return out;
}

Tensors distributed_call(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
  const OperationScope operation(op.name);
  if (op.distributed != nullptr) {
    Tensors out;
    op.distributed({op, in, attributes}, out);
    return out;
  }
  Cache& c = cache();
  const std::uint64_t hash = key_of(op, in, attributes.fixed());
  const Propagation* p = c.find(op, in, attributes.fixed(), hash);
  if (p != nullptr && (!p->communicates || redistribution_allowed())) [[likely]] {
    ++c.statistics.hits;
    return run(op, in, attributes, *p);
  }
  if (std::ranges::any_of(in, is_plain)) {
    return mixed_call(op, in, attributes);
  }
  ++c.statistics.misses;
  auto found =
      std::make_shared<const Propagation>(propagate(op, in, attributes, redistribution_allowed()));
  if (p == nullptr) {
    c.insert(found, hash);
  }
  return run(op, in, attributes, *found);
}

[[maybe_unused]] const bool installed = [] {
  set_distribution_slot(&distributed_call);
  collective::set_work_in_words(&work_in_words);
  return true;
}();

}  // namespace

PropagationStatistics propagation_statistics() {
  PropagationStatistics statistics = cache().statistics;
  statistics.kept = static_cast<std::int64_t>(cache().count());
  statistics.redistributions = static_cast<std::int64_t>(redistributions_kept());
  statistics.specs = static_cast<std::int64_t>(Spec::kept());
  return statistics;
}

}  // namespace tessera
