#include <fmt/format.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <thread>
#include <utility>

#include "image.hpp"
#include "library.hpp"
#include "nvrtc.hpp"

import tessera.base;
import tessera.device;

#include "driver.hpp"
#include "problem.hpp"

namespace tessera::cuda {

struct CudaDriver::Stream {
  StreamHandle handle = nullptr;
  std::unique_ptr<HostFunctions> functions;  // null: none was queued yet
  std::mutex mutex;                          // of the line above
  std::atomic<unsigned> calls = 0;           // that have queued something
  std::atomic<bool> captured = false;        // now
  std::deque<tessera::Event> marks;          // among the calls, of which the last ones are kept
  std::mutex marks_mutex;
};

struct CudaDriver::Event {
  EventHandle handle = nullptr;
  std::mutex mutex;
  std::shared_ptr<Stream> recorded_in;  // whose errors an await raises; null: nowhere yet
};

/// A graph, and the end of its last launch.
struct CudaDriver::Recorded {
  GraphExec exec = nullptr;
  EventHandle launched = nullptr;
};

namespace {

constexpr int name_length = 256;
/// Results of functions and sums are this near to the CPU's (DeviceProperties::tolerance).
constexpr double tolerance = 1e-5;

DevicePointer address(const void* data) { return reinterpret_cast<DevicePointer>(data); }

/// Says what to do where the driver cannot use the kernels that are built into the plugin.
void refuse_image(Result loaded, const std::string& thing, const std::string& capability,
                  const std::string& gpu) {
  const std::string ahead =
      fmt::format("compile the kernels ahead (-D TESSERA_CUDA_ARCHITECTURES={})", capability);
  switch (loaded) {
    case Result::invalid_image:
    case Result::no_binary_for_gpu:
      fail_input({.thing = thing,
                  .wrong = fmt::format("its plugin has no kernels for {}", gpu),
                  .advice = fmt::format(
                      "build Tessera where nvcc 12.8 or later is found (./dev setup cuda), and {}",
                      ahead)});
    case Result::invalid_ptx:
      fail_input({.thing = thing,
                  .wrong = fmt::format("the driver refuses the plugin's PTX for {}", gpu),
                  .advice = fmt::format("build Tessera again, or {}", ahead)});
    case Result::unsupported_ptx_version:
      fail_input({.thing = thing,
                  .wrong = "the driver is older than the nvcc that compiled the plugin, and cannot "
                           "read its PTX",
                  .advice = fmt::format("install a newer driver of NVIDIA's, build Tessera with an "
                                        "older nvcc (./dev setup cuda), or {}",
                                        ahead)});
    case Result::jit_compiler_not_found:
      fail_input({.thing = thing,
                  .wrong = "the driver's compiler of PTX (libnvidia-ptxjitcompiler.so.1) is not "
                           "found",
                  .advice = fmt::format("install it with the driver, or {}", ahead)});
    case Result::jit_compilation_disabled:
      fail_input({.thing = thing,
                  .wrong = "the driver must not compile PTX",
                  .advice = fmt::format("unset CUDA_DISABLE_PTX_JIT, or {}", ahead)});
    default:
      break;
  }
}

}  // namespace

CudaDriver::CudaDriver(int index)
    : device_{device_type("cuda").value(), static_cast<std::int8_t>(index)},
      watch_(fmt::format("device 'cuda:{}'", index)) {
  const DriverApi& api = driver_api(watch_);
  DeviceNumber device = 0;
  check(api.device_get(&device, index), "cuDeviceGet");
  std::array<char, name_length> name{};
  check(api.device_get_name(name.data(), name_length - 1, device), "cuDeviceGetName");
  properties_.description = name.data();
  properties_.tolerance = tolerance;
  check(api.device_total_mem(&properties_.memory, device), "cuDeviceTotalMem");
  const auto [retained, context] =
      watch_.call("cuDevicePrimaryCtxRetain", [&api, device](const WatchedThread& watched) {
        Context made = nullptr;
        const Result result = api.device_primary_ctx_retain(watched, &made, device);
        return std::pair(result, made);
      });
  check(retained, "cuDevicePrimaryCtxRetain");
  context_ = context;
  // Where that fails, the call itself does, and says so.
  watch_ = CallWatch(fmt::format("device 'cuda:{}'", index),
                     [entered = context] { driver_api().ctx_set_current(entered); });
  enter();
  int major = 0;
  int minor = 0;
  check(api.device_get_attribute(&major, compute_capability_major, device), "cuDeviceGetAttribute");
  check(api.device_get_attribute(&minor, compute_capability_minor, device), "cuDeviceGetAttribute");
  capability_ = fmt::format("{}{}", major, minor);
  for (const void* image : kernel_images()) {
    const auto [loaded, module] = load_module(image);
    refuse_image(loaded, fmt::format("device 'cuda:{}'", index), capability_,
                 properties_.description);
    check(loaded, "cuModuleLoadData");
    modules_.push_back(module);
  }
  usual_ = open_stream(false);
  void* const pinned = allocate_pinned(sizeof(Problem));
  check(pinned == nullptr ? Result::out_of_memory : Result::success, "cuMemHostAlloc");
  problem_ = new (pinned) Problem{};
}

CudaDriver::~CudaDriver() = default;

const DriverApi& CudaDriver::enter() const {
  const DriverApi& api = driver_api();
  check(api.ctx_set_current(context_), "cuCtxSetCurrent");
  return api;
}

/// `image` must stay as long as the process.
std::pair<Result, Module> CudaDriver::load_module(const void* image) const {
  return watch_.call("cuModuleLoadData",
                     [&api = driver_api(), image](const WatchedThread& watched) {
                       Module made = nullptr;
                       const Result result = api.module_load_data(watched, &made, image);
                       return std::pair(result, made);
                     });
}

DeviceProperties CudaDriver::properties() const { return properties_; }

// ---- memory ----

void* CudaDriver::allocate(std::size_t bytes) {
  const auto [result, data] =
      watch_.call("cuMemAlloc", [&api = driver_api(), bytes](const WatchedThread& watched) {
        DevicePointer made = 0;
        const Result taken = api.mem_alloc(watched, &made, bytes);
        return std::pair(taken, made);
      });
  if (result == Result::out_of_memory) {
    return nullptr;
  }
  check(result, "cuMemAlloc");
  return reinterpret_cast<void*>(data);
}

void CudaDriver::free(void* data, std::size_t) noexcept {
  // After an error of the device everything fails; the error itself is raised where work waits.
  watch_.end("cuMemFree", [data](const WatchedThread& watched) {
    driver_api().mem_free(watched, address(data));
  });
}

void* CudaDriver::allocate_pinned(std::size_t bytes) {
  const auto [result, data] =
      watch_.call("cuMemHostAlloc", [&api = driver_api(), bytes](const WatchedThread& watched) {
        void* made = nullptr;
        const Result taken =
            api.mem_host_alloc(watched, &made, bytes, host_alloc_portable | host_alloc_device_map);
        return std::pair(taken, made);
      });
  if (result == Result::out_of_memory) {
    return nullptr;
  }
  check(result, "cuMemHostAlloc");
  return data;
}

void CudaDriver::free_pinned(void* data, std::size_t) noexcept {
  watch_.end("cuMemFreeHost",
             [data](const WatchedThread& watched) { driver_api().mem_free_host(watched, data); });
}

// ---- queues ----

std::shared_ptr<CudaDriver::Stream> CudaDriver::open_stream(bool urgent) {
  const DriverApi& api = enter();
  int least = 0;
  int greatest = 0;  // a smaller number
  check(api.ctx_get_stream_priority_range(&least, &greatest), "cuCtxGetStreamPriorityRange");
  const int priority = urgent ? greatest : least;
  auto stream = std::make_shared<Stream>();
  check(watch_.call("cuStreamCreateWithPriority",
                    [&api, stream, priority](const WatchedThread& watched) {
                      return api.stream_create(watched, &stream->handle, stream_non_blocking,
                                               priority);
                    }),
        "cuStreamCreateWithPriority");
  return stream;
}

CudaDriver::Stream& CudaDriver::of(Queue queue) const {
  return queue == nullptr ? *usual_ : **static_cast<std::shared_ptr<Stream>*>(queue);
}

DeviceDriver::Queue CudaDriver::make_queue() {
  free_retired();
  // Operators run in the default queue. The others are of collectives and fetches, for which it
  // waits, and which need little of the device.
  return new std::shared_ptr<Stream>(open_stream(true));
}

void CudaDriver::free_queue(Queue queue) noexcept {
  auto* held = static_cast<std::shared_ptr<Stream>*>(queue);
  const std::lock_guard lock(mutex_);
  retired_.push_back(std::move(*held));
  delete held;
}

/// Frees queues that their users have freed and whose work is done.
void CudaDriver::free_retired() {
  const DriverApi& api = enter();
  std::vector<StreamHandle> streams;
  std::vector<GraphExec> graphs;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(retired_, [&](const std::shared_ptr<Stream>& stream) {
      if (api.stream_query(stream->handle) != Result::success) {
        return false;
      }
      if (stream->functions != nullptr) {
        counters_.push_back(stream->functions->counter());
        stream->functions.reset();
      }
      streams.push_back(stream->handle);
      return true;
    });
    std::erase_if(retired_graphs_, [&](const std::unique_ptr<Recorded>& graph) {
      if (api.event_query(graph->launched) != Result::success) {
        return false;
      }
      graphs.push_back(graph->exec);
      api.event_destroy(graph->launched);
      return true;
    });
  }
  for (const StreamHandle stream : streams) {
    watch_.call("cuStreamDestroy", [&api, stream](const WatchedThread& watched) {
      return api.stream_destroy(watched, stream);
    });
  }
  for (const GraphExec graph : graphs) {
    watch_.call("cuGraphExecDestroy", [&api, graph](const WatchedThread& watched) {
      return api.graph_exec_destroy(watched, graph);
    });
  }
}

/// Called before something is queued. Waits until the work is done that was queued long before: a
/// full queue (some 1,024 calls) blocks in the driver, where nobody looks at the other ranks.
void CudaDriver::keep_room(Queue queue) const {
  constexpr unsigned between_marks = 256;
  constexpr std::size_t kept = 2;
  Stream& stream = of(queue);
  if (++stream.calls % between_marks != 0 || stream.captured) [[likely]] {
    return;
  }
  const tessera::Stream current = current_stream(device_);
  if (current.native() != queue) {
    return;
  }
  tessera::Event before;
  {
    const std::lock_guard lock(stream.marks_mutex);
    stream.marks.push_back(record_event(current));
    if (stream.marks.size() <= kept) {
      return;
    }
    before = std::move(stream.marks.front());
    stream.marks.pop_front();
  }
  before.synchronize();
}

void CudaDriver::raise_error(Stream& stream) {
  const std::lock_guard lock(stream.mutex);
  if (stream.functions != nullptr) {
    if (const std::exception_ptr error = stream.functions->take_error()) {
      std::rethrow_exception(error);
    }
  }
}

/// Raises the error of an index that a kernel has noted; its text is that of the CPU's kernel.
void CudaDriver::raise_problem() {
  Problem found;
  {
    const std::lock_guard lock(mutex_);
    if (static_cast<volatile Problem*>(problem_)->kind == ProblemKind::none) [[likely]] {
      return;
    }
    found = std::exchange(*problem_, Problem{});
  }
  throw Error(problem_fields(found));
}

void CudaDriver::wait_for(EventHandle event, const WaitCheck& still_runs) {
  constexpr int spins = 1000;
  for (int i = 0;; ++i) {
    const Result result = enter().event_query(event);
    if (result != Result::not_ready) {
      return check(result, "cuEventQuery");
    }
    if (i >= spins) {
      still_runs();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

void CudaDriver::synchronize(Queue queue, const WaitCheck& still_runs) {
  Stream& stream = of(queue);
  const std::unique_ptr<Event, void (*)(Event*)> end(static_cast<Event*>(make_mark()),
                                                     [](Event* event) {
                                                       driver_api().event_destroy(event->handle);
                                                       delete event;
                                                     });
  check(enter().event_record(end->handle, stream.handle), "cuEventRecord");
  wait_for(end->handle, still_runs);
  raise_error(stream);
  raise_problem();
}

// ---- marks ----

DeviceDriver::Mark CudaDriver::make_mark() {
  auto event = std::make_unique<Event>();
  check(enter().event_create(&event->handle, event_disable_timing), "cuEventCreate");
  return event.release();
}

void CudaDriver::free_mark(Mark mark) noexcept {
  auto* event = static_cast<Event*>(mark);
  driver_api().ctx_set_current(context_);
  driver_api().event_destroy(event->handle);
  delete event;
}

void CudaDriver::record(Mark mark, Queue queue) {
  auto& event = *static_cast<Event*>(mark);
  {
    const std::lock_guard lock(event.mutex);
    event.recorded_in = queue == nullptr ? usual_ : *static_cast<std::shared_ptr<Stream>*>(queue);
  }
  check(enter().event_record(event.handle, of(queue).handle), "cuEventRecord");
}

void CudaDriver::wait(Queue queue, Mark mark) {
  check(enter().stream_wait_event(of(queue).handle, static_cast<Event*>(mark)->handle, 0),
        "cuStreamWaitEvent");
}

bool CudaDriver::reached(Mark mark) {
  const Result result = enter().event_query(static_cast<Event*>(mark)->handle);
  if (result != Result::not_ready) {
    check(result, "cuEventQuery");
  }
  return result == Result::success;
}

void CudaDriver::await(Mark mark, const WaitCheck& still_runs) {
  auto& event = *static_cast<Event*>(mark);
  wait_for(event.handle, still_runs);
  std::shared_ptr<Stream> stream;
  {
    const std::lock_guard lock(event.mutex);
    stream = event.recorded_in;
  }
  if (stream != nullptr) {
    raise_error(*stream);
  }
  raise_problem();
}

// ---- work ----

void CudaDriver::copy(Queue queue, void* to, const void* from, std::size_t bytes, CopyKind kind) {
  keep_room(queue);
  const DriverApi& api = enter();
  const StreamHandle stream = of(queue).handle;
  switch (kind) {
    case CopyKind::from_pinned:
      check(api.memcpy_htod_async(address(to), from, bytes, stream), "cuMemcpyHtoDAsync");
      break;
    case CopyKind::to_device:
      // The driver may read it when the stream gets there.
      check(api.memcpy_htod_async(address(to), from, bytes, stream), "cuMemcpyHtoDAsync");
      check(watch_.call("cuStreamSynchronize",
                        [&api, stream](const WatchedThread& watched) {
                          return api.stream_synchronize(watched, stream);
                        }),
            "cuStreamSynchronize");
      break;
    case CopyKind::to_host:
      check(api.memcpy_dtoh_async(to, address(from), bytes, stream), "cuMemcpyDtoHAsync");
      break;
    case CopyKind::on_device:
      check(api.memcpy_async(address(to), address(from), bytes, stream), "cuMemcpyAsync");
      break;
  }
}

void CudaDriver::fill(Queue queue, void* to, const void* element, std::size_t width,
                      std::int64_t count) {
  keep_room(queue);
  const DriverApi& api = enter();
  const StreamHandle stream = of(queue).handle;
  const auto elements = static_cast<std::size_t>(count);
  std::array<std::uint32_t, 2> words{};
  std::memcpy(words.data(), element, width);
  if (width == 1) {
    check(api.memset_d8_async(address(to), static_cast<unsigned char>(words[0]), elements, stream),
          "cuMemsetD8Async");
  } else if (width == 2) {
    check(
        api.memset_d16_async(address(to), static_cast<unsigned short>(words[0]), elements, stream),
        "cuMemsetD16Async");
  } else if (width == 4 || words[0] == words[1]) {
    check(api.memset_d32_async(address(to), words[0], elements * width / 4, stream),
          "cuMemsetD32Async");
  } else {
    const FillArguments arguments = {to, std::uint64_t{words[1]} << 32 | words[0], count};
    launch_kernel(queue, "fill_words", blocks_for(count), threads_per_block, &arguments,
                  sizeof(arguments));
  }
}

/// Pinned memory that is kept: freeing it may wait for all streams.
HostFunctions::Counter* CudaDriver::take_counter() {
  {
    const std::lock_guard lock(mutex_);
    if (!counters_.empty()) {
      HostFunctions::Counter* const counter = counters_.back();
      counters_.pop_back();
      return counter;
    }
  }
  void* const memory = allocate_pinned(sizeof(HostFunctions::Counter));
  if (memory == nullptr) {
    check(Result::out_of_memory, "cuMemHostAlloc");
  }
  return new (memory) HostFunctions::Counter(0);
}

void CudaDriver::launch(Queue queue, std::function<void()> function) {
  keep_room(queue);
  Stream& stream = of(queue);
  enter();
  HostFunctions* functions = nullptr;
  {
    const std::lock_guard lock(stream.mutex);
    if (stream.functions == nullptr) {
      stream.functions = std::make_unique<HostFunctions>(stream.handle, take_counter());
    }
    functions = stream.functions.get();
  }
  functions->launch(std::move(function));  // blocks while the stream's queue is full
}

// ---- graphs ----

void CudaDriver::begin_graph(Queue queue) {
  free_retired();
  check(enter().stream_begin_capture(of(queue).handle, capture_thread_local),
        "cuStreamBeginCapture");
  of(queue).captured = true;
}

DeviceDriver::Graph CudaDriver::end_graph(Queue queue) {
  const DriverApi& api = enter();
  of(queue).captured = false;
  GraphHandle graph = nullptr;
  check(api.stream_end_capture(of(queue).handle, &graph), "cuStreamEndCapture");
  auto recorded = std::make_unique<Recorded>();
  const auto [made, exec] =
      watch_.call("cuGraphInstantiate", [&api, graph](const WatchedThread& watched) {
        GraphExec instance = nullptr;
        const Result result = api.graph_instantiate(watched, &instance, graph, 0);
        return std::pair(result, instance);
      });
  recorded->exec = exec;
  api.graph_destroy(graph);
  check(made, "cuGraphInstantiate");
  check(api.event_create(&recorded->launched, event_disable_timing), "cuEventCreate");
  return recorded.release();
}

void CudaDriver::launch_graph(Queue queue, Graph graph) {
  keep_room(queue);
  const DriverApi& api = enter();
  const auto& recorded = *static_cast<Recorded*>(graph);
  check(api.graph_launch(recorded.exec, of(queue).handle), "cuGraphLaunch");
  check(api.event_record(recorded.launched, of(queue).handle), "cuEventRecord");
}

void CudaDriver::free_graph(Graph graph) noexcept {
  const std::lock_guard lock(mutex_);
  retired_graphs_.emplace_back(static_cast<Recorded*>(graph));
}

/// A kernel of a module; null: it has none of this name.
Function CudaDriver::find_kernel(Module module, const std::string& name) const {
  const auto [result, function] =
      watch_.call("cuModuleGetFunction", [module, name](const WatchedThread& watched) {
        Function found = nullptr;
        const Result asked =
            driver_api().module_get_function(watched, &found, module, name.c_str());
        return std::pair(asked, found);
      });
  if (result != Result::not_found) {
    check(result, "cuModuleGetFunction");
  }
  return result == Result::success ? function : nullptr;
}

Function CudaDriver::function(const std::string& name, unsigned memory) {
  std::vector<Module> modules;
  LoadedKernel kernel;
  {
    const std::lock_guard lock(mutex_);
    const auto found = functions_.find(name);
    if (found != functions_.end() && memory <= found->second.memory) [[likely]] {
      return found->second.function;
    }
    if (found != functions_.end()) {
      kernel = found->second;
    }
    modules = modules_;
  }
  // Nothing is held while these calls wait; another thread may make them too.
  for (std::size_t i = 0; kernel.function == nullptr && i < modules.size(); ++i) {
    kernel.function = find_kernel(modules[i], name);
  }
  if (kernel.function == nullptr) {
    fail({.thing = "cuda",
          .wrong = fmt::format("there is no kernel '{}'", name),
          .advice = "add it to plugins/cuda/kernels"});
  }
  if (memory > kernel.memory) {
    check(watch_.call("cuFuncSetAttribute",
                      [of = kernel.function, memory](const WatchedThread& watched) {
                        return driver_api().func_set_attribute(watched, of, most_launched_memory,
                                                               static_cast<int>(memory));
                      }),
          "cuFuncSetAttribute");
    kernel.memory = memory;
  }
  const std::lock_guard lock(mutex_);
  LoadedKernel& kept = functions_[name];
  if (kept.function == nullptr || kept.memory < kernel.memory) {
    kept = kernel;
  }
  return kernel.function;
}

std::string CudaDriver::load_source(const std::string& source) {
  enter();
  const std::lock_guard loading(loading_);
  if (sources_.contains(source)) {
    return "";
  }
  CompiledSource compiled = compile_source(source, capability_);
  if (compiled.missing.empty()) {
    const auto [loaded, module] = watch_.call(
        "cuModuleLoadData", [code = std::move(compiled.code)](const WatchedThread& watched) {
          Module made = nullptr;
          const Result result = driver_api().module_load_data(watched, &made, code.data());
          return std::pair(result, made);
        });
    check(loaded, "cuModuleLoadData");
    sources_.insert(source);
    const std::lock_guard lock(mutex_);
    modules_.push_back(module);
  }
  return std::move(compiled.missing);
}

void CudaDriver::make_current() const { enter(); }

StreamHandle CudaDriver::handle_of(Queue queue) const {
  keep_room(queue);  // a library is about to queue something
  return of(queue).handle;
}

void CudaDriver::launch_kernel(Queue queue, const std::string& name, unsigned blocks,
                               unsigned threads, const void* structure, std::size_t bytes) {
  launch_with_memory(queue, name, blocks, threads, 0, structure, bytes);
}

void CudaDriver::launch_with_memory(Queue queue, const std::string& name, unsigned blocks,
                                    unsigned threads, unsigned memory, const void* structure,
                                    std::size_t bytes) {
  keep_room(queue);
  const DriverApi& api = enter();
  std::array<void*, 5> extra = {launch_buffer_pointer, const_cast<void*>(structure),
                                launch_buffer_size, &bytes, nullptr};
  check(api.launch_kernel(function(name, memory), blocks, 1, 1, threads, 1, 1, memory,
                          of(queue).handle, nullptr, extra.data()),
        "cuLaunchKernel");
}

Dnn* CudaDriver::dnn() {
  if (!Dnn::is_wanted()) {
    return nullptr;
  }
  enter();
  std::call_once(dnn_opened_, [&] {
    dnn_ = watch_.call("cudnnCreate", [watch = watch_](const WatchedThread& watched) {
      return std::make_unique<Dnn>(watched, watch);
    });
  });
  return dnn_.get();
}

Blas* CudaDriver::blas() {
  enter();
  std::call_once(blas_opened_, [&] {
    blas_ = watch_.call("cublasLtCreate", [watch = watch_](const WatchedThread& watched) {
      return Blas::open(watched, watch);
    });
  });
  return blas_.get();
}

}  // namespace tessera::cuda
