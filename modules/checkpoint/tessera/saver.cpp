module;
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tessera/limits.hpp>
#include <tessera/signals.hpp>
#include <thread>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.collective;
import tessera.device;
import tessera.mesh;
import tessera.ops;
import tessera.placement;
import tessera.tensor;
import :checkpoint_index;
import :job;
import :save_plan;
import :saver;
import :group_actions;

namespace tessera {

namespace checkpoint_detail {
namespace {

/// Memory of the host that a tensor is copied to, again and again.
class Buffer {
 public:
  Buffer(const Dims& shape, DType dtype, Device device) : device_(device) {
    const MemoryScope scope(MemoryCategory::snapshot);
    if (device == cpu) {
      values_ = empty(shape, dtype);
      return;
    }
    const auto bytes = static_cast<std::size_t>(shape.product()) * size_of(dtype);
    pinned_ = std::make_unique<PinnedMemory>(current_stream(device), bytes);
    values_ = from_storage(Storage::borrow(pinned_->data(), bytes), shape,
                           contiguous_strides(shape), 0, dtype);
  }

  bool fits(const Tensor& x) const {
    return values_.shape() == x.shape() && values_.dtype() == x.dtype() && device_ == x.device();
  }
  const Tensor& values() const { return values_; }

  /// Queues the copy of a device's tensor in its stream, and copies one of the host.
  void take(const Tensor& x) {
    const NoGrad constant;
    if (is_on_host(x)) {
      ops::copy_(values_, x);
      return;
    }
    const Tensor there = ops::contiguous(x);
    const Stream stream = current_stream(device_);
    there.storage().used_on(stream);
    stream.copy(values_.raw_data(),
                static_cast<const std::byte*>(there.storage().data()) +
                    static_cast<std::size_t>(there.offset()) * size_of(there.dtype()),
                static_cast<std::size_t>(there.numel()) * size_of(there.dtype()),
                CopyKind::to_host);
  }

 private:
  Device device_;
  std::unique_ptr<PinnedMemory> pinned_;
  Tensor values_;
};

}  // namespace

struct SaverContent {
  std::map<std::string, Buffer> buffers;  // by tensor
  std::thread thread;
  std::atomic<bool> running{false};
  std::string folder;        // of the save that is running or has ended; "": its end was told
  std::exception_ptr error;  // of it

  /// Puts copies in the place of the state's own values.
  void copy_values(SaveJob& job) {
    std::map<std::string, Buffer> kept;
    std::swap(kept, buffers);
    std::vector<Device> devices;
    for (auto& [i, values] : job.values) {
      const FilePart& part = job.file.parts[i];
      const Device device = is_on_host(values) ? cpu : values.device();
      auto buffer = kept.extract(key_of(part.name, part.box.offset));
      if (buffer.empty() || !buffer.mapped().fits(values)) {
        buffers.try_emplace(key_of(part.name, part.box.offset), part.box.shape, part.dtype, device);
      } else {
        buffers.insert(std::move(buffer));
      }
      Buffer& copy = buffers.at(key_of(part.name, part.box.offset));
      copy.take(values);
      values = copy.values();
      if (device != cpu && std::ranges::find(devices, device) == devices.end()) {
        devices.push_back(device);
      }
    }
    for (const Device device : devices) {
      current_stream(device).synchronize();
    }
  }

  /// Returns when no save is running.
  void join() {
    if (thread.joinable()) {
      thread.join();
    }
  }
};

}  // namespace checkpoint_detail

std::size_t snapshot_bytes(const StateDict& state) {
  using namespace checkpoint_detail;
  const IndexedTensors tensors = described(state);
  int ranks = 1;
  for (const auto& [name, tensor] : tensors) {
    ranks = std::max(ranks, tensor.layout ? std::ranges::max(tensor.layout.mesh().ranks()) + 1 : 1);
  }
  std::size_t bytes = 0;
  for (const std::vector<int>& group : file_groups(tensors, ranks)) {
    if (std::ranges::find(group, current_rank()) != group.end()) {
      for (const FilePart& part : plan_file(tensors, group).parts) {
        bytes += part.writer == current_rank()
                     ? static_cast<std::size_t>(occupied_bytes(part.bytes()))
                     : 0;
      }
    }
  }
  return bytes;
}

CheckpointSaver::CheckpointSaver() : content_(new checkpoint_detail::SaverContent) {}

CheckpointSaver::~CheckpointSaver() {
  try {
    wait();
  } catch (const std::exception& error) {
    if (!collective::is_of_peer(error)) {  // else its rank says it
      log(LogLevel::warning, error.what());
    }
  }
}

void CheckpointSaver::start(const std::string& folder, const StateDict& state,
                            const std::string& meta_data, const SaveOptions& options) {
  using namespace checkpoint_detail;
  wait();
  collective::Communicator& group = group_named("checkpoint writer");
  auto job = std::make_shared<SaveJob>(
      make_job(group_named("checkpoint plan"), folder, state, meta_data, options));
  // Where there is no memory for the copy, this rank waits for the save, and the others for it.
  const std::map<std::size_t, Tensor> live = job->values;
  const bool copied = try_side_work(SideWork::upkeep, "checkpoint.save", [&] {
    try {
      content_->copy_values(*job);
    } catch (const std::exception& error) {
      fail(
          {.thing = "checkpoint",
           .wrong = fmt::format("there is no memory for a copy of the state ({}), so that training "
                                "waits for the save",
                                error.what()),
           .advice = "set checkpoint.save to \"sync\", or free memory"});
    }
  });
  if (!copied) {
    job->values = live;
    content_->buffers.clear();
  }
  content_->folder = folder;
  content_->error = nullptr;
  content_->running = true;
  const ThreadsWithoutSignals quiet;
  const auto save = [this, &group, job, as = collective::RankContext()] {
    const collective::RankContext::Scope scope(as, true);
    // Training comes first: a save that takes longer delays nothing.
    ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 10);
    try {
      run_job(group, *job);
    } catch (...) {
      content_->error = std::current_exception();
    }
    content_->running = false;
  };
  try {
    content_->thread = start_thread("checkpoint.save", save);
  } catch (const Error&) {
    content_->running = false;
    throw;
  }
  if (!copied) {
    content_->join();
  }
}

bool CheckpointSaver::saving() const { return content_->running; }

bool CheckpointSaver::saving_anywhere() const {
  const std::int32_t mine = saving() ? 1 : 0;
  std::int32_t any = mine;
  checkpoint_detail::group_named("checkpoint plan")
      .all_reduce(&mine, &any, 1, DType::i32, ReduceOp::max);
  return any != 0;
}

std::optional<std::string> CheckpointSaver::finished() { return saving() ? std::nullopt : wait(); }

std::optional<std::string> CheckpointSaver::wait() {
  content_->join();
  if (content_->folder.empty()) {
    return std::nullopt;
  }
  std::string folder = std::exchange(content_->folder, "");
  if (content_->error) {
    std::rethrow_exception(std::exchange(content_->error, nullptr));
  }
  return folder;
}

}  // namespace tessera
