// libnccl.so.2: NCCL's functions, as far as the plugin uses them, between processes or threads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "control.hpp"
#include "fault.hpp"
#include "handles.hpp"
#include "memory.hpp"
#include "nccl_api.hpp"
#include "nccl_region.hpp"
#include "nccl_window.hpp"
#include "nccl_work.hpp"
#include "streams.hpp"
#include "text.hpp"

namespace tessera::nccl {

/// One rank's part. It is never freed, so that a call after its end is found.
struct CommData {
  std::shared_ptr<emulator::NcclTraffic> traffic;  // null: it could not be made
  int rank = 0;
  int size = 1;
  int device = 0;
  bool blocking = true;
  bool split_share = false;
  std::shared_ptr<emulator::NcclResources> resources;  // null: it has ended
  /// What was called and is not accepted: called again until it is. Null: nothing.
  std::function<Result()> pending;
  Result failed = Result::success;
  const char* ended_by = nullptr;  // the function after which the communicator is no more
  bool finalized = false;
  std::uint64_t collectives = 0;
  std::uint64_t splits = 0;
  std::uint64_t window_calls = 0;
  std::map<void*, std::size_t> registered;
  emulator::Windows windows;
  std::mutex mutex;  // of the members above
};

}  // namespace tessera::nccl

namespace {

using namespace tessera::nccl;
using emulator::CallKind;
using emulator::Executor;
using emulator::Fault;
using emulator::Memory;
using emulator::NcclCall;
using emulator::NcclOperation;
using emulator::NcclTraffic;
using emulator::NcclWork;
using emulator::Region;
using emulator::text;
using emulator::WindowMemory;
using emulator::Windows;

std::mutex last_error_mutex;
std::string last_error;

/// A mistake of the program. It ends the devices, so that no test can overlook it.
Result mistake(const std::string& what) {
  {
    const std::lock_guard lock(last_error_mutex);
    last_error = what;
  }
  Executor::instance().set_fault(what);
  return Result::invalid_argument;
}

/// An error that NCCL reports, too.
Result refusal(Result result, const std::string& what) {
  const std::lock_guard lock(last_error_mutex);
  last_error = what;
  return result;
}

/// Waits for others, as a blocking communicator does.
Result complete(CommData& comm) {
  while (true) {
    {
      const std::lock_guard lock(comm.mutex);
      if (const Result result = comm.pending(); result != Result::in_progress) {
        comm.pending = nullptr;
        return comm.failed = result;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

/// Makes it what the communicator does now, and is asked for by ncclCommGetAsyncError.
Result start(CommData& comm, std::function<Result()> pending) {
  {
    const std::lock_guard lock(comm.mutex);
    comm.pending = std::move(pending);
  }
  return comm.blocking ? complete(comm) : Result::in_progress;
}

/// The mistake of a call of a function with the communicator; success: none.
Result usable(const char* function, Comm comm) {
  if (comm == nullptr) {
    return mistake(text(function, ": the communicator is null"));
  }
  emulator::die_where_asked(comm->rank, function);
  const std::lock_guard lock(comm->mutex);
  if (comm->ended_by != nullptr) {
    return mistake(text(function, " of a communicator after ", comm->ended_by));
  }
  if (comm->pending) {
    return mistake(text(function,
                        " of a communicator that has not accepted the call before; wait "
                        "until ncclCommGetAsyncError does not say ncclInProgress"));
  }
  if (comm->failed != Result::success) {
    return comm->failed;
  }
  if (comm->finalized) {
    return mistake(text(function, " of a communicator after ncclCommFinalize"));
  }
  return Result::success;
}

// ---- groups of calls ----

std::atomic<std::uint64_t> window_calls = 0;

struct GroupedCalls {
  Comm comm;
  StreamHandle stream;
  std::vector<NcclOperation> operations;
};
thread_local int group_depth = 0;
thread_local std::vector<GroupedCalls> grouped;

/// Queues calls in their stream, when they are accepted.
void queue(CommData& comm, StreamHandle stream, std::vector<NcclOperation> operations) {
  std::string what;
  for (const NcclOperation& operation : operations) {
    what += (what.empty() ? "" : ", ") + emulator::describe(operation.call);
    if (operations.size() > 1) {
      what += ", ...";
      break;
    }
  }
  auto work = std::make_shared<NcclWork>(
      comm.traffic, std::move(operations),
      text(what, " of rank ", comm.rank, " in ", emulator::name_of(*stream->stream)));
  {
    const std::lock_guard lock(comm.traffic->mutex);
    ++comm.traffic->queued;
  }
  {
    const std::lock_guard lock(comm.traffic->resources->mutex);
    comm.traffic->resources->queued.push_back(work.get());
  }
  Executor::instance().push(*stream->stream, {.work = [work] { work->finish(); },
                                              .ready = [work] { return work->advance(); }});
}

/// A call of NCCL's is accepted after some looks: what the program queues before, is queued before.
Result accept_later(CommData& comm, StreamHandle stream, std::vector<NcclOperation> operations) {
  std::uint64_t looks = 0;
  {
    const std::lock_guard lock(comm.traffic->mutex);
    looks = comm.traffic->numbers() % 3;
  }
  return start(comm, [&comm, stream, operations = std::move(operations), looks]() mutable {
    if (looks > 0) {
      --looks;
      return Result::in_progress;
    }
    if (!Executor::instance().has_room(*stream->stream)) {
      return Result::in_progress;  // a thread of NCCL's waits for it
    }
    if (!comm.resources->take_buffers()) {
      return refusal(Result::unhandled_cuda_error, "out of memory");
    }
    queue(comm, stream, std::move(operations));
    return Result::success;
  });
}

/// Whether what a rank sends to itself in a group is received there, with the same sizes.
bool receives_from_itself(const GroupedCalls& calls) {
  std::vector<std::size_t> sent;
  std::vector<std::size_t> received;
  for (const NcclOperation& operation : calls.operations) {
    const std::size_t bytes = operation.call.count * emulator::bytes_of(operation.call.type);
    if (operation.to == calls.comm->rank) {
      sent.push_back(bytes);
    }
    if (operation.from == calls.comm->rank) {
      received.push_back(bytes);
    }
  }
  return sent == received;
}

Result end_group() {
  Result result = Result::success;
  for (const GroupedCalls& calls : grouped) {
    if (!receives_from_itself(calls)) {
      grouped.clear();
      return mistake(
          "ncclGroupEnd: what a rank sends to itself must be received in the same group");
    }
  }
  for (GroupedCalls& calls : std::exchange(grouped, {})) {
    const Result one = accept_later(*calls.comm, calls.stream, std::move(calls.operations));
    result = one == Result::success ? result : one;
  }
  return result;
}

/// Where the arrays of a collective are in windows, which is the same on all ranks. Returns what is
/// wrong; "": nothing.
std::string find_places(const CommData& comm, NcclOperation& operation) {
  NcclCall& call = operation.call;
  if (call.kind == CallKind::broadcast) {
    return {};  // only one rank has a source
  }
  const std::size_t bytes = call.count * emulator::bytes_of(call.type);
  const std::size_t all = bytes * static_cast<std::size_t>(comm.size);
  const bool scatters = call.kind == CallKind::reduce_scatter;
  const bool gathers = call.kind == CallKind::all_gather;
  std::string wrong =
      comm.windows.find(operation.source, scatters ? all : bytes, call.source_place);
  if (wrong.empty()) {
    wrong = comm.windows.find(operation.destination, gathers ? all : bytes, call.destination_place);
  }
  return wrong;
}

/// Adds a call to the group, or makes it a group of its own.
Result add(const char* function, Comm comm, StreamHandle stream, NcclOperation operation) {
  if (const Result wrong = usable(function, comm); wrong != Result::success) {
    return wrong;
  }
  if (stream == nullptr) {
    return mistake(text(function, ": the legacy stream, which nothing here may use"));
  }
  const bool reads = operation.to >= 0 || operation.call.kind != CallKind::message;
  const bool writes = operation.to < 0;
  const bool broadcast = operation.call.kind == CallKind::broadcast;
  const Memory& memory = Memory::instance();
  if ((reads && (!broadcast || operation.call.root == comm->rank) &&
       !memory.is_device(operation.source)) ||
      (writes && !memory.is_device(operation.destination))) {
    return mistake(text(function, ": an address that is not memory of a device"));
  }
  const int other = std::max({operation.to, operation.from, operation.call.root});
  if (other >= comm->size) {
    return mistake(text(function, ": rank ", other, " in a communicator of ", comm->size,
                        ", of rank ", comm->rank));
  }
  if (operation.call.kind != CallKind::message) {
    const std::lock_guard lock(comm->mutex);
    operation.call.number = ++comm->collectives;
    if (const std::string wrong = find_places(*comm, operation); !wrong.empty()) {
      return mistake(text(function, " of rank ", comm->rank, ": ", wrong));
    }
    window_calls += operation.call.destination_place != 0 ? 1 : 0;
  }
  const auto same = std::ranges::find(grouped, comm, &GroupedCalls::comm);
  if (same == grouped.end()) {
    grouped.push_back({comm, stream, {operation}});
  } else if (same->stream == stream) {
    same->operations.push_back(operation);
  } else {
    return mistake(text(function, ": one group of calls of a communicator is in two streams"));
  }
  return group_depth == 0 ? end_group() : Result::success;
}

// ---- communicators ----

/// GPUs of a machine, at most.
constexpr int most_gpus = 64;
/// For TESSERA_EMULATOR_KILL in functions without a communicator.
std::atomic<int> rank_of_process = 0;

/// The number of the machine that this process plays.
int machine() {
  const char* const number = std::getenv("TESSERA_EMULATOR_MACHINE");
  return number == nullptr ? 0 : std::atoi(number);
}

/// Joins the ranks that share the path: a step of it.
Result joined_step(CommData& comm) {
  Region& region = comm.traffic->region;
  for (int rank = 0; rank < comm.size; ++rank) {
    if (region.member(rank).joined == 0) {
      return Result::in_progress;
    }
  }
  for (int rank = 0; rank < comm.size; ++rank) {
    for (int other = rank + 1; other < comm.size; ++other) {
      if (region.member(rank).joined == region.member(other).joined) {
        return refusal(Result::invalid_usage,
                       text("Duplicate GPU detected : rank ", rank, " and rank ", other,
                            " both on CUDA device ", (region.member(rank).joined - 1) % most_gpus));
      }
    }
  }
  return Result::success;
}

Result open_region(CommData& comm, const std::string& path) {
  try {
    comm.traffic = std::make_shared<NcclTraffic>(
        path, comm.rank, comm.size,
        Executor::instance().seed() * 7919 + static_cast<std::uint64_t>(comm.rank), comm.resources);
  } catch (const Fault& fault) {
    return refusal(Result::system_error, fault.what());
  }
  comm.traffic->region.member(comm.rank).joined = 1 + comm.device + most_gpus * machine();
  return Result::in_progress;
}

/// Whether the members have windows: GPUs of one machine do, unless NCCL_WIN_ENABLE is 0. Where
/// they do not, NCCL (2.29 and later) returns success and no window.
bool has_windows(const CommData& comm) {
  const char* const enabled = std::getenv("NCCL_WIN_ENABLE");
  const auto machine_of = [&](int rank) {
    return (comm.traffic->region.member(rank).joined - 1) / most_gpus;
  };
  bool one_machine = true;
  for (int rank = 1; rank < comm.size; ++rank) {
    one_machine = one_machine && machine_of(rank) == machine_of(0);
  }
  return one_machine && (enabled == nullptr || std::atoi(enabled) != 0);
}

/// The members of a split with this rank's colour, by their keys; empty: not all ranks have called.
std::vector<int> split_members(const CommData& parent, std::uint64_t number) {
  const auto split_of = [&](int rank) -> Region::Split& {
    return parent.traffic->region.member(rank).splits[number % Region::most_splits];
  };
  std::vector<int> members;
  for (int rank = 0; rank < parent.size; ++rank) {
    if (split_of(rank).state == Region::Split::none) {
      return {};
    }
    if (split_of(rank).color == split_of(parent.rank).color) {
      members.push_back(rank);
    }
  }
  std::ranges::sort(members, {}, [&](int rank) { return std::pair(split_of(rank).key, rank); });
  return members;
}

/// Makes the communicator of a split: a step of it.
Result split_step(CommData& parent, CommData& made, std::uint64_t number) {
  if (made.traffic != nullptr) {
    return joined_step(made);
  }
  const std::vector<int> members = split_members(parent, number);
  if (members.empty()) {
    return Result::in_progress;
  }
  if (made.resources == parent.resources) {  // it waits for the work of all that share them
    const std::lock_guard lock(made.resources->mutex);
    if (!made.resources->queued.empty()) {
      return Result::in_progress;
    }
  }
  Region::Split& first =
      parent.traffic->region.member(members[0]).splits[number % Region::most_splits];
  if (members[0] == parent.rank && first.state == Region::Split::called) {
    const std::string path = Region::create();
    std::strncpy(first.path, path.c_str(), Region::path_bytes - 1);
    first.state = Region::Split::has_region;
  }
  if (first.state != Region::Split::has_region) {
    return Result::in_progress;
  }
  made.size = static_cast<int>(members.size());
  made.rank = static_cast<int>(std::ranges::find(members, parent.rank) - members.begin());
  return open_region(made, first.path);
}

bool idle(const CommData& comm) {
  if (comm.traffic == nullptr) {
    return true;
  }
  const std::lock_guard lock(comm.traffic->mutex);
  return comm.traffic->queued == 0;
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  const char* value = std::getenv("TESSERA_EMULATOR_NCCL");
  *version = value == nullptr ? 22809 : std::atoi(value);
  return Result::success;
}

Result ncclGetUniqueId(UniqueId* id) {
  emulator_wait_where_asked(__func__);
  emulator::die_where_asked(0, "ncclGetUniqueId");
  const std::string path = Region::create();
  *id = {};
  std::strncpy(id->bytes, path.c_str(), sizeof(id->bytes) - 1);
  return path.empty() ? Result::system_error : Result::success;
}

const char* ncclGetErrorString(Result result) {
  constexpr const char* texts[] = {"no error",
                                   "unhandled cuda error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or there was a network error",
                                   "NCCL operation in progress"};
  return texts[static_cast<int>(result)];
}

const char* ncclGetLastError(Comm) {
  static thread_local std::string kept;
  const std::lock_guard lock(last_error_mutex);
  kept = last_error;
  return kept.c_str();
}

Result ncclCommInitRankConfig(Comm* made, int ranks, UniqueId id, int rank, Config* config) {
  emulator_wait_where_asked(__func__);
  emulator::die_where_asked(rank, "ncclCommInitRankConfig");
  const int device = emulator_current_device();
  if (device < 0) {
    return refusal(Result::unhandled_cuda_error, "no context is set in this thread");
  }
  if (config == nullptr || config->magic != Config{}.magic || config->size < sizeof(Config) ||
      rank < 0 || rank >= ranks) {
    return mistake("ncclCommInitRankConfig: the rank or the configuration is wrong");
  }
  rank_of_process = rank;
  auto* comm = new CommData;
  comm->rank = rank;
  comm->size = ranks;
  comm->device = device;
  comm->blocking = config->blocking != 0;
  comm->split_share = config->split_share == 1;
  comm->resources = std::make_shared<emulator::NcclResources>(device);
  *made = comm;
  id.bytes[sizeof(id.bytes) - 1] = '\0';
  const Result opened = open_region(*comm, id.bytes);
  return opened != Result::in_progress ? comm->failed = opened
                                       : start(*comm, [comm] { return joined_step(*comm); });
}

Result ncclCommSplit(Comm comm, int color, int key, Comm* made, Config* config) {
  if (const Result wrong = usable("ncclCommSplit", comm); wrong != Result::success) {
    return wrong;
  }
  if (!idle(*comm)) {
    return mistake("ncclCommSplit of a communicator that has work");
  }
  const std::uint64_t number = comm->splits++;
  auto& split = comm->traffic->region.member(comm->rank).splits[number % Region::most_splits];
  if (number >= Region::most_splits) {
    return mistake("ncclCommSplit: the emulator has no room for so many splits");
  }
  split.color = color;
  split.key = key;
  split.state = Region::Split::called;
  if (color < 0) {
    *made = nullptr;
    return Result::success;
  }
  auto* child = new CommData;
  child->rank = comm->rank;
  child->device = comm->device;
  child->blocking = config == nullptr ? comm->blocking : config->blocking != 0;
  child->resources =
      comm->split_share ? comm->resources : std::make_shared<emulator::NcclResources>(comm->device);
  *made = child;
  return start(*child, [comm, child, number] { return split_step(*comm, *child, number); });
}

Result ncclCommGetAsyncError(Comm comm, Result* error) {
  if (comm == nullptr || comm->ended_by != nullptr) {
    return mistake("ncclCommGetAsyncError of a communicator that is no more");
  }
  emulator::die_where_asked(comm->rank, "ncclCommGetAsyncError");
  const std::lock_guard lock(comm->mutex);
  if (comm->pending) {
    const Result result = comm->pending();
    if (result != Result::in_progress) {
      comm->pending = nullptr;
      comm->failed = result;
    }
    *error = result;
  } else {
    *error = comm->failed;
  }
  return Result::success;
}

Result ncclCommFinalize(Comm comm) {
  if (const Result wrong = usable("ncclCommFinalize", comm); wrong != Result::success) {
    return wrong;
  }
  return start(*comm, [comm] {
    comm->finalized = idle(*comm);
    return comm->finalized ? Result::success : Result::in_progress;
  });
}

Result ncclCommDestroy(Comm comm) {
  emulator_wait_where_asked(__func__);
  if (comm == nullptr || comm->ended_by != nullptr) {
    return mistake("ncclCommDestroy of a communicator that is no more");
  }
  if (!idle(*comm)) {
    return mistake(
        "ncclCommDestroy of a communicator that has work; call ncclCommFinalize and wait");
  }
  if (!comm->registered.empty() || comm->windows.any()) {
    return mistake("ncclCommDestroy of a communicator that still has registered memory");
  }
  comm->ended_by = "ncclCommDestroy";
  comm->traffic.reset();
  comm->resources.reset();
  return Result::success;
}

Result ncclCommAbort(Comm comm) {
  emulator_wait_where_asked(__func__);
  if (comm == nullptr || comm->ended_by != nullptr) {
    return mistake("ncclCommAbort of a communicator that is no more");
  }
  emulator::die_where_asked(comm->rank, "ncclCommAbort");
  const std::lock_guard lock(comm->mutex);
  comm->resources->aborted = true;
  comm->pending = nullptr;
  comm->windows.remove_all();
  comm->ended_by = "ncclCommAbort";
  return Result::success;
}

Result ncclGroupStart() {
  ++group_depth;
  return Result::success;
}

Result ncclGroupEnd() {
  if (group_depth == 0) {
    return mistake("ncclGroupEnd without ncclGroupStart");
  }
  if (--group_depth > 0 || grouped.empty()) {
    return Result::success;
  }
  emulator::die_where_asked(grouped[0].comm->rank, "ncclGroupEnd");
  return end_group();
}

Result ncclSend(const void* from, std::size_t count, Type type, int peer, Comm comm,
                StreamHandle stream) {
  return add("ncclSend", comm, stream,
             {.call = {.type = type, .count = count}, .source = from, .to = peer});
}

Result ncclRecv(void* to, std::size_t count, Type type, int peer, Comm comm, StreamHandle stream) {
  return add("ncclRecv", comm, stream,
             {.call = {.type = type, .count = count}, .destination = to, .from = peer});
}

Result ncclAllGather(const void* from, void* to, std::size_t count, Type type, Comm comm,
                     StreamHandle stream) {
  return add("ncclAllGather", comm, stream,
             {.call = {.kind = CallKind::all_gather, .type = type, .count = count},
              .source = from,
              .destination = to});
}

Result ncclBroadcast(const void* from, void* to, std::size_t count, Type type, int root, Comm comm,
                     StreamHandle stream) {
  return add("ncclBroadcast", comm, stream,
             {.call = {.kind = CallKind::broadcast, .type = type, .root = root, .count = count},
              .source = from,
              .destination = to});
}

Result ncclAllReduce(const void* from, void* to, std::size_t count, Type type, Reduce reduce,
                     Comm comm, StreamHandle stream) {
  return add(
      "ncclAllReduce", comm, stream,
      {.call = {.kind = CallKind::all_reduce, .type = type, .reduce = reduce, .count = count},
       .source = from,
       .destination = to});
}

Result ncclReduceScatter(const void* from, void* to, std::size_t count, Type type, Reduce reduce,
                         Comm comm, StreamHandle stream) {
  return add(
      "ncclReduceScatter", comm, stream,
      {.call = {.kind = CallKind::reduce_scatter, .type = type, .reduce = reduce, .count = count},
       .source = from,
       .destination = to});
}

Result ncclCommRegister(Comm comm, void* data, std::size_t bytes, void** handle) {
  if (const Result wrong = usable("ncclCommRegister", comm); wrong != Result::success) {
    return wrong;
  }
  const std::string wrong = Memory::instance().is_device(data)
                                ? Memory::instance().check(data, bytes)
                                : "is not memory of a device";
  if (!wrong.empty()) {
    return mistake(text("ncclCommRegister: ", bytes, " bytes at an address that ", wrong));
  }
  comm->registered[data] = bytes;
  *handle = data;
  return Result::success;
}

Result ncclCommDeregister(Comm comm, void* handle) {
  if (const Result wrong = usable("ncclCommDeregister", comm); wrong != Result::success) {
    return wrong;
  }
  const auto found = comm->registered.find(handle);
  if (found == comm->registered.end()) {
    return mistake("ncclCommDeregister: it was not registered");
  }
  const std::string wrong = Memory::instance().check(found->first, found->second);
  comm->registered.erase(found);
  return wrong.empty() ? Result::success : mistake(text("ncclCommDeregister: the memory ", wrong));
}

std::uint64_t emulator_window_calls() { return window_calls; }
std::uint64_t emulator_window_memory() { return WindowMemory::instance().bytes(); }

Result ncclMemAlloc(void** data, std::size_t bytes) {
  emulator::die_where_asked(rank_of_process, "ncclMemAlloc");
  const int device = emulator_current_device();
  if (device < 0) {
    return refusal(Result::unhandled_cuda_error, "no context is set in this thread");
  }
  emulator_wait_where_asked(__func__);
  *data = Memory::instance().allocate(device, bytes);
  if (*data == nullptr) {
    return refusal(Result::unhandled_cuda_error, "out of memory");
  }
  WindowMemory::instance().add(*data, bytes);
  return Result::success;
}

Result ncclMemFree(void* data) {
  emulator::die_where_asked(rank_of_process, "ncclMemFree");
  emulator_wait_where_asked(__func__);
  if (const std::string wrong = WindowMemory::instance().remove(data); !wrong.empty()) {
    return mistake(text("ncclMemFree: ", wrong));
  }
  Memory::instance().free(data);
  return Result::success;
}

/// Collective. What the handle holds before the call is accepted is of no use.
Result ncclCommWindowRegister(Comm comm, void* data, std::size_t bytes, WindowHandle* window,
                              int flags) {
  if (const Result wrong = usable("ncclCommWindowRegister", comm); wrong != Result::success) {
    return wrong;
  }
  if (data == nullptr || bytes == 0 || window == nullptr || flags != collective_symmetric) {
    return mistake("ncclCommWindowRegister: nothing, or not of collectives (flags 1)");
  }
  if (!has_windows(*comm)) {
    *window = nullptr;
    return Result::success;
  }
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(comm->mutex);
    if (const std::string wrong = comm->windows.check(data, bytes); !wrong.empty()) {
      return mistake(text("ncclCommWindowRegister: ", bytes, " bytes ", wrong));
    }
    number = comm->window_calls++;
  }
  if (number >= Region::most_windows) {
    return mistake("ncclCommWindowRegister: the emulator has no room for so many windows");
  }
  Region::WindowCall& call = comm->traffic->region.member(comm->rank).windows[number];
  call.bytes = bytes;
  call.flags = flags;
  call.collectives = comm->collectives;
  call.called = 1;
  return start(*comm, [comm, data, bytes, window, number] {
    std::string wrong;
    if (!emulator::window_calls_agree(comm->traffic->region, comm->rank, number, wrong)) {
      return Result::in_progress;
    }
    if (!wrong.empty()) {
      return mistake(text("ncclCommWindowRegister, call ", number + 1, ": ", wrong,
                          "; all ranks of a communicator must call alike"));
    }
    *window = reinterpret_cast<WindowHandle>(comm->windows.add(data, bytes));
    return Result::success;
  });
}

/// Not collective.
Result ncclCommWindowDeregister(Comm comm, WindowHandle window) {
  if (const Result wrong = usable("ncclCommWindowDeregister", comm); wrong != Result::success) {
    return wrong;
  }
  if (window == nullptr) {
    return Result::success;
  }
  if (!idle(*comm)) {
    return mistake("ncclCommWindowDeregister of a communicator that has work");
  }
  const std::lock_guard lock(comm->mutex);
  const std::string wrong = comm->windows.remove(reinterpret_cast<std::uintptr_t>(window));
  return wrong.empty() ? Result::success : mistake(text("ncclCommWindowDeregister: ", wrong));
}

}  // extern "C"
