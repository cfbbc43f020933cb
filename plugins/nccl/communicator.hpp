// A communicator of NCCL's as one rank uses it. Include it after the imports of tessera.base and
// tessera.device.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "interop.hpp"
#include "nccl_api.hpp"

namespace tessera::nccl {

/// One rank's part of a communicator. It does not block within NCCL: a call is complete when NCCL
/// says that it has accepted it, and meanwhile `check` is called, which ends the wait. Functions
/// may be called from several threads, abort() also while another one waits.
class Communicator {
 public:
  /// Where the rank is. `members`, for errors: "ranks 0, 1".
  struct GroupMember {
    const cuda::Interop& device;
    std::string members;
    int rank = 0;
    int size = 1;
    WaitCheck check = {};
    std::size_t window = 0;  // bytes of the symmetric window of each group; 0: none
  };

  /// Returns when all members have called it. Errors: NCCL's, such as two members on one GPU.
  /// `shares`: those that are split from it share its buffers, and their work runs in the order in
  /// which it is queued, as that of one communicator.
  Communicator(GroupMember place, const UniqueId& id, bool shares);
  /// Another one of the same members, which all call it. Where they share, it waits until what is
  /// queued is done.
  Communicator(Communicator& same_members, WaitCheck check);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// Nothing is queued any more, or abort() was called.
  ~Communicator();

  /// The ranks, for errors: "ranks 0, 1".
  const std::string& members() const { return place_.members; }
  bool is_first_member() const { return place_.rank == 0; }
  int size() const { return place_.size; }
  /// Bytes of the symmetric window of each group that is split from it; 0: none.
  std::size_t window() const { return place_.window; }

  /// Calls a function of NCCL's and waits until NCCL has accepted what it did. `name` is for
  /// errors.
  void call(std::string_view name, const std::function<Result(Comm)>& function);
  /// Ends what is queued. Later calls are errors.
  void abort() noexcept;
  /// An error that NCCL has found since; empty: none.
  std::string failure();

 private:
  void wait_until_accepted(std::string_view name, Result result);
  [[noreturn]] void fail_call(std::string_view name, Result result);
  std::string words(Result result) const;
  /// Errors: aborted.
  Comm handle() const;

  const GroupMember place_;
  std::mutex calls_;   // held from a call until NCCL has accepted it: calls may not overlap
  std::mutex handle_;  // held within a function of NCCL's, and to abort
  Comm comm_ = nullptr;
  bool aborted_ = false;
};

}  // namespace tessera::nccl
