module;
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :host_fetches;

namespace tessera {

HostFetches::HostFetches(const Program& program, std::size_t ahead) {
  std::set<TensorIndex> parameters;
  for (const auto& [name, input] : program.inputs) {
    if (input.role == Role::parameter) {
      parameters.insert(input.tensor);
    }
  }
  asked_.resize(program.sections.size());
  for (std::size_t s = 0; s < program.sections.size(); ++s) {
    const std::vector<Instruction>& instructions = program.sections[s].instructions;
    std::map<TensorIndex, std::size_t> known;  // after which instruction of the section
    for (std::size_t at = 0; at < instructions.size(); ++at) {
      const Instruction& i = instructions[at];
      if (i.kind != Instruction::Kind::call || i.op->view != nullptr) {
        continue;
      }
      for (std::size_t k = 0; k < i.in.size(); ++k) {
        const TensorIndex number = i.in[k];
        if (!number.exists() || !parameters.contains(number)) {
          continue;
        }
        if (!i.op->in_place) {
          const auto after = known.find(number);
          const std::size_t first = after == known.end() ? 0 : after->second + 1;
          asked_[s][std::max(first, at < ahead ? 0 : at - ahead)].push_back(number);
        }
        known[number] = at;
      }
    }
  }
}

void HostFetches::begin_on(Device device) {
  if (!stream_ || !(stream_->device() == device)) {
    stream_ = Stream::make(device);
  }
}

void HostFetches::before(ProgramPlace place, const ByTensor<Tensor>& tensors,
                         const std::function<bool(const Tensor& x)>& on_host) {
  const auto asked = asked_[place.section].find(place.at);
  if (asked == asked_[place.section].end()) {
    return;
  }
  for (const TensorIndex number : asked->second) {
    if (const Tensor& x = tensors[number]; on_host(x)) {
      fetch(number, x);
    }
  }
}

void HostFetches::fetch(TensorIndex number, const Tensor& x) {
  const auto bytes = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  if (bytes == 0) {
    return;
  }
  const MemoryScope scope(MemoryCategory::communication);
  const StreamScope in_stream(*stream_);
  HostCopy one = {.copy = empty(x.shape(), x.dtype(), stream_->device()), .from = &x.storage()};
  if (is_pinned(stream_->device(), x.raw_data())) {
    stream_->copy(one.copy.device_address(), x.raw_data(), bytes, CopyKind::from_pinned);
  } else {
    const PinnedMemory pinned(*stream_, bytes);
    stream_->launch(
        [to = pinned.data(), from = x.raw_data(), bytes] { std::memcpy(to, from, bytes); });
    stream_->copy(one.copy.device_address(), pinned.data(), bytes, CopyKind::from_pinned);
  }
  one.ready.record(*stream_);
  fetched_.insert_or_assign(number, std::move(one));
}

Tensor HostFetches::taken(TensorIndex number) {
  const auto found = fetched_.find(number);
  if (found == fetched_.end()) {
    return {};
  }
  Tensor copy = std::move(found->second.copy);
  const Stream stream = current_stream(stream_->device());
  stream.wait(found->second.ready);
  copy.storage().used_on(stream);
  std::erase_if(used_, [](const HostCopy& one) { return one.ready.reached(); });
  used_.push_back({.copy = {}, .from = found->second.from, .ready = found->second.ready});
  fetched_.erase(found);
  return copy;
}

void HostFetches::wait_for(const Storage& memory) {
  for (const HostCopy& one : used_) {
    if (one.from == &memory) {
      one.ready.synchronize();
    }
  }
}

void HostFetches::end() {
  for (const HostCopy& one : used_) {
    one.ready.synchronize();
  }
  for (const auto& [number, one] : fetched_) {
    one.ready.synchronize();
  }
  used_.clear();
  fetched_.clear();
}

void HostFetches::abandon() noexcept {
  try {
    end();
  } catch (...) {  // the device has failed: nothing runs there any more
    used_.clear();
    fetched_.clear();
  }
}

}  // namespace tessera
