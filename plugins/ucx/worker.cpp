#include "worker.hpp"

#include <signal.h>
#include <ucm/api/ucm.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <utility>

namespace ucx {
namespace {

bool is_set(const std::string& variable) {
  return std::getenv(("UCX_" + variable).c_str()) != nullptr;
}

void check(ucs_status_t status, const char* what) {
  if (status != UCS_OK) {
    throw std::runtime_error(std::string(what) + " failed: " + text_of(status));
  }
}

/// The settings of this context: those of the environment, and `devices`.
class Config {
 public:
  explicit Config(const std::string& devices) {
    check(ucp_config_read(nullptr, nullptr, &config_), "ucp_config_read");
    if (!devices.empty()) {
      prefer("NET_DEVICES", devices);
    }
    prefer("KEEPALIVE_INTERVAL", "5s");
    prefer_of_tcp("CONN_NB", "y");  // nothing here waits for another machine
    // Pieces of UCX's own sizes, 8 and 64 KiB, take TCP a third more time for parts of 32 KiB
    // (docs/ucx.md).
    prefer_of_tcp("TX_SEG_SIZE", "64k");
    prefer_of_tcp("RX_SEG_SIZE", "256k");
  }
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;
  ~Config() { ucp_config_release(config_); }
  const ucp_config_t* get() const { return config_; }

 private:
  void prefer(const char* name, const std::string& value) {
    if (!is_set(name)) {
      ucp_config_modify(config_, name, value.c_str());  // a version without it keeps its own
    }
  }
  /// UCX 1.13 knows its transports' settings without their prefix, newer versions with it.
  void prefer_of_tcp(const std::string& name, const std::string& value) {
    if (!is_set("TCP_" + name)) {
      ucp_config_modify(config_, name.c_str(), value.c_str());
      ucp_config_modify(config_, ("TCP_" + name).c_str(), value.c_str());
    }
  }
  ucp_config_t* config_ = nullptr;
};

void complete(Operation& operation, ucs_status_t status) {
  --operation.pending;
  if (status != UCS_OK && operation.status == UCS_OK) {
    operation.status = status;
  }
}

void sent(void* request, ucs_status_t status, void* operation) {
  complete(*static_cast<Operation*>(operation), status);
  ucp_request_free(request);
}

void received(void* request, ucs_status_t status, std::size_t /*bytes*/, void* operation) {
  sent(request, status, operation);
}

}  // namespace

std::string text_of(ucs_status_t status) { return ucs_status_string(status); }

void quiet() {
  const auto prefer = [](const char* name, const char* value) {
    if (!is_set(name)) {
      ucs_global_opts_set_value(name, value);
    }
  };
  prefer("LOG_LEVEL", "fatal");  // what is wrong, the run says itself
  prefer("WARN_UNUSED_ENV_VARS", "n");
  if (!is_set("HANDLE_ERRORS")) {
    prefer("HANDLE_ERRORS", "none");
    for (const int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
      ucs_debug_disable_signal(signal);
    }
  }
  if (!is_set("MEM_EVENTS")) {
    ucm_global_config_t memory = ucm_global_opts;
    memory.enable_events = 0;
    ucm_set_global_opts(&memory);
  }
}

Worker::Worker(const std::string& devices, std::array<Handler, kinds> handlers) {
  for (unsigned kind = 0; kind < kinds; ++kind) {
    handlings_[kind] = {this, std::move(handlers[kind])};
  }
  const Config config(devices);
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM;
  check(ucp_init(&params, config.get(), &context_), "ucp_init");
  try {
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context_, &worker, &worker_), "ucp_worker_create");
    for (unsigned kind = 0; kind < kinds; ++kind) {
      ucp_am_handler_param_t handler{};
      handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                           UCP_AM_HANDLER_PARAM_FIELD_ARG;
      handler.id = kind;
      handler.cb = &Worker::take;
      handler.arg = &handlings_[kind];
      check(ucp_worker_set_am_recv_handler(worker_, &handler), "ucp_worker_set_am_recv_handler");
    }
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    check(ucp_worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address");
    address_.assign(reinterpret_cast<const char*>(address), bytes);
    ucp_worker_release_address(worker_, address);
    errors_ = error_mode();
  } catch (...) {
    destroy();
    throw;
  }
}

Worker::~Worker() { destroy(); }

/// Shared memory alone (UCX_TLS=shm) does not notice that a peer has died, and UCX then refuses
/// endpoints that should. An endpoint to another worker shows which it is: a refused one to a peer
/// would be counted as a connection that the peer does not have.
ucp_err_handling_mode_t Worker::error_mode() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h other = nullptr;
  check(ucp_worker_create(context_, &params, &other), "ucp_worker_create");
  ucp_ep_params_t to{};
  to.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  to.address = reinterpret_cast<const ucp_address_t*>(address_.data());
  to.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(other, &to, &endpoint);
  ucp_worker_destroy(other);
  return status == UCS_OK ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
}

void Worker::destroy() {
  if (worker_ != nullptr) {
    ucp_worker_destroy(worker_);
  }
  ucp_cleanup(context_);
}

ucs_status_t Worker::take(void* handling, const void* header, std::size_t header_bytes, void* data,
                          std::size_t bytes, const ucp_am_recv_param_t* param) {
  const bool announced = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const auto& at = *static_cast<const HandlerEntry*>(handling);
  const bool kept = at.handler(
      {.header = {static_cast<const std::byte*>(header), header_bytes},
       .data = data,
       .bytes = bytes,
       .announced = announced,
       .can_be_kept = announced || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0});
  return kept ? UCS_INPROGRESS : UCS_OK;
}

ucp_ep_h Worker::connect(std::string_view address, std::function<void(std::string)>* failed,
                         std::string& why) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = errors_;
  params.err_handler.cb = [](void* to, ucp_ep_h /*endpoint*/, ucs_status_t status) {
    (*static_cast<std::function<void(std::string)>*>(to))(text_of(status));
  };
  params.err_handler.arg = failed;
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint);
  if (status != UCS_OK) {
    why = text_of(status);
    return nullptr;
  }
  return endpoint;
}

void Worker::begin(ucs_status_ptr_t request, Operation& operation) {
  if (!UCS_PTR_IS_PTR(request)) {
    complete(operation, UCS_PTR_STATUS(request));
  }
}

void Worker::send(ucp_ep_h to, unsigned kind, std::span<const std::byte> header,
                  std::span<const std::byte> data, Protocol protocol, Operation& operation) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = protocol == Protocol::at_once     ? UCP_AM_SEND_FLAG_EAGER
                : protocol == Protocol::announced ? UCP_AM_SEND_FLAG_RNDV
                                                  : 0U;
  param.cb.send = &sent;
  param.user_data = &operation;
  ++operation.pending;
  begin(ucp_am_send_nbx(to, kind, header.data(), header.size(), data.data(), data.size(), &param),
        operation);
}

void Worker::receive(void* kept, std::span<std::byte> place, Operation& operation) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &received;
  param.user_data = &operation;
  ++operation.pending;
  begin(ucp_am_recv_data_nbx(worker_, kept, place.data(), place.size(), &param), operation);
}

void Worker::flush(Operation& operation) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &sent;
  param.user_data = &operation;
  ++operation.pending;
  begin(ucp_worker_flush_nbx(worker_, &param), operation);
}

}  // namespace ucx
