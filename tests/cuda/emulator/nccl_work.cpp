#include "nccl_work.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "fault.hpp"
#include "memory.hpp"
#include "nccl_window.hpp"
#include "text.hpp"

namespace emulator {
namespace {

const char* name_of(CallKind kind) {
  constexpr const char* names[] = {"ncclSend", "ncclAllGather", "ncclBroadcast", "ncclAllReduce",
                                   "ncclReduceScatter"};
  return names[static_cast<int>(kind)];
}

const char* name_of(Type type) {
  switch (type) {
    case Type::int8:
      return "int8";
    case Type::uint8:
      return "uint8";
    case Type::int32:
      return "int32";
    case Type::int64:
      return "int64";
    case Type::float16:
      return "float16";
    case Type::float32:
      return "float32";
    case Type::float64:
      return "float64";
    case Type::bfloat16:
      return "bfloat16";
  }
  return "unknown";
}

struct BFloat16 {
  std::uint16_t bits;
  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    bits = static_cast<std::uint16_t>((word + 0x7fffU + (word >> 16 & 1U)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

template <class T>
constexpr bool narrow = std::is_same_v<T, BFloat16> || std::is_same_v<T, _Float16>;
template <class T>
using Computed = std::conditional_t<narrow<T>, float, T>;

template <class C>
C combined(Reduce reduce, C a, C b) {
  switch (reduce) {
    case Reduce::max:
      return std::max(a, b);
    case Reduce::min:
      return std::min(a, b);
    case Reduce::product:
      return a * b;
    default:
      return a + b;
  }
}

/// As a ring does it: from the rank after `last` on, rounded at every rank.
template <class T>
void reduce_ring(const NcclCall& call, std::span<const std::vector<std::byte>> of_rank,
                 std::size_t begin, std::size_t end, std::size_t last, std::byte* to) {
  using C = Computed<T>;
  const std::size_t ranks = of_rank.size();
  for (std::size_t i = begin; i < end; ++i) {
    const auto value = [&](std::size_t rank) {
      T one;
      std::memcpy(&one, of_rank[rank].data() + i * sizeof(T), sizeof(T));
      const C whole = static_cast<C>(one);
      return call.reduce == Reduce::avg ? static_cast<C>(whole / static_cast<C>(ranks)) : whole;
    };
    T sum = static_cast<T>(value((last + 1) % ranks));
    for (std::size_t hop = 2; hop <= ranks; ++hop) {
      sum = static_cast<T>(
          combined<C>(call.reduce, static_cast<C>(sum), value((last + hop) % ranks)));
    }
    std::memcpy(to + (i - begin) * sizeof(T), &sum, sizeof(T));
  }
}

template <class Use>
void with_type(Type type, const Use& use) {
  switch (type) {
    case Type::int8:
      return use(std::int8_t{});
    case Type::uint8:
      return use(std::uint8_t{});
    case Type::int32:
      return use(std::int32_t{});
    case Type::int64:
      return use(std::int64_t{});
    case Type::float16:
      return use(_Float16{});
    case Type::float32:
      return use(float{});
    case Type::float64:
      return use(double{});
    case Type::bfloat16:
      return use(BFloat16{});
  }
}

}  // namespace

std::size_t bytes_of(Type type) {
  std::size_t bytes = 0;
  with_type(type, [&](auto element) { bytes = sizeof(element); });
  return bytes;
}

std::string describe(const NcclCall& call) {
  std::string words = text(name_of(call.kind), " of ", call.count, " ", name_of(call.type));
  if (call.kind == CallKind::broadcast) {
    words += text(" from rank ", call.root);
  }
  if (call.kind == CallKind::all_reduce || call.kind == CallKind::reduce_scatter) {
    constexpr const char* names[] = {"sum", "product", "max", "min", "avg"};
    words += text(" (", names[static_cast<int>(call.reduce)], ")");
  }
  if (call.number > 0) {
    words += text(", call ", call.number);
  }
  if (call.source_place != 0 || call.destination_place != 0) {
    words += text(", from memory ", Windows::describe(call.source_place), " to memory ",
                  Windows::describe(call.destination_place));
  }
  return words;
}

void die_where_asked(int rank, const char* place) {
  static std::atomic<int> times = 0;
  const char* const asked = std::getenv("TESSERA_EMULATOR_KILL");
  int whom = -1;
  int number = 0;
  int signal = SIGKILL;
  char where[64] = {};
  if (asked != nullptr &&
      std::sscanf(asked, "%d %63s %d %d", &whom, where, &number, &signal) >= 3 && whom == rank &&
      std::strcmp(where, place) == 0 && ++times == number) {
    kill(getpid(), signal);
  }
}

NcclResources::~NcclResources() {
  if (has_buffers) {
    Memory::instance().give_back(device, buffer_bytes);
  }
}

bool NcclResources::take_buffers() {
  const std::lock_guard lock(mutex);
  has_buffers = has_buffers || Memory::instance().take(device, buffer_bytes);
  return has_buffers;
}

NcclWork::NcclWork(std::shared_ptr<NcclTraffic> traffic, std::vector<NcclOperation> operations,
                   std::string where)
    : traffic_(std::move(traffic)), operations_(std::move(operations)), where_(std::move(where)) {}

/// Where the emulator finds memory that the calls use.
std::byte* NcclWork::use(const void* data, std::size_t bytes) {
  if (bytes > 0) {
    used_.push_back({data, bytes});
  }
  return Memory::instance().opened(data);
}

/// Errors (Fault): something was freed, or is too short.
void NcclWork::check_memory() const {
  for (const Used& used : used_) {
    if (const std::string wrong = Memory::instance().check(used.data, used.bytes); !wrong.empty()) {
      throw Fault(text(where_, ": ", used.bytes, " bytes at an address that ", wrong));
    }
  }
}

void NcclWork::begin_collective(const NcclOperation& operation) {
  const NcclCall& call = operation.call;
  const std::size_t bytes = call.count * bytes_of(call.type);
  const auto ranks = static_cast<std::size_t>(traffic_->region.size());
  const auto own = static_cast<std::size_t>(traffic_->rank);
  const bool is_root = call.kind == CallKind::broadcast && call.root == traffic_->rank;
  const bool reads = call.kind != CallKind::broadcast || is_root;
  const std::size_t source_bytes = call.kind == CallKind::reduce_scatter ? ranks * bytes : bytes;
  std::byte* const source = reads ? use(operation.source, source_bytes) : nullptr;
  std::byte* const destination =
      use(operation.destination, call.kind == CallKind::all_gather ? ranks * bytes : bytes);
  check_memory();
  const bool reduces = call.kind == CallKind::all_reduce || call.kind == CallKind::reduce_scatter;
  Reduction* reduction = nullptr;
  if (reduces) {
    reductions_.push_back(std::make_unique<Reduction>(Reduction{operation, {}}));
    reduction = reductions_.back().get();
    reduction->of_rank.assign(ranks, std::vector<std::byte>(bytes));
  }
  const auto part_for = [&](std::size_t rank) {
    return call.kind == CallKind::reduce_scatter ? source + rank * bytes : source;
  };
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    std::byte* const to = reduces                             ? reduction->of_rank[peer].data()
                          : call.kind == CallKind::all_gather ? destination + peer * bytes
                                                              : destination;
    if (peer == own) {
      if (reads) {
        std::memmove(to, part_for(own), bytes);
      }
      continue;
    }
    const bool comes = call.kind != CallKind::broadcast || call.root == static_cast<int>(peer);
    const int number = static_cast<int>(peer);
    sends_[number].push_back({number, call, reads ? part_for(peer) : nullptr, reads ? bytes : 0});
    receives_[number].push_back({number, call, to, comes ? bytes : 0});
  }
}

void NcclWork::begin() {
  begun_ = true;
  for (const NcclOperation& operation : operations_) {
    if (operation.call.kind != CallKind::message) {
      begin_collective(operation);
      continue;
    }
    const bool sends = operation.to >= 0;
    const std::size_t bytes = operation.call.count * bytes_of(operation.call.type);
    std::byte* const data = use(sends ? operation.source : operation.destination, bytes);
    const int peer = sends ? operation.to : operation.from;
    (sends ? sends_ : receives_)[peer].push_back({peer, operation.call, data, bytes});
  }
  for (const auto& [peer, messages] : sends_) {
    peers_.push_back(peer);
  }
}

template <class Move>
void NcclWork::move(Messages& messages, std::size_t most, const Move& some) {
  for (auto& [peer, of_peer] : messages) {
    std::size_t left = most;
    while (!of_peer.empty() && left > 0) {
      const std::size_t count = some(of_peer.front(), left);
      of_peer.front().moved += count;
      left -= count;
      if (of_peer.front().done()) {
        of_peer.pop_front();
      } else if (count == 0) {
        break;
      }
    }
  }
}

std::size_t NcclWork::send(Travelling& m, std::size_t most) {
  Channel& channel = traffic_->region.channel(traffic_->rank, m.peer);
  constexpr std::size_t head = sizeof(NcclCall);
  if (m.moved < head) {
    return channel.put(reinterpret_cast<const std::byte*>(&m.call) + m.moved,
                       std::min(most, head - m.moved));
  }
  if (m.moved > head) {
    die_where_asked(traffic_->rank, "transfer");
  }
  const std::size_t at = m.moved - head;
  return channel.put(m.data + at, std::min(most, m.bytes - at));
}

std::size_t NcclWork::receive(Travelling& m, std::size_t most) {
  Channel& channel = traffic_->region.channel(m.peer, traffic_->rank);
  constexpr std::size_t head = sizeof(NcclCall);
  if (m.moved < head) {
    const std::size_t count = channel.take(reinterpret_cast<std::byte*>(&m.found) + m.moved,
                                           std::min(most, head - m.moved));
    if (m.moved + count == head && !(m.found == m.call)) {
      throw Fault(text(where_, ": rank ", m.peer, " calls ", describe(m.found), " where rank ",
                       traffic_->rank, " calls ", describe(m.call),
                       "; all ranks of a communicator must call alike"));
    }
    return count;
  }
  const std::size_t at = m.moved - head;
  return channel.take(m.data + at, std::min(most, m.bytes - at));
}

/// Whether the receivers have taken everything: NCCL promises no room for what they have not.
bool NcclWork::sent() const {
  return std::ranges::all_of(
      peers_, [&](int peer) { return traffic_->region.channel(traffic_->rank, peer).empty(); });
}

bool NcclWork::advance() {
  NcclResources& resources = *traffic_->resources;
  if (done_ || resources.aborted) {
    return true;
  }
  {
    const std::lock_guard lock(resources.mutex);
    if (resources.queued.empty() || resources.queued.front() != this) {
      return false;
    }
  }
  const std::lock_guard lock(traffic_->mutex);
  try {
    if (!begun_) {
      begin();
    }
    check_memory();
    const std::uint64_t drawn = traffic_->numbers();
    const std::size_t most = drawn % 4 == 0 ? 0 : 1 + drawn / 4 % Channel::capacity;
    move(sends_, most, [&](Travelling& m, std::size_t bytes) { return send(m, bytes); });
    move(receives_, most, [&](Travelling& m, std::size_t bytes) { return receive(m, bytes); });
    const auto moved = [](const Messages& all) {
      return std::ranges::all_of(all, [](const auto& entry) { return entry.second.empty(); });
    };
    done_ = moved(sends_) && moved(receives_) && sent();
  } catch (const Fault& fault) {
    mistake_ = fault.what();
    done_ = true;
  }
  return done_;
}

void NcclWork::finish() {
  {
    const std::lock_guard lock(traffic_->resources->mutex);
    std::erase(traffic_->resources->queued, this);
  }
  {
    const std::lock_guard lock(traffic_->mutex);
    --traffic_->queued;
  }
  if (!mistake_.empty()) {
    throw Fault(mistake_);
  }
  if (traffic_->resources->aborted) {
    return;
  }
  for (const std::unique_ptr<Reduction>& reduction : reductions_) {
    const NcclCall& call = reduction->operation.call;
    std::byte* const to = Memory::instance().opened(reduction->operation.destination);
    const std::size_t ranks = reduction->of_rank.size();
    with_type(call.type, [&]<class T>(T) {
      if (call.kind == CallKind::reduce_scatter) {
        const auto own = static_cast<std::size_t>(traffic_->rank);
        return reduce_ring<T>(call, reduction->of_rank, 0, call.count, own, to);
      }
      const std::size_t chunk = (call.count + ranks - 1) / ranks;
      for (std::size_t last = 0; last < ranks; ++last) {
        const std::size_t begin = std::min<std::size_t>(call.count, last * chunk);
        const std::size_t end = std::min<std::size_t>(call.count, begin + chunk);
        reduce_ring<T>(call, reduction->of_rank, begin, end, last, to + begin * sizeof(T));
      }
    });
  }
}

}  // namespace emulator
