// The compiler calls a function before each load and store of a kernel (clang's
// -fsanitize-coverage=func,trace-loads,trace-stores). For each byte of devices' and of shared
// memory there are two records: who wrote it last, and who has read it. Two accesses of which one
// writes are a race when they are of
// - different blocks of one launch (of devices' memory), or
// - different threads of a block with no barrier between them; in a warp, one of its operations
//   also orders them.
#include "races.hpp"

#include <sys/mman.h>

#include <bit>
#include <cstdint>
#include <map>
#include <span>

#include "fault.hpp"
#include "grid.hpp"
#include "memory.hpp"
#include "text.hpp"

namespace emulator {
namespace {

/// Of one byte; the numbers are kept modulo what their bits hold.
struct Access {
  std::uint64_t launch : 13 = 0;  // 0: none yet
  std::uint64_t block : 20 = 0;
  std::uint64_t thread : 10 = 0;
  std::uint64_t many : 1 = 0;  // several threads of the block, or several blocks
  std::uint64_t barriers : 12 = 0;
  std::uint64_t warp_barriers : 8 = 0;
};
static_assert(sizeof(Access) == 8);

/// Reads of several blocks have this block's number.
constexpr std::uint64_t any_block = (1U << 20) - 1;

struct Records {
  Access written, read;
};

enum class Kind : bool { load, store };

class Checker {
 public:
  Checker();

  void begin(const Launch& launch) {
    if (++launch_ == 1U << 13) {
      madvise(of_devices_, shadow_bytes(), MADV_DONTNEED);
      of_shared_.clear();
      of_launched_.clear();
      launch_ = 1;
    }
    stacks_ = fiber_stacks();
    launched_ = launched_memory().first(launch.memory);
    of_launched_.resize(most_launched_bytes);
    shared_ = launch.kernel->library->shared;
    if (!shared_.empty()) {
      records_of_shared_ = &of_shared_[shared_.data()];
      records_of_shared_->resize(shared_.size());
    }
  }

  void access(const std::byte* at, std::size_t bytes, Kind kind) {
    if (at >= stacks_.data() && at < stacks_.data() + stacks_.size()) {
      return;
    }
    // Of vectors: of smaller ones the compiler makes wider loads where the processor may.
    if (bytes == 16 && reinterpret_cast<std::uintptr_t>(at) % bytes != 0) {
      fault_in_kernel(text("it ", verb(kind), " ", bytes,
                           " bytes at an address that is no multiple of ", bytes));
    }
    if (memory_.is_open(at)) {
      const std::size_t offset = memory_.offset_of(at);
      if (offset < begin_ || offset + bytes > end_ || frees_ != memory_.frees()) {
        check_allocation(at, bytes, kind);
      }
      record(of_devices_ + offset, at, bytes, kind, false);
    } else if (is_in(shared_, at)) {
      record(records_of_shared_->data() + (at - shared_.data()), at, bytes, kind, true);
    } else if (is_in(launched_, at) && is_in(launched_, at + bytes - 1)) {
      record(of_launched_.data() + (at - launched_.data()), at, bytes, kind, true);
    } else {
      check_elsewhere(at, bytes, kind);
    }
  }

  /// For atomic operations, which race with nothing here.
  void allow(const std::byte* at, std::size_t bytes) {
    if (memory_.is_open(at)) {
      check_allocation(at, bytes, Kind::store);
    } else if (!is_in(shared_, at) && !is_in(launched_, at)) {
      check_elsewhere(at, bytes, Kind::store);
    }
  }

 private:
  static std::size_t shadow_bytes() { return Memory::range() * sizeof(Records); }

  static bool is_in(std::span<const std::byte> memory, const std::byte* at) {
    return at >= memory.data() && at < memory.data() + memory.size();
  }

  static const char* verb(Kind kind) { return kind == Kind::store ? "writes" : "reads"; }

  void check_allocation(const std::byte* at, std::size_t bytes, Kind kind) {
    const std::string wrong = memory_.check_open(at, bytes);
    if (!wrong.empty()) {
      fault_in_kernel(text("it ", verb(kind), " ", bytes, " bytes at an address that ", wrong));
    }
    frees_ = memory_.frees();
    const auto piece = memory_.live_piece(at);
    begin_ = piece.first;
    end_ = piece.second;
  }

  void check_elsewhere(const std::byte* at, std::size_t bytes, Kind kind) {
    if (memory_.is_device(at)) {
      fault_in_kernel(text("it ", verb(kind), " at ", address(at),
                           ", an address of the device that it has from memory; kernels get "
                           "addresses in their structure only"));
    }
    if (memory_.is_pinned(at, bytes)) {
      return;
    }
    if (is_in(launched_memory(), at)) {
      fault_in_kernel(text("it ", verb(kind), " ", bytes, " bytes at byte ", at - launched_.data(),
                           " of shared memory, of which its launch gives ", launched_.size()));
    }
    // Indices and constants.
    if (kind == Kind::load) {
      for (const std::span<const std::byte> image : running.launch->kernel->library->images) {
        if (at >= image.data() && at < image.data() + image.size()) {
          return;
        }
      }
    }
    fault_in_kernel(text("it ", verb(kind), " at ", address(at),
                         ", which is neither memory of a device nor pinned; look at where the "
                         "address comes from"));
  }

  /// Whether an earlier access of the byte has no order with the running thread's.
  static bool unordered(const Access& earlier, const Access& now, bool shared) {
    if (earlier.launch != now.launch) {
      return false;
    }
    if (earlier.block != now.block) {
      return !shared;
    }
    if (earlier.barriers != now.barriers) {
      return false;
    }
    if (earlier.many == 0 && earlier.thread == now.thread) {
      return false;
    }
    return earlier.many == 1 || earlier.thread / 32 != now.thread / 32 ||
           earlier.warp_barriers == now.warp_barriers;
  }

  static bool same(const Access& a, const Access& b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  }

  void record(Records* records, const std::byte* at, std::size_t bytes, Kind kind, bool shared) {
    Access now;
    now.launch = launch_;
    now.block = running.block % any_block;
    now.thread = running.thread;
    now.barriers = running.barriers;
    now.warp_barriers = running.warp_barriers;
    for (std::size_t i = 0; i < bytes; ++i) {
      Records& byte = records[i];
      // The common case: nobody has written it since, and this thread has read it.
      if (kind == Kind::load && byte.written.launch != now.launch && same(byte.read, now)) {
        continue;
      }
      if (unordered(byte.written, now, shared)) {
        race(at, bytes, kind, byte.written, "written", shared);
      }
      if (kind == Kind::store) {
        if (unordered(byte.read, now, shared)) {
          race(at, bytes, kind, byte.read, "read", shared);
        }
        byte.written = now;
      } else {
        byte.read = joined(byte.read, now, shared);
      }
    }
  }

  /// The record of reads after one more.
  static Access joined(const Access& before, Access now, bool shared) {
    if (before.launch != now.launch) {
      return now;
    }
    if (before.block != now.block) {
      if (!shared) {
        now.block = any_block;
        now.many = 1;
      }
      return now;
    }
    if (before.barriers != now.barriers) {
      return now;
    }
    const bool ordered =
        before.many == 0 &&
        (before.thread == now.thread ||
         (before.thread / 32 == now.thread / 32 && before.warp_barriers != now.warp_barriers));
    now.many = ordered ? 0 : 1;
    return now;
  }

  [[noreturn]] void race(const std::byte* at, std::size_t bytes, Kind kind, const Access& earlier,
                         const char* done, bool shared) {
    std::string who = earlier.block == any_block ? "several blocks"
                      : earlier.many == 1        ? "several threads"
                                                 : text("thread ", earlier.thread);
    if (earlier.block != any_block && earlier.block != running.block) {
      who += text(" of block ", earlier.block);
    }
    const std::string where =
        shared ? text("byte ", at - (is_in(shared_, at) ? shared_.data() : launched_.data()),
                      " of shared memory")
               : text("device memory at offset ", memory_.offset_of(at) - begin_,
                      " of its allocation");
    const bool several = earlier.block == any_block || earlier.many == 1;
    const bool other_block = earlier.block != running.block % any_block;
    fault_in_kernel(text("race: it ", verb(kind), " ", bytes, " bytes at ", where, ", which ", who,
                         other_block ? " of the same launch" : "", several ? " have " : " has ",
                         done,
                         other_block ? "; blocks have no order: look at the indices of blocks"
                                     : " since the last barrier; look for a missing barrier"));
  }

  Memory& memory_ = Memory::instance();
  std::uint32_t launch_ = 0;
  std::size_t begin_ = 0, end_ = 0;  // of the allocation that was used last
  std::uint64_t frees_ = 0;
  Records* of_devices_ = nullptr;
  std::span<const std::byte> stacks_;
  std::span<std::byte> shared_, launched_;
  std::map<const std::byte*, std::vector<Records>> of_shared_;  // by library
  std::vector<Records>* records_of_shared_ = nullptr;
  std::vector<Records> of_launched_;
};

Checker::Checker() {
  void* shadow = mmap(nullptr, shadow_bytes(), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (shadow == MAP_FAILED) {
    throw Fault(
        "the emulator cannot reserve addresses for its check of races; check the process's "
        "limits");
  }
  of_devices_ = static_cast<Records*>(shadow);
}

Checker* checker = nullptr;

void check(const void* at, std::size_t bytes, Kind kind) {
  if (running.launch != nullptr) {
    checker->access(static_cast<const std::byte*>(at), bytes, kind);
  }
}

}  // namespace

void begin_race_check(const Launch& launch) {
  if (checker == nullptr) {
    checker = new Checker;
  }
  checker->begin(launch);
}

void check_load(const void* at, std::size_t bytes) { check(at, bytes, Kind::load); }
void check_store(const void* at, std::size_t bytes) { check(at, bytes, Kind::store); }

}  // namespace emulator

using emulator::check;
using emulator::Kind;

extern "C" {

void emulator_atomic(const void* at, unsigned bytes) {
  emulator::checker->allow(static_cast<const std::byte*>(at), bytes);
}

// What the compiler calls.
void __sanitizer_cov_load1(const void* at) { check(at, 1, Kind::load); }
void __sanitizer_cov_load2(const void* at) { check(at, 2, Kind::load); }
void __sanitizer_cov_load4(const void* at) { check(at, 4, Kind::load); }
void __sanitizer_cov_load8(const void* at) { check(at, 8, Kind::load); }
void __sanitizer_cov_load16(const void* at) { check(at, 16, Kind::load); }
void __sanitizer_cov_store1(const void* at) { check(at, 1, Kind::store); }
void __sanitizer_cov_store2(const void* at) { check(at, 2, Kind::store); }
void __sanitizer_cov_store4(const void* at) { check(at, 4, Kind::store); }
void __sanitizer_cov_store8(const void* at) { check(at, 8, Kind::store); }
void __sanitizer_cov_store16(const void* at) { check(at, 16, Kind::store); }

}  // extern "C"
