// The distributed path of every operator: look the propagation up, convert what needs it, call
// locally, wrap.
module;
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>
module tessera.dtensor;

import tessera.base;
import tessera.tensor;

namespace tessera {
namespace {

/// Open addressing over propagations; one cache a rank's thread, so nothing is locked.
class Cache {
 public:
  const Propagation* find(const Op& op, std::span<const Tensor> in,
                          std::span<const std::int64_t> fixed, std::uint64_t hash) const {
    for (std::size_t at = hash & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.propagation == nullptr) {
        return nullptr;
      }
      if (slot.hash == hash && matches(*slot.propagation, op, in, fixed)) {
        return slot.propagation;
      }
    }
  }

  const Propagation* insert(Propagation propagation, std::uint64_t hash) {
    if (2 * (count_ + 1) > slots_.size()) {
      grow();
    }
    ++count_;
    const auto* const kept = new Propagation(std::move(propagation));
    place({hash, kept});
    return kept;
  }

  Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() {
    for (const Slot& slot : slots_) {
      delete slot.propagation;
    }
  }

  PropagationStatistics statistics;

 private:
  struct Slot {
    std::uint64_t hash = 0;
    const Propagation* propagation = nullptr;
  };

  static bool matches(const Propagation& p, const Op& op, std::span<const Tensor> in,
                      std::span<const std::int64_t> fixed) {
    if (p.op != &op || p.in.size() != in.size() || p.fixed.size() != fixed.size()) {
      return false;
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (p.in[i] != (in[i] ? in[i].spec() : nullptr)) {
        return false;
      }
    }
    for (std::size_t i = 0; i < fixed.size(); ++i) {
      if (p.fixed[i] != fixed[i]) {
        return false;
      }
    }
    return true;
  }

  void place(Slot slot) {
    std::size_t at = slot.hash & mask_;
    while (slots_[at].propagation != nullptr) {
      at = (at + 1) & mask_;
    }
    slots_[at] = slot;
  }

  void grow() {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(2 * slots_.size()));
    mask_ = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.propagation != nullptr) {
        place(slot);
      }
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  std::size_t mask_ = 1023;
  std::size_t count_ = 0;
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
    hash = mixed(hash, x ? reinterpret_cast<std::uint64_t>(x.spec()) : 0);
  }
  for (const std::int64_t value : fixed) {
    hash = mixed(hash, static_cast<std::uint64_t>(value));
  }
  return hash ^ (hash >> 29);
}

Tensors run(const Op& op, std::span<const Tensor> in, const Attributes& attributes,
            const Propagation& p) {
  InlineVector<Tensor, 4> locals;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!in[i]) {
      locals.emplace_back();
    } else if (p.converts && p.wanted[i] != p.in[i]) {
      locals.push_back(
          carry_out_redistribution(in[i], p.wanted[i], p.communicates, op.name.c_str()).local());
    } else {
      locals.push_back(in[i].impl()->local);
    }
  }
  Tensors out;
  if (p.localized) {
    Attributes local = p.local;
    local.take_free(attributes);
    out = call_kernel(op, locals, local);
  } else {
    out = call_kernel(op, locals, attributes);
  }
  if (op.in_place) {
    out[0] = in[0];
    return out;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = make_distributed(std::move(out[i]), p.out[i]);
  }
  return out;
}

Tensors distributed_call(const Op& op, std::span<const Tensor> in, const Attributes& attributes) {
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
  ++c.statistics.misses;
  Propagation found = propagate(op, in, attributes, redistribution_allowed());
  return run(op, in, attributes, p != nullptr ? found : *c.insert(std::move(found), hash));
}

[[maybe_unused]] const bool installed = [] {
  set_distribution_slot(&distributed_call);
  return true;
}();

}  // namespace

PropagationStatistics propagation_statistics() { return cache().statistics; }

}  // namespace tessera
