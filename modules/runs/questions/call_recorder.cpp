module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/base64.hpp>
#include <tessera/content_hash.hpp>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.nn;

namespace tessera::runs {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_text = 400;  // of a call's arguments

/// A hash of an element's place: splitmix64.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

std::span<const std::byte> bytes_of(const Tensor& x) {
  const auto count = static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
  return {count == 0 ? nullptr : static_cast<const std::byte*>(x.raw_data()), count};
}

/// Whether the values can be read now.
bool is_complete(const Tensor& x) {
  const Tensor& local = local_of(x);
  return !local.is_meta() && local.storage().has_memory() && local.storage().pending() == nullptr;
}

/// Its values in order on the host.
Tensor on_host_in_order(const Tensor& x) {
  const Tensor there = x.device() == cpu ? x : ops::to_device(x, cpu);
  return there.is_contiguous() ? there : ops::clone(there);
}

/// What tells about values, as JSON: "hash", and of floats "norm", "largest", "odd" (how many are
/// not finite) and "sketch".
void add_values(Json& entry, const Tensor& x) {
  entry["hash"] = content_hash(bytes_of(x));
  if (!is_floating(x.dtype()) || is_stored_only(x.dtype())) {
    return;
  }
  std::array<double, sketch_size> sums{};
  double squares = 0;
  double largest = 0;
  std::int64_t odd = 0;
  std::uint64_t i = 0;
  for (const double value : to_doubles(x)) {
    const std::uint64_t hash = mixed(i++);
    if (!std::isfinite(value)) {
      ++odd;
      continue;
    }
    sums.at(hash % sketch_size) += (hash >> 63U) != 0 ? -value : value;
    squares += value * value;
    largest = std::max(largest, std::abs(value));
  }
  std::array<float, sketch_size> rounded{};
  std::ranges::transform(sums, rounded.begin(), [](double sum) { return static_cast<float>(sum); });
  std::string raw(sizeof(rounded), '\0');
  std::memcpy(raw.data(), rounded.data(), raw.size());
  entry["norm"] = std::sqrt(squares);
  entry["largest"] = largest;
  entry["odd"] = odd;
  entry["sketch"] = to_base64(raw);
}

/// The phases that calls are told apart by; others (those of stages) are within or around them.
bool is_phase(std::string_view name) {
  constexpr std::array phases = {
      Phase::forward,       Phase::backward,           Phase::recomputation,
      Phase::gradient_norm, Phase::gradient_reduction, Phase::optimizer,
      Phase::evaluation};
  return std::ranges::any_of(phases, [&](Phase phase) { return name_of(phase) == name; });
}

}  // namespace

std::string_view name_of(RecordedView view) {
  return view == RecordedView::executed ? "executed" : "written";
}

RecordedView recorded_view(const std::string& name) {
  for (const RecordedView view : {RecordedView::executed, RecordedView::written}) {
    if (name == name_of(view)) {
      return view;
    }
  }
  fail_input({.thing = "--record-as",
              .wrong = "there is no such view",
              .expected = "executed or written",
              .got = name});
}

std::string recording_file(const std::string& folder, int rank) {
  return (std::filesystem::path(folder) / fmt::format("rank-{}.calls", rank)).string();
}
std::string values_file(const std::string& folder) {
  return (std::filesystem::path(folder) / "call.values").string();
}
std::string rows_file(const std::string& folder) {
  return (std::filesystem::path(folder) / "rows.json").string();
}

class CallRecorder::Implementation final : public Mode {
 public:
  Implementation(const RecordingRequest& request, nn::Module& model)
      : request_(request),
        global_(request.view == RecordedView::written),
        parameters_(nn::all_parameters(model)),
        file_(recording_file(request.folder, current_rank()), std::ios::binary) {
    check_file();
    for (const nn::ParameterPointer& parameter : parameters_) {
      names_.try_emplace(&local_of(parameter->value).storage(), parameter->name);
    }
    scope_.emplace(global_ ? ModeLevel::above_distribution : ModeLevel::below_distribution, *this);
  }

  void begin_step(std::int64_t step) {
    const NoGrad constant;
    step_ = step;
    if (step == 0) {
      return;
    }
    looking_ = true;  // at values itself, by operators
    for (const nn::ParameterPointer& parameter : parameters_) {
      CallLine line{.phase = "start", .module = parameter->name, .op = "parameter"};
      see(parameter->value, line.out);
      write(line);
    }
    looking_ = false;
  }

  void finish() {
    scope_.reset();
    file_.flush();
    check_file();
  }

  Tensors call(const Call& call, NextCall& next) override {
    if (step_ == 0 || looking_) {
      return next(call);
    }
    const NoGrad constant;
    CallLine line{.phase = phases_.empty() ? std::string() : phases_.back(),
                  .module = current_module() == nullptr ? std::string() : *current_module(),
                  .op = call.op.name,
                  .arguments = arguments_of(call),
                  .communicates = !(call.op.communicates == Communicates::none)};
    for (const Tensor& x : call.in) {
      see(x, line.in);
    }
    Tensors out = next(call);
    // A collective is told where it is complete, by its own name.
    if (call.op.issues && (call.op.in_place || !out.empty())) {
      issued_.insert_or_assign(storage_of(call.op.in_place ? call.in[0] : out[0]), call.op.name);
    } else if (call.op.completes) {
      if (const auto issued = issued_.extract(storage_of(call.in[0]))) {
        line.op = issued.mapped();
        line.communicates = true;
      }
    }
    if (!call.op.issues) {
      for (const Tensor& x : call.op.completes ? Tensors{call.in[0]} : out) {
        see(x, line.out);
      }
      see_written(call, line);
    }
    write(line);
    return out;
  }

  void perform(Action& action, NextAction& next) override {
    if (action.kind != ActionKind::phase || !is_phase(action.name)) {
      next(action);
      return;
    }
    phases_.emplace_back(action.name);
    try {
      next(action);
    } catch (...) {
      phases_.pop_back();
      throw;
    }
    phases_.pop_back();
  }

 private:
  /// Operands or results: what tells about each, and the tensors, where they are stored.
  struct RecordedValues {
    Json all = Json::array();
    std::vector<Tensor> kept = {};
    bool tells = false;  // this rank tells the values for those of its mesh
  };
  struct CallLine {
    std::string phase;
    std::string module;
    std::string op;
    std::string arguments = {};
    bool communicates = false;
    RecordedValues in = {};
    RecordedValues out = {};
  };

  bool is_wanted() const {
    return request_.values && request_.values->number == count_ &&
           request_.values->rank == current_rank();
  }

  /// Operands that an in-place operator writes besides the first one are results, too.
  void see_written(const Call& call, CallLine& line) {
    for (std::size_t i = 1; call.op.in_place && i < call.in.size(); ++i) {
      if (call.op.writes(call.op.place_of(i, call.in.size()).operand)) {
        see(call.in[i], line.out);
      }
    }
  }

  std::string arguments_of(const Call& call) const {
    if (call.op.arguments == nullptr || global_) {  // layouts have their own
      return {};
    }
    std::string text = to_text(*call.op.arguments, call.attributes);
    if (text.size() > most_text) {  // long ones differ by their hash
      const std::string hash = content_hash(std::as_bytes(std::span(text)));
      text = text.substr(0, most_text) + "... " + hash;
    }
    return text;
  }

  /// Nothing: its values are not to be compared, or not there now.
  Tensor value_of(const Tensor& x) const {
    if (!x || !is_complete(x) || (global_ && !x.is_distributed())) {
      return {};
    }
    if (!global_) {
      return on_host_in_order(local_of(x));
    }
    return on_host_in_order(redistribute(x, Layout::replicated(x.layout().mesh())).local());
  }

  void see(const Tensor& x, RecordedValues& seen) {
    if (!x) {
      seen.all.push_back(nullptr);
      seen.kept.emplace_back();
      return;
    }
    const Tensor value = value_of(x);
    Json entry = {{"type", name_of(x.dtype())}};
    const Dims& shape = value ? value.shape() : x.shape();
    entry["shape"] = std::vector<std::int64_t>(shape.begin(), shape.end());
    if (const auto found = names_.find(storage_of(x)); found != names_.end()) {
      entry["parameter"] = found->second;
    }
    if (value) {
      add_values(entry, value);
      seen.tells |= !global_ || x.layout().mesh().ranks().front() == current_rank();
    }
    seen.all.push_back(std::move(entry));
    // An operand may be written by the call.
    seen.kept.push_back(is_wanted() && value ? ops::clone(value) : Tensor());
  }

  static const Storage* storage_of(const Tensor& x) { return &local_of(x).storage(); }

  void write(const CallLine& line) {
    const bool wanted = is_wanted();
    const std::int64_t number = count_++;
    if (global_ && !line.out.tells) {
      return;
    }
    Json json = {{"call", number},        {"step", step_},      {"phase", line.phase},
                 {"module", line.module}, {"op", line.op},      {"arguments", line.arguments},
                 {"in", line.in.all},     {"out", line.out.all}};
    if (line.communicates) {
      json["communicates"] = true;
    }
    file_ << json_text(json) << '\n';
    check_file();
    if (wanted) {
      write_values(line);
    }
  }

  void write_values(const CallLine& line) const {
    std::ofstream file(values_file(request_.folder), std::ios::binary);
    const auto described = [](const RecordedValues& seen) {
      Json all = Json::array();
      for (const Tensor& x : seen.kept) {
        Json entry = nullptr;
        if (x) {
          entry = {{"type", name_of(x.dtype())},
                   {"shape", std::vector<std::int64_t>(x.shape().begin(), x.shape().end())}};
        }
        all.push_back(std::move(entry));
      }
      return all;
    };
    file << json_text(Json{{"in", described(line.in)}, {"out", described(line.out)}}) << '\n';
    for (const RecordedValues* const seen : {&line.in, &line.out}) {
      for (const Tensor& x : seen->kept) {
        if (x) {
          const std::span<const std::byte> bytes = bytes_of(x);
          file.write(static_cast<const char*>(static_cast<const void*>(bytes.data())),
                     static_cast<std::streamsize>(bytes.size()));
        }
      }
    }
    file.flush();
    if (!file) {
      fail({.thing = values_file(request_.folder), .wrong = "it cannot be written"});
    }
  }

  void check_file() const {
    if (!file_) {
      fail({.thing = recording_file(request_.folder, current_rank()),
            .wrong = "it cannot be written"});
    }
  }

  RecordingRequest request_;
  bool global_;
  std::vector<nn::ParameterPointer> parameters_;
  std::map<const Storage*, std::string> names_;
  std::ofstream file_;
  std::map<const Storage*, std::string> issued_;  // collectives that are not complete
  std::int64_t step_ = 0;                         // 0: none is recorded yet
  std::int64_t count_ = 0;                        // of calls
  bool looking_ = false;
  std::vector<std::string> phases_;
  std::optional<ModeScope> scope_;
};

CallRecorder::CallRecorder(const RecordingRequest& request, nn::Module& model)
    : implementation_(std::make_unique<Implementation>(request, model)) {}
CallRecorder::~CallRecorder() = default;
void CallRecorder::begin_step(std::int64_t step) { implementation_->begin_step(step); }
void CallRecorder::finish() { implementation_->finish(); }

}  // namespace tessera::runs
