// A GPU as Tessera's devices are used: the only place that knows both interfaces. Include it after
// the imports of tessera.base and tessera.device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "blas.hpp"
#include "dnn.hpp"
#include "driver_api.hpp"
#include "host_functions.hpp"
#include "interop.hpp"
#include "kernels/arguments.hpp"

namespace tessera::cuda {

class CudaDriver final : public DeviceDriver, public Interop {
 public:
  explicit CudaDriver(int index);
  ~CudaDriver() override;
  DeviceProperties properties() const override;

  void* allocate(std::size_t bytes) override;
  void free(void* data, std::size_t bytes) noexcept override;
  void* allocate_pinned(std::size_t bytes) override;
  void free_pinned(void* data, std::size_t bytes) noexcept override;

  Queue make_queue() override;
  void free_queue(Queue queue) noexcept override;
  void synchronize(Queue queue, const WaitCheck& check) override;

  Mark make_mark() override;
  void free_mark(Mark mark) noexcept override;
  void record(Mark mark, Queue queue) override;
  void wait(Queue queue, Mark mark) override;
  bool reached(Mark mark) override;
  void await(Mark mark, const WaitCheck& check) override;

  void copy(Queue queue, void* to, const void* from, std::size_t bytes, CopyKind kind) override;
  void fill(Queue queue, void* to, const void* element, std::size_t width,
            std::int64_t count) override;
  void launch(Queue queue, std::function<void()> function) override;

  bool has_graphs() const override { return true; }
  void begin_graph(Queue queue) override;
  Graph end_graph(Queue queue) override;
  void launch_graph(Queue queue, Graph graph) override;
  void free_graph(Graph graph) noexcept override;

  void make_current() const override;
  StreamHandle handle_of(Queue queue) const override;
  void launch_kernel(Queue queue, const std::string& name, unsigned blocks, unsigned threads,
                     const void* structure, std::size_t bytes) override;
  const CallWatch& watch() const override { return watch_; }
  /// With so many bytes of launched_memory() (kernels/mma.hpp): at most 99 KiB, which each GPU has.
  void launch_with_memory(Queue queue, const std::string& name, unsigned blocks, unsigned threads,
                          unsigned memory, const void* structure, std::size_t bytes);

  /// Compiles a source, whose kernels can then be launched by their names; once for each source.
  /// Returns why it is not compiled: there is no compiler. Error: it refuses the source.
  std::string load_source(const std::string& source);

  /// The device's products by cuBLASLt; null: there is no library. The caller's thread is made one
  /// of the device.
  Blas* blas();
  /// The same for attention by cuDNN; null: it is not wanted (Dnn::is_wanted).
  Dnn* dnn();

  /// Where kernels note an index that is out of its range; the next wait raises the error.
  Problem* problem() const { return problem_; }

 private:
  struct Stream;
  struct Event;
  struct Recorded;

  /// Makes the device's context that of the calling thread, as every function does first.
  const DriverApi& enter() const;
  Stream& of(Queue queue) const;
  void keep_room(Queue queue) const;
  /// Where streams compete for the device, those that are `urgent` come first.
  std::shared_ptr<Stream> open_stream(bool urgent);
  /// Returns when the event is reached; calls the check meanwhile.
  void wait_for(EventHandle event, const WaitCheck& still_runs);
  void raise_error(Stream& stream);
  void raise_problem();
  void free_retired();
  /// A kernel that may be launched with so many bytes of shared memory.
  Function function(const std::string& name, unsigned memory);
  Function find_kernel(Module module, const std::string& name) const;
  std::pair<Result, Module> load_module(const void* image) const;
  HostFunctions::Counter* take_counter();

  Device device_;
  CallWatch watch_;
  Context context_ = nullptr;
  Problem* problem_ = nullptr;  // pinned
  DeviceProperties properties_;
  std::shared_ptr<Stream> usual_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Stream>> retired_;  // freed by their users, with work left
  std::vector<std::unique_ptr<Recorded>> retired_graphs_;
  std::vector<HostFunctions::Counter*> counters_;  // of those that have ended; pinned
  std::vector<Module> modules_;
  std::string capability_;         // "90"
  std::mutex loading_;             // of sources
  std::set<std::string> sources_;  // that are loaded
  struct LoadedKernel {
    Function function = nullptr;
    unsigned memory = usual_launched_memory;  // that a launch may have
  };
  std::map<std::string, LoadedKernel> functions_;
  std::once_flag blas_opened_;
  std::unique_ptr<Blas> blas_;
  std::once_flag dnn_opened_;
  std::unique_ptr<Dnn> dnn_;
};

}  // namespace tessera::cuda
