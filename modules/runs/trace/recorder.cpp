module;
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;

namespace tessera::runs {
namespace {

std::int64_t now() { return collective::steady_nanoseconds(); }

std::vector<TracedTensor> described(std::span<const Tensor> tensors) {
  std::vector<TracedTensor> all;
  all.reserve(tensors.size());
  for (const Tensor& x : tensors) {
    all.push_back(x ? TracedTensor{x.dtype(), x.shape(), x.spec()} : TracedTensor{});
  }
  return all;
}

std::string_view category_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::gradient_hook:
      return "hook";
    case ActionKind::accumulate:
      return "gradient";
    case ActionKind::create:
      return "factory";
    case ActionKind::read:
      return "host read";
    default:
      return name_of(kind);
  }
}

bool any_distributed(std::span<const Tensor> tensors) {
  for (const Tensor& x : tensors) {
    if (x && x.is_distributed()) {
      return true;
    }
  }
  return false;
}

/// Sets the running operator within a scope.
class RunningOp {
 public:
  RunningOp(const Op*& place, const Op* op) : place_(place), before_(std::exchange(place, op)) {}
  ~RunningOp() { place_ = before_; }
  RunningOp(const RunningOp&) = delete;
  RunningOp& operator=(const RunningOp&) = delete;

 private:
  const Op*& place_;
  const Op* before_;
};

}  // namespace

class TraceRecorder::Implementation {
 public:
  Implementation() : above_(*this), below_(*this), communication_(*this) {
    trace_.slices.reserve(std::size_t{1} << 14);
    sample_memory();
  }

  RankTrace finish() {
    ops::report_streams();
    sample_memory();
    return std::move(trace_);
  }

 private:
  /// The slice that ends with the scope. Its times are the last thing taken at the begin and the
  /// first one at the end: they are without what recording costs.
  class Slice {
   public:
    Slice(Implementation& owner, std::string_view category, std::string_view name)
        : owner_(owner), index_(owner.trace_.slices.size()) {
      owner.trace_.slices.push_back({.category = category,
                                     .name = std::string(name),
                                     .module = current_module(),
                                     .backward = in_backward()});
    }
    TraceSlice& get() const { return owner_.trace_.slices[index_]; }
    std::size_t index() const { return index_; }
    void begin() const { get().begin = now(); }
    void end() const {
      const std::int64_t at = now();
      get().end = at;
      owner_.sample_memory();
    }

   private:
    Implementation& owner_;
    std::size_t index_;
  };

  void sample_memory() {
    const MemoryStatistics statistics = memory_statistics();
    if (trace_.memory.empty() || trace_.memory.back().bytes != statistics.bytes) {
      trace_.memory.push_back({now(), statistics.bytes});
    }
  }

  Tensors run(std::string_view category, const Call& call, NextCall& next) {
    const Slice slice(*this, category, call.op.name);
    slice.get().in = described(call.in);
    slice.begin();
    Tensors out = next(call);
    slice.end();
    slice.get().out = described(out);
    return out;
  }

  /// The program as written: operators with layouts, and scopes.
  class ProgramMode final : public Mode {
   public:
    explicit ProgramMode(Implementation& owner) : owner_(owner) {}

    Tensors call(const Call& call, NextCall& next) override {
      const bool same = call.op.distributed == nullptr && !any_distributed(call.in);
      const RunningOp running(owner_.plain_, same ? &call.op : nullptr);
      return owner_.run("operator", call, next);
    }

    void perform(Action& action, NextAction& next) override {
      const bool is_observed =
          action.kind == ActionKind::collective || action.kind == ActionKind::wait;
      // An address that is taken says nothing of when values are read.
      if (is_observed || (action.kind == ActionKind::read && action.name == "data")) {
        next(action);
        return;
      }
      const Slice slice(
          owner_, category_of(action.kind),
          action.kind == ActionKind::module && action.name.empty() ? "model" : action.name);
      slice.begin();
      next(action);
      slice.end();
    }

   private:
    Implementation& owner_;
  };

  /// Records the calls that are executed: local operators of distributed ones.
  class ExecutionMode final : public Mode {
   public:
    explicit ExecutionMode(Implementation& owner) : owner_(owner) {}

    Tensors call(const Call& call, NextCall& next) override {
      // The operator's one slice is that of the program, where both levels are the same.
      return owner_.plain_ == &call.op ? next(call) : owner_.run("local operator", call, next);
    }
    void perform(Action& action, NextAction& next) override {
      next(action);
      owner_.sample_memory();
    }

   private:
    Implementation& owner_;
  };

  class Communication final : public collective::Observer {
   public:
    explicit Communication(Implementation& owner) : owner_(owner) {}

    void perform(const collective::Activity& activity, const std::function<void()>& run) override {
      const bool issue = activity.kind == collective::Activity::Kind::issue;
      const bool sources = activity.kind == collective::Activity::Kind::wait_sources;
      const std::string name(sources ? std::string_view("peers to read sources")
                                     : collective::name_of(activity.call.kind));
      const char* const waiting = is_message(activity) ? "message" : "wait";
      const Slice slice(owner_, issue ? "collective" : waiting, issue ? name : "wait: " + name);
      describe(slice.get(), activity);
      if (issue) {
        open_[key_of(activity)] = slice.index();
      }
      slice.begin();
      run();
      slice.end();
    }

    void completed(const collective::Activity& activity) override {
      const auto found = open_.find(key_of(activity));
      if (found != open_.end()) {
        owner_.trace_.spans.push_back({found->second, now()});
        open_.erase(found);
      }
    }

    void streamed(const collective::StreamedActivity& call) override {
      const std::string name(collective::name_of(call.activity.call.kind));
      TraceSlice slice{.category = "stream", .name = name, .begin = call.began, .end = call.ended};
      describe(slice, call.activity);
      if (call.waited_from != 0) {
        TraceSlice wait = slice;
        wait.category = "wait";
        wait.name = "wait: " + name;
        wait.begin = call.waited_from;
        wait.end = call.waited_until;
        wait.module = current_module();
        wait.backward = in_backward();
        owner_.trace_.slices.push_back(std::move(wait));
      }
      owner_.trace_.streamed.push_back({std::move(slice), call.queued});
    }

   private:
    static bool is_message(const collective::Activity& activity) {
      return activity.kind != collective::Activity::Kind::wait_sources &&
             (activity.call.kind == collective::CallKind::send ||
              activity.call.kind == collective::CallKind::receive);
    }

    static void describe(TraceSlice& slice, const collective::Activity& activity) {
      slice.collective =
          activity.kind != collective::Activity::Kind::wait_sources && !is_message(activity);
      slice.bytes = activity.bytes;
      slice.ranks.assign(activity.ranks.begin(), activity.ranks.end());
      slice.group = activity.group;
      slice.sequence = activity.sequence;
    }

    using Key = std::tuple<const int*, std::string_view, collective::CallKind, std::uint64_t>;
    static Key key_of(const collective::Activity& activity) {
      return {activity.ranks.data(), activity.group, activity.call.kind, activity.sequence};
    }

    Implementation& owner_;
    std::map<Key, std::size_t> open_;
  };

  RankTrace trace_;
  const Op* plain_ = nullptr;  // the running operator of the program, if it is the same below
  ProgramMode above_;
  ExecutionMode below_;
  Communication communication_;
  ModeScope above_scope_{ModeLevel::above_distribution, above_};
  ModeScope below_scope_{ModeLevel::below_distribution, below_};
  collective::ObserverScope communication_scope_{communication_};
};

TraceRecorder::TraceRecorder() : implementation_(std::make_unique<Implementation>()) {}
TraceRecorder::~TraceRecorder() = default;

RankTrace TraceRecorder::finish() {
  RankTrace trace = implementation_->finish();
  implementation_.reset();
  return trace;
}

}  // namespace tessera::runs
