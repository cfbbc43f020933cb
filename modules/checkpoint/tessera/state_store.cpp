module;
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.collective;
import tessera.mesh;
import tessera.ops;
import tessera.placement;
import tessera.ranks;
import tessera.tensor;
import :box;
import :checkpoint_index;
import :job;
import :state_store;
import :save_plan;
import :group_actions;

namespace tessera {

namespace checkpoint_detail {
namespace {

constexpr std::uint64_t alignment = 64;

constexpr std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// What one rank keeps of one generation. At `offset`: the text of its tensors, the text of its
/// scalars, and the parts that it writes, each aligned, in the order of its file.
struct Slot {
  std::atomic<std::int64_t> step{-1};  // -1: it is not whole
  std::uint64_t offset = 0;
  std::uint64_t capacity = 0;
  std::uint64_t tensor_text = 0;  // bytes
  std::uint64_t scalar_text = 0;
  std::uint64_t used = 0;  // bytes, of texts and parts
};

/// The start of the memory; two slots for each rank follow.
struct StoreHeader {
  std::atomic<std::uint64_t> used{0};
  std::atomic<std::int64_t> told{-1};
  std::atomic<std::uint32_t> changes{0};  // of slots: who waits for the next one sleeps on it
  std::atomic<bool> copies{false};        // a generation has to be copied too, and
  std::atomic<std::int64_t> copied{-1};   // the newest step that is

  Slot& slot(int generation, int ranks, int rank) {
    return reinterpret_cast<Slot*>(this + 1)[generation * ranks + rank];
  }
};

/// What a rank knows of its part of the state, as long as the tensors stay what they are.
struct OwnPart {
  IndexedTensors tensors;
  std::string text;  // of them
  CheckpointFile file;
  std::uint64_t bytes = 0;  // of the parts, each aligned
};

bool same(const IndexedTensors& a, const IndexedTensors& b) {
  return std::ranges::equal(a, b, [](const auto& one, const auto& other) {
    return one.first == other.first && one.second.info == other.second.info &&
           one.second.layout == other.second.layout;
  });
}

}  // namespace

struct StateStoreContent {
  std::shared_ptr<collective::Region> memory;
  int ranks = 1;             // on this machine
  int first = 0;             // the number of the first of them
  bool all = true;           // there are no others
  std::vector<OwnPart> own;  // by rank: ranks may be threads of one process
  int filled = 0;            // the generation that begin_copy made room in

  /// The numbers of the ranks in the world.
  std::vector<int> numbers() const {
    std::vector<int> numbers(static_cast<std::size_t>(ranks));
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
  StoreHeader& front() const { return *reinterpret_cast<StoreHeader*>(memory->base()); }
  Slot& slot(int generation, int rank) const { return front().slot(generation, ranks, rank); }
  /// The step that all ranks have kept; nothing where they have not.
  std::optional<std::int64_t> step_of(int generation) const {
    const std::int64_t step = slot(generation, 0).step.load();
    for (int rank = 0; rank < ranks; ++rank) {
      if (step < 0 || slot(generation, rank).step.load() != step) {
        return std::nullopt;
      }
    }
    return step;
  }
  /// The newest whole generation; -1: there is none.
  int newest() const {
    const std::optional<std::int64_t> one = step_of(0);
    const std::optional<std::int64_t> other = step_of(1);
    return !one && !other ? -1 : one.value_or(-1) > other.value_or(-1) ? 0 : 1;
  }
  int older() const { return newest() == 0 ? 1 : 0; }
  /// Wakes who waits for a new generation.
  void say_change() const {
    front().changes.fetch_add(1);
    collective::wake_on(&front().changes, 1);
  }
  /// Waits until the newest generation is copied: then the older one is no longer needed.
  void wait_for_copy() const {
    const int newest = this->newest();
    if (newest < 0 || !front().copies) {
      return;
    }
    const std::int64_t step = step_of(newest).value_or(-1);
    collective::World& world = collective::World::current();
    for (Stopwatch watch; front().copied < step;) {
      world.throw_if_failed();
      if (watch.waited() > wait_limit()) {
        fail({.thing = "train.heal",
              .wrong = fmt::format("the state of step {} is not on a second machine after {:.4g} s",
                                   step, wait_limit()),
              .advice = "look at the links between machines, or set train.heal_copies to 1"});
      }
      // So short that a rank which waits here shows signs of life.
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  /// Makes room in a slot.
  void reserve(Slot& slot, std::uint64_t bytes) {
    if (slot.capacity >= bytes) {
      return;
    }
    const std::uint64_t page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    // Some room for a text that grows.
    const std::uint64_t wanted = (bytes + bytes / 16 + page - 1) / page * page;
    const std::uint64_t at = front().used.fetch_add(wanted);
    if (at + wanted > memory->bytes()) {
      front().used.fetch_sub(wanted);
      fail({.thing = "train.heal",
            .wrong = fmt::format("there is no room in memory for the state of this rank ({})",
                                 format_bytes(bytes)),
            .advice = "use more machines or fewer ranks on this one, or set train.heal to false"});
    }
    if (slot.capacity != 0) {
      collective::discard_pages(memory->at(slot.offset), slot.capacity, true);
    }
    slot.offset = at;
    slot.capacity = wanted;
  }
};

namespace {

/// All tensors that one of these ranks has.
IndexedTensors joined(const std::vector<IndexedTensors>& of_ranks) {
  IndexedTensors all;
  for (const IndexedTensors& one : of_ranks) {
    all.insert(one.begin(), one.end());
  }
  return all;
}

/// The tensors of a generation. The memory is that of the MemoryStateStore.
class StateStoreSource final : public TensorSource {
 public:
  StateStoreSource(const StateStoreContent& content, int generation)
      : TensorSource("the state in memory"), memory_(content.memory) {
    std::vector<IndexedTensors> of_ranks;
    std::string before;
    for (int rank = 0; rank < content.ranks; ++rank) {
      const Slot& slot = content.slot(generation, rank);
      const auto* text = reinterpret_cast<const char*>(memory_->at(slot.offset));
      std::string tensors(text, slot.tensor_text);
      of_ranks.push_back(tensors == before ? of_ranks.back()
                                           : index_from_json(tensors, path_).tensors);
      before = std::move(tensors);
      CheckpointIndex rest =
          index_from_json(std::string(text + slot.tensor_text, slot.scalar_text), path_);
      scalars_.merge(rest.scalars);
    }
    // Of the ranks of one machine, parts that others hold are absent.
    const IndexedTensors all = content.all ? merged(of_ranks, path_) : joined(of_ranks);
    for (const auto& [name, tensor] : all) {
      tensors_.emplace(name, tensor.info);
    }
    std::map<int, const std::byte*> at;
    for (const FilePart& part : plan_holdings(all, content.numbers()).parts) {
      const Slot& slot = content.slot(generation, part.writer - content.first);
      const auto [place, fresh] = at.try_emplace(
          part.writer, memory_->at(slot.offset + aligned(slot.tensor_text + slot.scalar_text)));
      parts_[part.name].push_back({part.box, place->second});
      place->second += aligned(part.bytes());
    }
  }

  std::uint64_t bytes_read() const override { return bytes_read_; }

 private:
  struct StoredBox {
    LocalPart box;
    const std::byte* data;
  };

  void copy_box(const std::string& name, const LocalPart& box, const Tensor& into) const override {
    const DType dtype = info(name).dtype;
    std::int64_t missing = box.shape.product();
    for (const StoredBox& part : parts_.at(name)) {
      if (const auto both = intersection(part.box, box)) {
        const LocalPart within{difference(both->offset, part.box.offset), both->shape};
        ops::copy_(box_of(into, difference(both->offset, box.offset), both->shape),
                   view_of_box(part.data, {dtype, part.box.shape}, within));
        bytes_read_ += static_cast<std::uint64_t>(both->shape.product()) * size_of(dtype);
        missing -= both->shape.product();
      }
    }
    require(missing == 0, "train.heal: a part of the state is in the memory of another machine");
  }

  std::shared_ptr<collective::Region> memory_;
  std::map<std::string, std::vector<StoredBox>> parts_;
  mutable std::atomic<std::uint64_t> bytes_read_{0};
};

/// The bytes of values, one after the other, at `to`.
void copy_values(const Tensor& values, std::byte* to) {
  const auto bytes = static_cast<std::size_t>(values.numel()) * size_of(values.dtype());
  if (!is_on_host(values)) {
    const Tensor host = packed(values);
    std::memcpy(to, bytes_of(host).data(), bytes);
    return;
  }
  const NoGrad constant;
  ops::copy_(from_storage(Storage::borrow(to, bytes), values.shape(),
                          contiguous_strides(values.shape()), 0, values.dtype()),
             values);
}

/// Finds out, with all ranks, which parts this rank writes, when a tensor of any rank has changed
/// its kind or there are other tensors.
void follow(OwnPart& own, const StateDict& state, const std::vector<int>& here) {
  collective::Communicator& group = group_named("checkpoint plan");
  IndexedTensors tensors = described(state);
  const std::int32_t mine = own.text.empty() || !same(own.tensors, tensors) ? 1 : 0;
  std::int32_t any = 0;
  group.all_reduce(&mine, &any, 1, DType::i32, ReduceOp::max);
  if (any == 0) {
    return;
  }
  own.file = plan_holdings(make_job(group, "memory", state, "{}", {}).tensors, here);
  CheckpointIndex index;
  index.tensors = tensors;
  own.text = to_json(index);
  own.tensors = std::move(tensors);
  own.bytes = 0;
  for (const FilePart& part : own.file.parts) {
    own.bytes += part.writer == group.rank() ? aligned(part.bytes()) : 0;
  }
}

}  // namespace
}  // namespace checkpoint_detail

MemoryStateStore::MemoryStateStore(int ranks, int first, int here)
    : content_(new checkpoint_detail::StateStoreContent) {
  using namespace checkpoint_detail;
  content_->all = here == 0 || here == ranks;
  ranks = here > 0 ? here : ranks;
  content_->ranks = ranks;
  content_->first = first;
  content_->own.resize(static_cast<std::size_t>(ranks));
  content_->memory = collective::Region::create(static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                                                    static_cast<std::size_t>(sysconf(_SC_PAGESIZE)),
                                                true);
  auto* front = new (content_->memory->base()) StoreHeader;
  for (int slot = 0; slot < 2 * ranks; ++slot) {
    new (&front->slot(0, ranks, slot)) Slot;
  }
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t records =
      sizeof(StoreHeader) + 2 * static_cast<std::size_t>(ranks) * sizeof(Slot);
  front->used = (records + page - 1) / page * page;
}

MemoryStateStore::~MemoryStateStore() = default;

void MemoryStateStore::keep(std::int64_t step, const StateDict& state) {
  using namespace checkpoint_detail;
  const int rank = current_rank();
  const int number = rank - content_->first;
  OwnPart& own = content_->own.at(static_cast<std::size_t>(number));
  content_->wait_for_copy();
  // Ranks meet in it: those of the last generation are all done with it, so the older one is free,
  // on all machines.
  follow(own, state, content_->numbers());
  Slot& slot = content_->slot(content_->older(), number);
  slot.step = -1;
  CheckpointIndex index;
  index.scalars = state.scalars;
  const std::string scalars = to_json(index);
  const std::uint64_t front = aligned(own.text.size() + scalars.size());
  content_->reserve(slot, front + own.bytes);
  std::byte* const begin = content_->memory->at(slot.offset);
  std::memcpy(begin, own.text.data(), own.text.size());
  std::memcpy(begin + own.text.size(), scalars.data(), scalars.size());
  slot.tensor_text = own.text.size();
  slot.scalar_text = scalars.size();
  slot.used = front + own.bytes;
  std::byte* at = begin + front;
  for (const auto& [part, values] : values_to_write(own.file, state, rank)) {
    copy_values(values, at);
    at += aligned(own.file.parts[part].bytes());
  }
  slot.step = step;
  content_->say_change();
}

std::optional<std::int64_t> MemoryStateStore::newest() const {
  const int newest = content_->newest();
  return newest < 0 ? std::nullopt : content_->step_of(newest);
}

std::unique_ptr<TensorSource> MemoryStateStore::open() const {
  const int newest = content_->newest();
  if (newest < 0) {
    fail({.thing = "train.heal", .wrong = "no state is in memory"});
  }
  return std::make_unique<checkpoint_detail::StateStoreSource>(*content_, newest);
}

std::vector<std::int64_t> MemoryStateStore::whole() const {
  std::vector<std::int64_t> steps;
  for (const int generation : {0, 1}) {
    if (const std::optional<std::int64_t> step = content_->step_of(generation)) {
      steps.push_back(*step);
    }
  }
  return steps;
}

std::optional<collective::StateGeneration> MemoryStateStore::generation(std::int64_t step) const {
  using namespace checkpoint_detail;
  for (const int generation : {0, 1}) {
    if (content_->step_of(generation) == step) {
      collective::StateGeneration all{.step = step};
      for (int rank = 0; rank < content_->ranks; ++rank) {
        const Slot& slot = content_->slot(generation, rank);
        all.head.insert(all.head.end(), {slot.tensor_text, slot.scalar_text, slot.used});
        all.blocks.emplace_back(content_->memory->at(slot.offset), slot.used);
      }
      return all;
    }
  }
  return std::nullopt;
}

std::int64_t MemoryStateStore::wait_for_newer(std::int64_t step, double seconds) const {
  const std::uint32_t seen = content_->front().changes;
  const auto found = [&] {
    const std::int64_t now = newest().value_or(-1);
    return now > step ? now : -1;
  };
  if (const std::int64_t now = found(); now >= 0) {
    return now;
  }
  collective::sleep_on(&content_->front().changes, seen, seconds);
  return found();
}

std::vector<std::span<std::byte>> MemoryStateStore::begin_copy(
    std::span<const std::uint64_t> head) {
  using namespace checkpoint_detail;
  constexpr std::size_t entries = 3;
  require(head.size() == entries * static_cast<std::size_t>(content_->ranks),
          "train.heal: a copy of a state is one of other ranks");
  const int generation = content_->older();
  std::vector<std::span<std::byte>> blocks;
  for (int rank = 0; rank < content_->ranks; ++rank) {
    const std::uint64_t* of_rank = &head[entries * static_cast<std::size_t>(rank)];
    require(of_rank[2] >= aligned(of_rank[0] + of_rank[1]),
            "train.heal: a copy of a state is shorter than its texts");
    Slot& slot = content_->slot(generation, rank);
    slot.step = -1;
    content_->reserve(slot, of_rank[2]);
    slot.tensor_text = of_rank[0];
    slot.scalar_text = of_rank[1];
    slot.used = of_rank[2];
    blocks.emplace_back(content_->memory->at(slot.offset), slot.used);
  }
  content_->filled = generation;
  return blocks;
}

void MemoryStateStore::end_copy(std::int64_t step) {
  for (int rank = 0; rank < content_->ranks; ++rank) {
    content_->slot(content_->filled, rank).step = step;
  }
}

void MemoryStateStore::expect_copies() { content_->front().copies = true; }

void MemoryStateStore::set_copied(std::int64_t step) { content_->front().copied = step; }

void MemoryStateStore::drop_after(std::int64_t step) {
  for (const int generation : {0, 1}) {
    const std::optional<std::int64_t> is = content_->step_of(generation);
    for (int rank = 0; (!is || *is > step) && rank < content_->ranks; ++rank) {
      content_->slot(generation, rank).step = -1;
    }
  }
  content_->front().copied = -1;
}

std::uint64_t MemoryStateStore::bytes() const { return content_->front().used; }

std::int64_t MemoryStateStore::told() const { return content_->front().told; }

void MemoryStateStore::set_told(std::int64_t step) { content_->front().told = step; }

}  // namespace tessera
