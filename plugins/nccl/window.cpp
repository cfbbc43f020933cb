#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "library.hpp"

import tessera.base;
import tessera.device;

#include "window.hpp"

namespace tessera::nccl {

Window::Window(Communicator& comm, cuda::Interop& device, DeviceDriver& driver, std::size_t bytes)
    : comm_(comm), device_(device), driver_(driver), bytes_(bytes) {
  refuse_windows_where_none();
  const auto [result, data] =
      device_.watch().call("ncclMemAlloc", [bytes](const cuda::WatchedThread& watched) {
        void* made = nullptr;
        const Result taken = api().mem_alloc(watched, &made, bytes);
        return std::pair(taken, made);
      });
  if (result != Result::success) {
    fail_input({.thing = "TESSERA_NCCL_WINDOW",
                .wrong = fmt::format("ncclMemAlloc of {} MiB for {} fails: {}", bytes >> 20,
                                     comm_.members(), api().get_error_string(result)),
                .advice = "set a smaller window, or 0"});
  }
  data_ = data;
  try {
    // NCCL may set the handle until it has accepted the call.
    comm_.call("ncclCommWindowRegister", [&](Comm of) {
      return api().comm_window_register(of, data_, bytes_, &handle_, collective_symmetric);
    });
    if (is_open()) {
      used_ = driver_.make_mark();
    }
  } catch (...) {
    comm_.abort();  // it may still set the handle, and use the memory
    free_memory();
    throw;
  }
  static std::atomic<bool> said = false;
  if (!is_open()) {
    free_memory();
    if (comm_.is_first_member() && !said.exchange(true)) {
      log(LogLevel::warning,
          fmt::format("TESSERA_NCCL_WINDOW: NCCL has no symmetric windows for {} (its GPUs do not "
                      "reach each other's memory, or NCCL_WIN_ENABLE is 0), which go without; this "
                      "is said of one group",
                      comm_.members()));
    }
  }
}

Window::~Window() {
  if (!is_open()) {
    return;
  }
  driver_.free_mark(used_);
  try {
    comm_.call("ncclCommWindowDeregister",
               [&](Comm of) { return api().comm_window_deregister(of, handle_); });
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the group was aborted
  }
  free_memory();
}

void Window::free_memory() noexcept {
  device_.watch().end("ncclMemFree", [data = data_](const cuda::WatchedThread& watched) {
    api().mem_free(watched, data);
  });
}

void Window::use(DeviceDriver::Queue queue, std::span<const Copy> in,
                 const std::function<void()>& calls, std::span<const Copy> out) {
  driver_.wait(queue, used_);
  for (const Copy& copy : in) {
    driver_.copy(queue, copy.to, copy.from, copy.bytes, CopyKind::on_device);
  }
  calls();
  for (const Copy& copy : out) {
    driver_.copy(queue, copy.to, copy.from, copy.bytes, CopyKind::on_device);
  }
  driver_.record(used_, queue);
}

}  // namespace tessera::nccl
