// What of a recorded step is still there after it.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/storage_ends.hpp>
#include <unordered_map>
#include <utility>
module tessera.train;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :made_tensors;

namespace tessera {
namespace {

struct MadeStorage {
  const MadeTensors* by;
  const Storage* storage;
  std::int64_t number;  // in the order in which they were made
  std::string words;
};

/// Of all threads that record. A storage ends only when no one looks at it.
struct StorageTable {
  std::mutex mutex;
  std::unordered_map<const void*, MadeStorage> made;
  int users = 0;
  std::int64_t count = 0;
};

StorageTable& existing() {
  static StorageTable one;
  return one;
}

void forget(const void* storage) noexcept {
  StorageTable& all = existing();
  const std::lock_guard lock(all.mutex);
  all.made.erase(storage);
}

/// How many handles of tensors and of storages the results are.
class HandleCounts {
 public:
  explicit HandleCounts(std::span<const Tensor> results) {
    std::set<const TensorImpl*> distributed;
    for (const Tensor& x : results) {
      const Tensor& local = local_of(x);
      if (!x.is_distributed() || distributed.insert(x.impl()).second) {
        ++tensors_[local.impl()];
      }
    }
    for (const auto& [tensor, handles] : tensors_) {
      ++storages_[tensor->storage.get()];
    }
  }

  /// Whether anything else has the memory.
  bool is_all_of(const Storage& storage) const {
    const auto found = storages_.find(&storage);
    return found != storages_.end() && storage.references() <= found->second &&
           std::ranges::all_of(tensors_, [&](const auto& one) {
             return one.first->storage.get() != &storage || one.first->references <= one.second;
           });
  }

 private:
  std::map<const TensorImpl*, int> tensors_;
  std::map<const Storage*, int> storages_;
};

}  // namespace

MadeTensors::MadeTensors() {
  StorageTable& all = existing();
  const std::lock_guard lock(all.mutex);
  if (++all.users == 1) {
    storage_end = forget;
  }
}

MadeTensors::~MadeTensors() {
  StorageTable& all = existing();
  const std::lock_guard lock(all.mutex);
  if (--all.users == 0) {
    storage_end = nullptr;
  }
  std::erase_if(all.made, [&](const auto& one) { return one.second.by == this; });
}

void MadeTensors::note(const Tensor& x, std::string_view by) const {
  const MemoryCategory category = current_memory_category();
  if (paused_ || (category != MemoryCategory::activation && category != MemoryCategory::gradient)) {
    return;  // what styles keep from step to step follows from parameters, and is made again
  }
  const Tensor& local = local_of(x);
  StorageTable& all = existing();
  const std::lock_guard lock(all.mutex);
  all.made.try_emplace(
      &local.storage(),
      MadeStorage{.by = this,
                  .storage = &local.storage(),
                  .number = all.count++,
                  .words = fmt::format("{}{} that '{}' has made{}", name_of(local.dtype()),
                                       to_string(local.shape()), by, recorded_place())});
}

Tensors MadeTensors::unseen(const std::function<Tensors()>& make) {
  struct Pause {  // until the end, also by an error
    bool& paused;
    bool before;
    ~Pause() { paused = before; }
  };
  const Pause pause{paused_, std::exchange(paused_, true)};
  return make();
}

Tensors MadeTensors::call(const Call& call, NextCall& next) {
  Tensors out = next(call);
  for (const Tensor& x : out) {
    const auto is_its = [&](const Tensor& operand) {
      return operand && &local_of(operand).storage() == &local_of(x).storage();
    };
    if (x && std::ranges::none_of(call.in, is_its)) {
      note(x, call.op.name);
    }
  }
  return out;
}

void MadeTensors::perform(Action& action, NextAction& next) {
  next(action);
  if (action.kind == ActionKind::create) {
    note(action.out[0], action.name);
  }
}

void MadeTensors::check_gone(std::span<const Tensor> results) const {
  const HandleCounts held(results);
  const MadeStorage* last = nullptr;
  StorageTable& all = existing();
  const std::lock_guard lock(all.mutex);
  for (const auto& [storage, one] : all.made) {
    if (one.by == this && one.storage->has_memory() && !held.is_all_of(*one.storage) &&
        (last == nullptr || one.number > last->number)) {
      last = &one;
    }
  }
  if (last != nullptr) {
    fail({.thing = "record",
          .wrong = fmt::format("a variable outside of the step, or a member of a module, has a {} "
                               "after the step, which no replay would write",
                               last->words),
          .advice = "return it as a result, and let go of it before the step ends (x = Tensor()); "
                    "what must be known there is read by to_doubles() or written into a buffer"});
  }
}

}  // namespace tessera
