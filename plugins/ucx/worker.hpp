// UCX without Tessera: what it needs to send active messages, and its own habits turned off.
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace ucx {

/// UCX handles no signals of the process, does not change its memory functions and writes no log,
/// except where its own variables (UCX_...) say so. Called when the plugin is loaded: UCX itself
/// begins before that.
void quiet();

/// What UCX says about an error.
std::string text_of(ucs_status_t status);

/// An operation that UCX has not completed yet, and those that belong to it: `pending` counts them.
struct Operation {
  int pending = 0;
  ucs_status_t status = UCS_OK;  // the first error
};

/// A message as it comes from UCX, within a call of `progress`.
struct ActiveMessage {
  std::span<const std::byte> header;
  void* data = nullptr;  // bytes, or of an announced message what `receive` takes
  std::size_t bytes = 0;
  bool announced = false;  // the data is still with the sender
  bool can_be_kept = false;
};

/// One UCX worker: addresses, endpoints and messages. Used by one thread.
class Worker {
 public:
  /// Whether the message is kept; it must be given back with `receive` or `release`. Throws
  /// nothing.
  using Handler = std::function<bool(const ActiveMessage&)>;
  static constexpr unsigned kinds = 2;  // of messages

  /// `devices`: the network devices that it uses, as UCX_NET_DEVICES; "": all. Throws
  /// std::runtime_error.
  Worker(const std::string& devices, std::array<Handler, kinds> handlers);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  /// Ends without waiting for others.
  ~Worker();

  const std::string& address() const { return address_; }
  /// An endpoint to the worker at this address. `failed(why)` is called when it cannot be reached
  /// any more, within `progress`. Null: it cannot be reached, for the reason `why`.
  ucp_ep_h connect(std::string_view address, std::function<void(std::string)>* failed,
                   std::string& why);
  bool progress() { return ucp_worker_progress(worker_) != 0; }

  enum class Protocol { any, at_once, announced };
  /// Sends; the bytes stay as they are until the operation has ended.
  void send(ucp_ep_h to, unsigned kind, std::span<const std::byte> header,
            std::span<const std::byte> data, Protocol protocol, Operation& operation);
  /// Receives the data of a message that was announced and kept.
  void receive(void* kept, std::span<std::byte> place, Operation& operation);
  void release(void* kept) { ucp_am_data_release(worker_, kept); }
  /// Everything that was sent, at the other end.
  void flush(Operation& operation);

 private:
  struct HandlerEntry {
    Worker* worker = nullptr;
    Handler handler;
  };
  static ucs_status_t take(void* handling, const void* header, std::size_t header_bytes, void* data,
                           std::size_t bytes, const ucp_am_recv_param_t* param);
  void begin(ucs_status_ptr_t request, Operation& operation);
  ucp_err_handling_mode_t error_mode();
  void destroy();

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  ucp_err_handling_mode_t errors_ = UCP_ERR_HANDLING_MODE_PEER;
  std::array<HandlerEntry, kinds> handlings_;
};

}  // namespace ucx
