// What an emulated communicator has queued: the calls of a group, as messages between its ranks.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "nccl_api.hpp"
#include "nccl_region.hpp"

namespace emulator {

using tessera::nccl::Reduce;
using tessera::nccl::Type;

enum class CallKind : std::uint32_t { message, all_gather, broadcast, all_reduce, reduce_scatter };

/// One call of NCCL's functions, as both sides of a message must have it.
struct NcclCall {
  CallKind kind = CallKind::message;
  Type type = Type::uint8;
  Reduce reduce = Reduce::sum;
  int root = 0;
  std::uint64_t count = 0;         // elements, as the function takes them
  std::uint64_t number = 0;        // of a collective in its communicator, from 1
  std::uint64_t source_place = 0;  // Windows::find()
  std::uint64_t destination_place = 0;
  bool operator==(const NcclCall&) const = default;
};

/// A call and its memory, at the addresses that the host knows.
struct NcclOperation {
  NcclCall call;
  const void* source = nullptr;
  void* destination = nullptr;
  int to = -1;  // of a message: its receiver, or
  int from = -1;
};

class NcclWork;

/// What a communicator shares with those that are split from it, if it shares: one order of all
/// their work, whatever its streams, an abort, and memory of the device.
struct NcclResources {
  /// Of a communicator that has been used.
  static constexpr std::size_t buffer_bytes = std::size_t{64} << 20;

  explicit NcclResources(int on_device) : device(on_device) {}
  NcclResources(const NcclResources&) = delete;
  NcclResources& operator=(const NcclResources&) = delete;
  ~NcclResources();
  /// Takes the memory, at the first use; false: the device has not so much.
  bool take_buffers();

  const int device;
  std::atomic<bool> aborted{false};
  std::mutex mutex;  // guards the rest
  std::deque<const NcclWork*> queued;
  bool has_buffers = false;
};

/// A communicator's part that queued work uses.
struct NcclTraffic {
  NcclTraffic(const std::string& path, int own_rank, int size, std::uint64_t seed,
              std::shared_ptr<NcclResources> of)
      : region(path, size), rank(own_rank), resources(std::move(of)), numbers(seed) {}
  Region region;
  const int rank;
  const std::shared_ptr<NcclResources> resources;
  std::mutex mutex;  // guards the rest
  std::mt19937_64 numbers;
  int queued = 0;  // works
};

/// The calls that begin together. It moves some bytes in each look of the executor at its stream.
class NcclWork {
 public:
  NcclWork(std::shared_ptr<NcclTraffic> traffic, std::vector<NcclOperation> operations,
           std::string where);

  /// Moves on. Whether everything has moved, a mistake was found, or the communicator was aborted.
  bool advance();
  /// Completes what has moved. Errors (Fault): the mistake.
  void finish();

 private:
  /// A message, its head first.
  struct Travelling {
    int peer;
    NcclCall call;
    std::byte* data;  // where the emulator finds it
    std::size_t bytes;
    NcclCall found = {};  // of the sender
    std::size_t moved = 0;
    bool done() const { return moved == sizeof(NcclCall) + bytes; }
  };
  using Messages = std::map<int, std::deque<Travelling>>;
  struct Used {
    const void* data;
    std::size_t bytes;
  };
  struct Reduction {
    NcclOperation operation;
    std::vector<std::vector<std::byte>> of_rank;
  };

  void begin();
  void begin_collective(const NcclOperation& operation);
  std::byte* use(const void* data, std::size_t bytes);
  void check_memory() const;
  template <class Move>
  void move(Messages& messages, std::size_t most, const Move& some);
  std::size_t send(Travelling& m, std::size_t most);
  std::size_t receive(Travelling& m, std::size_t most);
  bool sent() const;

  std::shared_ptr<NcclTraffic> traffic_;
  std::vector<NcclOperation> operations_;
  std::string where_;
  bool begun_ = false;
  bool done_ = false;
  std::string mistake_;
  Messages sends_, receives_;
  std::vector<int> peers_;  // that something is sent to
  std::vector<Used> used_;
  std::vector<std::unique_ptr<Reduction>> reductions_;
};

std::size_t bytes_of(Type type);
/// "ncclAllGather of 12 float32, call 3".
std::string describe(const NcclCall& call);

/// TESSERA_EMULATOR_KILL="RANK PLACE NUMBER [SIGNAL]" sends the signal (9) to the process whose
/// rank reaches a place (a function's name, or "transfer") for this time.
void die_where_asked(int rank, const char* place);

}  // namespace emulator
