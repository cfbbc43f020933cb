// Causal attention by cuDNN, where its library is. Include it after the import of tessera.base.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <tessera/recent_map.hpp>
#include <vector>

#include "dnn_api.hpp"
#include "kernels/arguments.hpp"
#include "watched_call.hpp"

namespace tessera::cuda {

/// What a plan of the library is made for. Queries are as many as keys, and values have the dims of
/// keys.
struct DnnForm {
  bool backward = false;
  DType type = DType::bf16;
  std::int64_t batches = 0, times = 0, heads = 0, key_heads = 0, dim = 0;
  bool windowed = false;
  /// Batch, time and head of q, k, v, y, and backward dy, dq, dk, dv.
  std::array<std::array<std::int64_t, 3>, 8> strides = {};

  bool operator==(const DnnForm&) const = default;
};

struct DnnFormHash {  // strides mostly follow from the rest
  std::size_t operator()(const DnnForm& form) const {
    return NumbersHash()(std::array<std::int64_t, 7>{form.backward, static_cast<int>(form.type),
                                                     form.batches, form.times, form.heads,
                                                     form.key_heads, form.dim});
  }
};

/// A plan, and the descriptors that it consists of.
class DnnPlan {
 public:
  /// For the handle's device, or for one that `device` describes (a text as the library writes it).
  /// Null: the library has no engine for the form that gives the same bits each time; `reason`,
  /// where given, gets its words.
  static std::unique_ptr<DnnPlan> make(const WatchedThread& watched, const DnnForm& form,
                                       DnnHandle handle, const std::string& device = "",
                                       std::string* reason = nullptr);
  /// What the library knows of the handle's device, or of the one that `device` describes: a text
  /// for make(). Error: it does not take the description.
  static std::string describe(const WatchedThread& watched, DnnHandle handle,
                              const std::string& device = "");
  /// Destroys the descriptors, which nothing else does.
  void destroy(const WatchedThread& watched);
  DnnPlan(const DnnPlan&) = delete;
  DnnPlan& operator=(const DnnPlan&) = delete;

  DnnDescriptor descriptor() const { return plan_; }
  /// Bytes that a call needs besides the means of backward.
  std::size_t workspace() const { return workspace_; }
  /// Whether it was executed before.
  bool is_loaded() const { return loaded_; }
  void set_loaded() { loaded_ = true; }

 private:
  friend class DnnBuilder;
  DnnPlan() = default;
  DnnDescriptor plan_ = nullptr;
  std::size_t workspace_ = 0;
  bool loaded_ = false;
  std::vector<DnnDescriptor> all_;
};

/// The library's attention for one device. Any thread may use it.
class Dnn {
 public:
  /// Whether the library is there and new enough, and TESSERA_CUDA_ATTENTION does not say "own".
  /// Error: the variable says something else than "auto" or "own".
  static bool is_wanted();
  /// The library's version, such as 91900; 0: it is not there.
  static std::size_t version();

  /// Gives the file that TESSERA_CUDA_DNN_DEVICE names the device's description. Errors: the
  /// library cannot be used; the file cannot be written.
  Dnn(const WatchedThread& watched, CallWatch watch);
  /// Whether the library can be asked: 16 bits, heads of at most 256 dims (backward: 128), no caps
  /// of scores, no documents.
  static bool takes(const AttentionArguments& a, bool backward);
  /// Bytes that are enough for any plan: backward, the scores' gradients are in memory in 16 bits.
  static std::size_t workspace_bytes(std::int64_t batches, std::int64_t times, std::int64_t heads,
                                     std::int64_t key_heads, std::int64_t dim, bool backward);

  /// Queues what it takes. False: the library has no plan, or one that needs more workspace.
  bool attention(StreamHandle stream, const AttentionArguments& a, bool backward,
                 std::byte* workspace, std::size_t bytes);

 private:
  std::shared_ptr<DnnPlan> plan_for(const DnnForm& form);

  DnnHandle handle_ = nullptr;
  CallWatch watch_;
  std::mutex mutex_;
  RecentMap<DnnForm, std::shared_ptr<DnnPlan>, DnnFormHash> plans_{1 << 10};  // null: none
};

}  // namespace tessera::cuda
