module;
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
module tessera.checkpoint;

import tessera.base;
import :mapping;

namespace tessera::checkpoint_detail {

/// Entries are reused and never freed: the handler may walk the list at any time, without a lock.
struct WatchedRange::Entry {
  std::atomic<std::uintptr_t> begin{0};  // 0: not in use
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> lost{false};
  Entry* next = nullptr;
};

struct BusErrorHandler {
  using Entry = WatchedRange::Entry;

  static inline std::atomic<Entry*> first{nullptr};
  static inline std::mutex mutex;  // guards changes of the list
  static inline struct sigaction before{};
  static inline std::uintptr_t page = 0;

  static void install() {
    static const bool installed = [] {
      page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
      struct sigaction action{};
      action.sa_sigaction = &handle;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
      ::sigemptyset(&action.sa_mask);
      return ::sigaction(SIGBUS, &action, &before) == 0;
    }();
    static_cast<void>(installed);
  }

  /// Only system calls and lock-free atomics: it may run in the middle of anything, in any thread.
  static void handle(int signal, siginfo_t* info, void* context) {
    if (info->si_code > 0 && replace_lost_pages(reinterpret_cast<std::uintptr_t>(info->si_addr))) {
      return;  // the read is repeated and finds zeros
    }
    if ((before.sa_flags & SA_SIGINFO) != 0) {
      before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
      before.sa_handler(signal);
    } else {
      ::sigaction(signal, &before, nullptr);
      ::raise(signal);  // delivered when this handler returns
    }
  }

  static bool replace_lost_pages(std::uintptr_t address) {
    for (Entry* entry = first.load(std::memory_order_acquire); entry != nullptr;
         entry = entry->next) {
      const std::uintptr_t begin = entry->begin.load(std::memory_order_acquire);
      const std::uintptr_t end = entry->end.load(std::memory_order_relaxed);
      if (begin == 0 || address < begin || address >= end) {
        continue;
      }
      const int error = errno;
      const std::uintptr_t at = address / page * page;
      void* const zeros = ::mmap(reinterpret_cast<void*>(at), end - at, PROT_READ,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      errno = error;
      if (zeros == MAP_FAILED) {
        return false;
      }
      entry->lost.store(true, std::memory_order_relaxed);
      return true;
    }
    return false;
  }
};

WatchedRange::WatchedRange(const void* begin, std::size_t bytes) {
  BusErrorHandler::install();
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  const std::lock_guard guard(BusErrorHandler::mutex);
  Entry* const head = BusErrorHandler::first.load(std::memory_order_relaxed);
  entry_ = head;
  while (entry_ != nullptr && entry_->begin.load(std::memory_order_relaxed) != 0) {
    entry_ = entry_->next;
  }
  const bool fresh = entry_ == nullptr;
  if (fresh) {
    entry_ = new Entry;
    entry_->next = head;
  }
  entry_->lost.store(false, std::memory_order_relaxed);
  entry_->end.store(from + bytes, std::memory_order_relaxed);
  entry_->begin.store(from, std::memory_order_release);
  if (fresh) {
    BusErrorHandler::first.store(entry_, std::memory_order_release);
  }
}

WatchedRange::~WatchedRange() {
  const std::lock_guard guard(BusErrorHandler::mutex);
  entry_->begin.store(0, std::memory_order_release);
}

bool WatchedRange::lost() const { return entry_->lost.load(std::memory_order_relaxed); }

}  // namespace tessera::checkpoint_detail
