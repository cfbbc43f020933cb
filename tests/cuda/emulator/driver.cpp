// libcuda.so.1: CUDA's driver functions, as far as the plugin uses them.
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control.hpp"
#include "driver_api.hpp"
#include "fault.hpp"
#include "grid.hpp"
#include "handles.hpp"
#include "kernels/arguments.hpp"
#include "memory.hpp"
#include "modes.hpp"
#include "module_image.hpp"
#include "streams.hpp"
#include "text.hpp"

namespace tessera::cuda {

struct ContextData {
  int device = 0;
  bool made = false;
};
struct ModuleData {};
struct FunctionData {
  emulator::Kernel kernel;
  unsigned memory = tessera::cuda::usual_launched_memory;  // that its launches may give
};
struct EventData {
  std::shared_ptr<emulator::Event> event = std::make_shared<emulator::Event>();
};
struct GraphData {
  int device = 0;
  std::vector<emulator::Task> tasks;
};
struct GraphExecData {
  GraphData graph;
  std::shared_ptr<std::atomic<int>> running = std::make_shared<std::atomic<int>>(0);
};

}  // namespace tessera::cuda

namespace {

using namespace tessera::cuda;
using emulator::Executor;
using emulator::Fault;
using emulator::Memory;
using emulator::Modes;
using emulator::name_of;
using emulator::text;

constexpr int most_devices = 64;

std::atomic<pid_t> owner = 0;  // the process that called cuInit
std::atomic<std::uint64_t> launches = 0;
std::atomic<std::uint64_t> graph_launches = 0;
std::atomic<std::uint64_t> copies_to_host = 0;
std::atomic<int> last_priority = 0;  // of the stream of the last launch
std::atomic<const char*> last_kernel = "";
std::atomic<bool> lost = false;  // the device, by TESSERA_EMULATOR_LOSE
thread_local Context current = nullptr;
/// What the calling thread records; null: nothing.
thread_local std::shared_ptr<emulator::Recording> recorded;
ContextData contexts[most_devices];

int device_count() {
  const char* value = std::getenv("TESSERA_EMULATOR_DEVICES");
  return value == nullptr ? 2 : std::atoi(value);
}

/// What every function checks first.
Result usable() {
  if (owner == 0) {
    return Result::not_initialized;
  }
  if (owner != getpid()) {
    return Result::not_initialized;
  }
  return lost                           ? Result::unknown
         : Executor::instance().fault() ? Result::launch_failed
                                        : Result::success;
}

/// TESSERA_EMULATOR_LOSE="DEVICE NUMBER": whether the device is lost at this launch.
bool loses(int device, std::uint64_t launch) {
  static const char* const asked = std::getenv("TESSERA_EMULATOR_LOSE");
  char* rest = nullptr;
  return asked != nullptr && std::strtol(asked, &rest, 10) == device &&
         std::strtoull(rest, nullptr, 10) == launch;
}

Result in_context() {
  const Result result = usable();
  return result != Result::success ? result
         : current == nullptr      ? Result::invalid_context
                                   : Result::success;
}

/// Of functions that a thread must not call while it records.
Result outside_recordings() {
  if (recorded) {
    recorded->invalid = true;
    return Result::capture_unsupported;
  }
  return in_context();
}

/// Of functions that a stream which is recorded does not take here, though a GPU takes some of
/// them.
Result not_recorded(StreamHandle stream) {
  if (stream != nullptr && stream->stream->recording) {
    stream->stream->recording->invalid = true;
    return Result::capture_unsupported;
  }
  return in_context();
}

const void* pointer(DevicePointer data) { return reinterpret_cast<const void*>(data); }

/// Raises a Fault unless a copy or fill may use the memory; where it is for the emulator.
std::byte* usable_memory(const char* what, const emulator::Stream& stream, const void* data,
                         std::size_t bytes) {
  Memory& memory = Memory::instance();
  if (!memory.is_device(data)) {
    return static_cast<std::byte*>(const_cast<void*>(data));  // of the host
  }
  const std::string wrong = memory.check(data, bytes);
  if (!wrong.empty()) {
    throw Fault(
        text(what, " in ", name_of(stream), ": ", bytes, " bytes at an address that ", wrong));
  }
  return memory.opened(data);
}

Result queue_copy(const void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  const Result result = in_context();
  if (result != Result::success) {
    return result;
  }
  if (stream == nullptr) {
    return Result::invalid_value;  // the legacy stream, which nothing here may use
  }
  Memory& memory = Memory::instance();
  const bool ordinary = [&] {
    return (!memory.is_device(from) && !memory.is_pinned(from, bytes)) ||
           (!memory.is_device(to) && !memory.is_pinned(to, bytes));
  }();
  if (ordinary && not_recorded(stream) != Result::success) {
    return Result::capture_unsupported;
  }
  const bool blocks = ordinary && Modes::instance().copies_block;
  std::shared_ptr<std::vector<std::byte>> held;
  if (blocks && !memory.is_device(from) && !memory.is_pinned(from, bytes)) {
    const auto* first = static_cast<const std::byte*>(from);
    held = std::make_shared<std::vector<std::byte>>(first, first + bytes);
  }
  Executor& executor = Executor::instance();
  executor.push(*stream->stream, {.work = [=, on = stream->stream] {
    const std::byte* source = held ? held->data() : usable_memory("a copy", *on, from, bytes);
    std::memmove(usable_memory("a copy", *on, to, bytes), source, bytes);
  }});
  constexpr std::size_t staged_at_once = 65536;
  if (blocks && (!held || bytes > staged_at_once)) {
    executor.synchronize(stream->stream);
  }
  return usable();
}

template <class T>
Result queue_fill(DevicePointer to, T value, std::size_t count, StreamHandle stream) {
  const Result result = in_context();
  if (result != Result::success) {
    return result;
  }
  if (stream == nullptr || to % sizeof(T) != 0) {
    return Result::invalid_value;
  }
  Executor::instance().push(*stream->stream, {.work = [=, on = stream->stream] {
    std::byte* data = usable_memory("a fill", *on, pointer(to), count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(data + i * sizeof(T), &value, sizeof(T));
    }
  }});
  return Result::success;
}

/// The parts of a loaded library that its kernels may read.
std::vector<std::span<const std::byte>> images_of(const std::string& path) {
  struct Found {
    std::string path;
    std::vector<std::span<const std::byte>> parts;
  } found{path, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& all = *static_cast<Found*>(data);
        // The emulator itself has threadIdx and its like.
        const bool own = std::strstr(info->dlpi_name, "libcuda.so") != nullptr;
        if (own || info->dlpi_name == all.path) {
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            if (info->dlpi_phdr[i].p_type == PT_LOAD) {
              all.parts.emplace_back(
                  reinterpret_cast<const std::byte*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr),
                  info->dlpi_phdr[i].p_memsz);
            }
          }
        }
        return 0;
      },
      &found);
  return found.parts;
}

/// Whether TESSERA_EMULATOR_WITHOUT names the kernel.
bool is_left_out(std::string_view kernel) {
  const char* names = std::getenv("TESSERA_EMULATOR_WITHOUT");
  const std::string all = text(':', names == nullptr ? "" : names, ':');
  return all.find(text(':', kernel, ':')) != std::string::npos;
}

/// The libraries of kernels. They stay, also where they are.
struct Libraries {
  std::mutex mutex;
  std::deque<emulator::KernelLibrary> all;
  bool loaded = false;

  void load(const std::string& path) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw Fault(text("a library of kernels: ", dlerror()));
    }
    using Shared = std::byte* (*)(std::size_t*);
    const auto shared = reinterpret_cast<Shared>(dlsym(handle, "emulated_shared_memory"));
    std::size_t bytes = 0;
    std::byte* begin = shared == nullptr ? nullptr : shared(&bytes);
    all.push_back({path, handle, {begin, bytes}, images_of(path)});
  }

  /// Those of TESSERA_EMULATOR_KERNELS, at the first call.
  void load_given() {
    if (std::exchange(loaded, true)) {
      return;
    }
    const char* paths = std::getenv("TESSERA_EMULATOR_KERNELS");
    std::string rest = paths == nullptr ? "" : paths;
    while (!rest.empty()) {
      const std::size_t colon = rest.find(':');
      load(rest.substr(0, colon));
      rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
    }
  }
};
Libraries& libraries() {
  static auto* all = new Libraries;
  return *all;
}

/// Calls `body`, whose fault fails all later calls.
template <class Body>
Result with_libraries(Body body) {
  try {
    const std::lock_guard lock(libraries().mutex);
    return body(libraries());
  } catch (const Fault& fault) {
    Executor::instance().set_fault(fault.what());
    return Result::launch_failed;
  }
}

/// What a kernel's first launch waits for.
void load_lazily(const std::string& kernel, const emulator::Stream& stream) {
  static std::mutex mutex;
  static std::set<std::pair<int, std::string>> loaded;
  {
    const std::lock_guard lock(mutex);
    if (!loaded.emplace(stream.device, kernel).second) {
      return;
    }
  }
  if (Modes::instance().lazy_loading && !stream.recording) {
    Executor::instance().synchronize_device(stream.device);
  }
}

/// TESSERA_EMULATOR_HANGS="FUNCTION NUMBER [SIGNAL]": this call of the function does not return.
/// With a signal, the process gets that there.
void hang_where_asked(std::string_view function) {
  static std::atomic<int> times = 0;
  const char* const asked = std::getenv("TESSERA_EMULATOR_HANGS");
  int number = 0;
  int signal = 0;
  char where[64] = {};
  if (asked == nullptr || std::sscanf(asked, "%63s %d %d", where, &number, &signal) < 2 ||
      function != where || ++times != number) {
    return;
  }
  if (signal != 0) {
    kill(getpid(), signal);
    return;
  }
  while (true) {
    pause();
  }
}

/// Functions that wait for all streams of the device: those of TESSERA_EMULATOR_BLOCKS.
void wait_where_asked(std::string_view function, const ContextData* context) {
  hang_where_asked(function);
  const char* const asked = std::getenv("TESSERA_EMULATOR_BLOCKS");
  std::string_view names = asked == nullptr ? "" : asked;
  while (!names.empty() && context != nullptr) {
    const std::size_t end = std::min(names.find(':'), names.size());
    if (names.substr(0, end) == function) {
      Executor::instance().synchronize_device(context->device);
    }
    names.remove_prefix(std::min(end + 1, names.size()));
  }
}

/// Of a kernel that gets rows and nothing else; else 0.
std::uint64_t elements_of_rows(const std::vector<std::byte>& structure) {
  tessera::cuda::RowArguments rows;
  if (structure.size() != sizeof rows) {
    return 0;
  }
  std::memcpy(&rows, structure.data(), sizeof rows);
  return static_cast<std::uint64_t>(rows.rows * rows.length);
}

}  // namespace

extern "C" {

Result cuInit(unsigned) {
  hang_where_asked(__func__);
  pid_t none = 0;
  if (device_count() == 0) {
    return Result::no_device;
  }
  if (!owner.compare_exchange_strong(none, getpid())) {
    return owner == getpid() ? Result::success : Result::not_initialized;
  }
  for (int i = 0; i < most_devices; ++i) {
    contexts[i].device = i;
  }
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  if (loading != nullptr && std::string_view(loading) == "EAGER") {
    Modes::instance().lazy_loading = false;
  }
  on_exit(
      [](int status, void*) {
        if (status != 0) {
          std::fprintf(stderr, "emulator: %s\n", Modes::instance().describe().c_str());
        }
      },
      nullptr);
  return Result::success;
}

Result cuDriverGetVersion(int* version) {
  const char* value = std::getenv("TESSERA_EMULATOR_DRIVER");
  *version = value == nullptr ? 13000 : std::atoi(value);
  return Result::success;
}

Result cuGetErrorName(Result error, const char** name) {
  static const std::map<Result, const char*> names = {
      {Result::success, "CUDA_SUCCESS"},
      {Result::invalid_value, "CUDA_ERROR_INVALID_VALUE"},
      {Result::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {Result::not_initialized, "CUDA_ERROR_NOT_INITIALIZED"},
      {Result::no_device, "CUDA_ERROR_NO_DEVICE"},
      {Result::invalid_device, "CUDA_ERROR_INVALID_DEVICE"},
      {Result::invalid_image, "CUDA_ERROR_INVALID_IMAGE"},
      {Result::invalid_context, "CUDA_ERROR_INVALID_CONTEXT"},
      {Result::not_found, "CUDA_ERROR_NOT_FOUND"},
      {Result::not_ready, "CUDA_ERROR_NOT_READY"},
      {Result::launch_failed, "CUDA_ERROR_LAUNCH_FAILED"},
      {Result::capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {Result::capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {Result::unknown, "CUDA_ERROR_UNKNOWN"}};
  const auto found = names.find(error);
  *name = found == names.end() ? nullptr : found->second;
  return found == names.end() ? Result::invalid_value : Result::success;
}

/// Of a failed launch: what the emulator found.
Result cuGetErrorString(Result error, const char** string) {
  static thread_local std::string kept;
  if (error == Result::launch_failed && owner == getpid()) {
    kept = Executor::instance().fault().value_or("no kernel has failed");
  } else if (error == Result::not_initialized && owner != 0) {
    kept = "the driver was initialised before this process was forked; count devices without it";
  } else if (error == Result::invalid_context) {
    kept = "no context is set in this thread";
  } else {
    const char* name = nullptr;
    cuGetErrorName(error, &name);
    kept = name == nullptr ? "unknown error" : name;
  }
  *string = kept.c_str();
  return Result::success;
}

Result cuDeviceGetCount(int* count) {
  *count = device_count();
  return usable();
}

Result cuDeviceGet(DeviceNumber* device, int ordinal) {
  *device = ordinal;
  return ordinal < 0 || ordinal >= device_count() ? Result::invalid_device : usable();
}

Result cuDeviceGetName(char* name, int length, DeviceNumber) {
  std::strncpy(name, "emulated device", static_cast<std::size_t>(length));
  return usable();
}

Result cuDeviceTotalMem_v2(std::size_t* bytes, DeviceNumber) {
  *bytes = Memory::device_bytes();
  return usable();
}

Result cuDeviceGetAttribute(int* value, int attribute, DeviceNumber) {
  if (attribute != compute_capability_major && attribute != compute_capability_minor) {
    return Result::invalid_value;
  }
  *value = attribute == compute_capability_major ? 9 : 0;
  return usable();
}

Result cuDevicePrimaryCtxRetain(Context* context, DeviceNumber device) {
  if (device < 0 || device >= device_count()) {
    return Result::invalid_device;
  }
  wait_where_asked(__func__, &contexts[device]);
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  ContextData& own = contexts[device];
  if (!own.made && !Memory::instance().take(device, Modes::instance().context_bytes)) {
    return Result::out_of_memory;
  }
  own.made = true;
  *context = &own;
  return usable();
}

Result cuCtxSetCurrent(Context context) {
  current = context;
  return usable();
}

Result cuMemAlloc_v2(DevicePointer* data, std::size_t bytes) {
  const Result result = outside_recordings();
  if (result != Result::success) {
    return result;
  }
  if (bytes == 0) {
    return Result::invalid_value;
  }
  wait_where_asked(__func__, current);
  void* memory = Memory::instance().allocate(current->device, bytes);
  *data = reinterpret_cast<DevicePointer>(memory);
  return memory == nullptr ? Result::out_of_memory : Result::success;
}

Result cuMemFree_v2(DevicePointer data) {
  const Result result = outside_recordings();
  if (result != Result::success) {
    return result;
  }
  wait_where_asked(__func__, current);
  return Memory::instance().free(reinterpret_cast<void*>(data)) ? Result::success
                                                                : Result::invalid_value;
}

Result cuMemHostAlloc(void** data, std::size_t bytes, unsigned) {
  const Result result = outside_recordings();
  if (result != Result::success) {
    return result;
  }
  wait_where_asked(__func__, current);
  *data = Memory::instance().allocate_pinned(bytes);
  return *data == nullptr ? Result::out_of_memory : Result::success;
}

Result cuMemFreeHost(void* data) {
  const Result result = outside_recordings();
  if (result != Result::success) {
    return result;
  }
  wait_where_asked(__func__, current);
  return Memory::instance().free_pinned(data) ? Result::success : Result::invalid_value;
}

Result cuMemcpyAsync(DevicePointer to, DevicePointer from, std::size_t bytes, StreamHandle stream) {
  return queue_copy(pointer(to), pointer(from), bytes, stream);
}

Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes,
                            StreamHandle stream) {
  return Memory::instance().is_device(pointer(to)) ? queue_copy(pointer(to), from, bytes, stream)
                                                   : Result::invalid_value;
}

Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, std::size_t bytes, StreamHandle stream) {
  ++copies_to_host;
  return Memory::instance().is_device(pointer(from)) ? queue_copy(to, pointer(from), bytes, stream)
                                                     : Result::invalid_value;
}

Result cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t count,
                       StreamHandle stream) {
  return queue_fill(to, value, count, stream);
}

Result cuMemsetD16Async(DevicePointer to, unsigned short value, std::size_t count,
                        StreamHandle stream) {
  return queue_fill(to, value, count, stream);
}

Result cuMemsetD32Async(DevicePointer to, unsigned value, std::size_t count, StreamHandle stream) {
  return queue_fill(to, value, count, stream);
}

Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return in_context();
}

/// The priority is kept only: a device may follow it or not.
Result cuStreamCreateWithPriority(StreamHandle* stream, unsigned, int priority) {
  const Result result = outside_recordings();
  if (result == Result::success) {
    wait_where_asked(__func__, current);
    *stream = new StreamData{Executor::instance().make(current->device)};
    (*stream)->stream->priority = priority;
  }
  return result;
}

Result cuStreamCreate(StreamHandle* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

Result cuStreamDestroy_v2(StreamHandle stream) {
  const Result result = outside_recordings();
  if (result == Result::success) {
    wait_where_asked(__func__, current);
    Executor::instance().destroy(*stream->stream);
    delete stream;
  }
  return result;
}

Result cuStreamQuery(StreamHandle stream) {
  const Result result = not_recorded(stream);
  return result != Result::success                    ? result
         : Executor::instance().idle(*stream->stream) ? Result::success
                                                      : Result::not_ready;
}

Result cuStreamSynchronize(StreamHandle stream) {
  const Result result = not_recorded(stream);
  if (result != Result::success) {
    return result;
  }
  wait_where_asked(__func__, current);
  Executor::instance().synchronize(stream->stream);
  return usable();
}

Result cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned) {
  const Result result = not_recorded(stream);
  if (result == Result::success) {
    Executor::instance().wait(*stream->stream, event->event);
  }
  return result;
}

Result cuStreamWaitValue32_v2(StreamHandle stream, DevicePointer at, std::uint32_t value,
                              unsigned flags) {
  const Result result = not_recorded(stream);
  if (result != Result::success) {
    return result;
  }
  const auto* number = reinterpret_cast<const std::atomic<std::uint32_t>*>(at);
  if (flags != wait_value_geq || !Memory::instance().is_pinned(number, sizeof(value))) {
    return Result::invalid_value;
  }
  Executor::instance().push(*stream->stream, {.ready = [number, value] {
    return static_cast<std::int32_t>(number->load() - value) >= 0;
  }});
  return Result::success;
}

Result cuEventCreate(EventHandle* event, unsigned) {
  const Result result = in_context();
  if (result == Result::success) {
    *event = new EventData;
  }
  return result;
}

Result cuEventDestroy_v2(EventHandle event) {
  const Result result = in_context();
  if (result == Result::success) {
    delete event;
  }
  return result;
}

Result cuEventRecord(EventHandle event, StreamHandle stream) {
  const Result result = not_recorded(stream);
  if (result == Result::success) {
    Executor::instance().record(*stream->stream, event->event);
  }
  return result;
}

Result cuEventQuery(EventHandle event) {
  const Result result = outside_recordings();
  return result != Result::success                    ? result
         : Executor::instance().reached(event->event) ? Result::success
                                                      : Result::not_ready;
}

Result cuEventSynchronize(EventHandle event) {
  const Result result = outside_recordings();
  if (result != Result::success) {
    return result;
  }
  Executor::instance().synchronize(event->event);
  return usable();
}

/// Kernels are found by name, in the libraries of TESSERA_EMULATOR_KERNELS and in those that the
/// emulated NVRTC has made; another image is not read.
Result cuModuleLoadData(Module* module, const void* image) {
  const Result result = outside_recordings();
  if (result != Result::success) {
    return result;
  }
  if (const char* const refusal = std::getenv("TESSERA_EMULATOR_IMAGE")) {
    return static_cast<Result>(std::atoi(refusal));
  }
  wait_where_asked(__func__, current);
  *module = new ModuleData;
  constexpr std::string_view mark = emulator::module_image_mark;
  if (image == nullptr || std::strncmp(static_cast<const char*>(image), mark.data(), mark.size())) {
    return image == nullptr ? Result::invalid_value : Result::success;
  }
  const char* const begin = static_cast<const char*>(image) + mark.size();
  std::uint64_t length = 0;
  std::memcpy(&length, begin, sizeof(length));
  std::string path = (std::filesystem::temp_directory_path() / "emulated-module-XXXXXX").string();
  const int file = mkstemp(path.data());
  const bool written =
      file >= 0 && write(file, begin + sizeof(length), length) == static_cast<ssize_t>(length);
  close(file);
  return with_libraries([&](Libraries& all) {
    if (!written) {
      throw Fault(text("a module: cannot write ", path));
    }
    all.load(path);
    std::filesystem::remove(path);  // it stays mapped
    return Result::success;
  });
}

Result cuModuleGetFunction(Function* function, Module, const char* name) {
  const Result result = in_context();
  if (result != Result::success) {
    return result;
  }
  wait_where_asked(__func__, current);
  return with_libraries([&](Libraries& all) {
    if (is_left_out(name)) {
      return Result::not_found;
    }
    all.load_given();
    for (const emulator::KernelLibrary& library : all.all) {
      if (void* entry = dlsym(library.handle, name)) {
        *function = new FunctionData{{name, reinterpret_cast<emulator::Entry>(entry), &library}};
        return Result::success;
      }
    }
    return Result::not_found;
  });
}

Result cuFuncSetAttribute(Function function, int attribute, int value) {
  const Result result = in_context();
  if (result != Result::success) {
    return result;
  }
  wait_where_asked(__func__, current);
  if (attribute != most_launched_memory || value < 0 ||
      static_cast<std::size_t>(value) > emulator::most_launched_bytes) {
    return Result::invalid_value;
  }
  function->memory = static_cast<unsigned>(value);
  return Result::success;
}

Result cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      StreamHandle stream, void** parameters, void** extra) {
  const Result result = in_context();
  if (result != Result::success) {
    return result;
  }
  // Of the two ways to give parameters this has the one that says how long they are.
  if (parameters != nullptr || extra == nullptr || extra[0] != launch_buffer_pointer ||
      extra[2] != launch_buffer_size || extra[4] != nullptr || shared_bytes > function->memory ||
      stream == nullptr) {
    return Result::invalid_value;
  }
  load_lazily(function->kernel.name, *stream->stream);
  auto launch = std::make_shared<emulator::Launch>();
  launch->kernel = &function->kernel;
  launch->grid = {grid_x, grid_y, grid_z};
  launch->block = {block_x, block_y, block_z};
  launch->memory = shared_bytes;
  const auto* structure = static_cast<const std::byte*>(extra[1]);
  launch->structure.assign(structure, structure + *static_cast<std::size_t*>(extra[3]));
  Modes::instance().list(function->kernel.name, grid_x * grid_y * grid_z,
                         block_x * block_y * block_z, elements_of_rows(launch->structure));
  Memory::instance().open_addresses(launch->structure.data(), launch->structure.size());
  launch->stream = name_of(*stream->stream);
  last_priority = stream->stream->priority;
  last_kernel = function->kernel.name.c_str();
  const std::uint64_t number = ++launches;
  if (loses(current->device, number)) {
    lost = true;
    Executor::instance().set_fault("the device is lost");  // ends waits
    return Result::success;                                // later calls find it
  }
  Executor::instance().push(*stream->stream, {.work = [launch, number] {
    emulator::run_launch(*launch, Executor::instance().seed() * 1000003 + number);
  }});
  return Result::success;
}

Result cuLaunchHostFunc(StreamHandle stream, HostFunction function, void* data) {
  const Result result = not_recorded(stream);
  if (result == Result::success) {
    Executor::instance().push(*stream->stream, {.work = [=] { function(data); }, .of_host = true});
  }
  return result;
}

Result cuStreamBeginCapture_v2(StreamHandle stream, int mode) {
  const Result result = outside_recordings();
  if (result != Result::success) {
    return result;
  }
  if (stream == nullptr || stream->stream->recording || mode != capture_thread_local) {
    return Result::invalid_value;
  }
  recorded = stream->stream->recording = std::make_shared<emulator::Recording>();
  return Result::success;
}

Result cuStreamEndCapture(StreamHandle stream, GraphHandle* graph) {
  const Result result = in_context();
  if (result != Result::success) {
    return result;
  }
  if (stream == nullptr || !stream->stream->recording || stream->stream->recording != recorded) {
    return Result::invalid_value;  // another thread has begun it
  }
  stream->stream->recording.reset();
  const std::shared_ptr<emulator::Recording> ended = std::exchange(recorded, nullptr);
  *graph = ended->invalid ? nullptr : new GraphData{stream->stream->device, ended->tasks};
  return ended->invalid ? Result::capture_invalidated : Result::success;
}

Result cuGraphInstantiateWithFlags(GraphExec* exec, GraphHandle graph, unsigned long long flags) {
  const Result result = outside_recordings();
  if (result == Result::success && flags == 0 && graph != nullptr) {
    wait_where_asked(__func__, current);
    *exec = new GraphExecData{*graph};
    return Result::success;
  }
  return result == Result::success ? Result::invalid_value : result;
}

Result cuGraphDestroy(GraphHandle graph) {
  delete graph;
  return usable();
}

Result cuGraphLaunch(GraphExec exec, StreamHandle stream) {
  const Result result = not_recorded(stream);
  if (result != Result::success) {
    return result;
  }
  if (exec == nullptr || stream == nullptr || exec->graph.device != stream->stream->device) {
    return Result::invalid_value;
  }
  ++graph_launches;
  ++*exec->running;
  std::vector<emulator::Task> tasks = exec->graph.tasks;
  tasks.push_back({.work = [running = exec->running] { --*running; }});
  Executor::instance().push_all(*stream->stream, tasks);
  return Result::success;
}

Result cuGraphExecDestroy(GraphExec exec) {
  const Result result = outside_recordings();
  if (result == Result::success) {
    wait_where_asked(__func__, current);
    if (*exec->running > 0) {
      Executor::instance().set_fault("cuGraphExecDestroy: the graph is still running");
    }
    delete exec;
  }
  return result;
}

std::uint64_t emulator_set_places(std::uint64_t places) {
  return Modes::instance().places.exchange(places);
}
bool emulator_set_copies_block(bool block) {
  return Modes::instance().copies_block.exchange(block);
}
bool emulator_set_lazy_loading(bool lazy) { return Modes::instance().lazy_loading.exchange(lazy); }
void emulator_restart() { Executor::instance().restart(); }
void emulator_set_seed(std::uint64_t seed) { Executor::instance().set_seed(seed); }
void emulator_set_idle(std::int64_t microseconds) {
  Executor::instance().set_idle_microseconds(microseconds);
}
std::uint64_t emulator_launches() { return launches; }
const char* emulator_last_kernel() { return last_kernel; }
int emulator_last_priority() { return last_priority; }
std::uint64_t emulator_graph_launches() { return graph_launches; }
std::uint64_t emulator_copies_to_host() { return copies_to_host; }
void emulator_wait_where_asked(const char* function) { wait_where_asked(function, current); }

int emulator_current_device() {
  return usable() == Result::success && current != nullptr ? current->device : -1;
}
unsigned long long emulator_used_memory(int device) { return Memory::instance().used(device); }

}  // extern "C"
